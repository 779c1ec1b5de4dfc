"""``subscriptions/listen`` with ``taskIds``: hosts hear of their tasks instead of asking.

First the acknowledgement, with those of the ids that are the caller's own (others vanish without a
sign), then each task as it is now, then each change. The stream ends by itself when all its tasks
have ended and nothing else was asked for. One look per process notices the changes of all streams.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from mcp import types as t
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.state_watch import StateReader
from mcpregistry.db import db_call
from mcpregistry.domain.calls.task_view import DONE
from mcpregistry.domain.offer_kinds import PROMPT, RESOURCE, TOOL
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.tasks.task_handlers import Tasks, require_tasks
from mcpregistry.models.feed import CALLS, TASKS
from mcpregistry.services.tasks import host_tasks

log = structlog.get_logger(__name__)

Context = ServerRequestContext[Any, Any]

MAX_STREAMS = 256  # of one agent on one endpoint
MAX_IDS = 1000


class TaskNotification(t.Notification[dict[str, Any], str]):
    """``notifications/tasks``. Unlike the SDK's models it keeps ``ttlMs: null`` on the wire."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """The notification as it goes on the wire."""
        return {"method": self.method, "params": self.params}


_NOTES = {
    TOOL: t.ToolListChangedNotification,
    PROMPT: t.PromptListChangedNotification,
    RESOURCE: t.ResourceListChangedNotification,
}


class _TaskStream:
    def __init__(
        self, caller: Caller, task_ids: set[str], told: dict[str, tuple[Any, ...]]
    ) -> None:
        self.caller = caller
        self.open = task_ids  # not ended yet, as far as the host was told
        self.told = told
        self.due: set[str] = set()
        self.changed: set[str] = set()  # kinds whose lists have
        self.updated: set[str] = set()  # URIs of resources that have
        self.closing = False
        self.news = asyncio.Event()

    def take(self) -> tuple[set[str], set[str]]:
        due = self.due
        changed = self.changed
        self.due = set()
        self.changed = set()
        self.news.clear()
        return due, changed


class TaskStreams:
    """All streams of this process that asked for tasks."""

    def __init__(self, own: Tasks, feed: Feed) -> None:
        self._own = own
        self._streams: set[_TaskStream] = set()
        # Of a held call's task the state changes with the call.
        self._look = StateReader(
            feed,
            TASKS,
            _load_versions,
            keys=self._list_open_tasks,
            tell=self._compare_streams,
            also=(CALLS,),
        )

    def close(self) -> None:
        """End them gracefully: hosts listen again, elsewhere or later."""
        for stream in self._streams:
            stream.closing = True
            stream.news.set()

    async def listen(
        self,
        caller: Caller,
        ctx: Context,
        params: t.SubscriptionsListenRequestParams,
        bus: InMemorySubscriptionBus,
    ) -> t.SubscriptionsListenResult:
        """The handler of ``subscriptions/listen`` with ``taskIds``; see the module."""
        require_tasks(ctx)
        whose = (caller.agent, caller.endpoint)
        if (
            sum((each.caller.agent, each.caller.endpoint) == whose for each in self._streams)
            >= MAX_STREAMS
        ):
            raise MCPError(t.INTERNAL_ERROR, "Too many streams are open. Use tasks/get instead.")
        own = await self._list_own_tasks(caller, params)
        honored = _make_honored_filter(params.notifications, own)
        stream = _TaskStream(caller, set(own), await db_call(host_tasks.load_task_versions, own))
        self._streams.add(stream)
        unsubscribe = bus.subscribe(lambda event: _note_event(stream, honored, event))
        meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        try:
            await _acknowledge(ctx, honored, meta)
            stream.due |= stream.open
            self._look.begin(stream.open)
            await self._send_changes(ctx, stream, meta, stays_open=_is_more_wanted(honored))
        finally:
            unsubscribe()
            self._streams.discard(stream)
        return t.SubscriptionsListenResult(_meta=meta)

    async def _list_own_tasks(
        self, caller: Caller, params: t.SubscriptionsListenRequestParams
    ) -> list[str]:
        asked = (params.notifications.model_extra or {}).get("taskIds")
        if (
            not isinstance(asked, list)
            or len(asked) > MAX_IDS
            or not all(isinstance(each, str) for each in asked)
        ):
            raise MCPError(
                t.INVALID_PARAMS, f"taskIds must be a list of at most {MAX_IDS} strings."
            )
        found = await db_call(
            host_tasks.filter_own_tasks, asked, agent=caller.agent, endpoint=caller.endpoint
        )
        mine = {task.pk for task in found}
        return [each for each in dict.fromkeys(asked) if each in mine]

    async def _send_changes(
        self, ctx: Context, stream: _TaskStream, meta: dict[str, Any], *, stays_open: bool
    ) -> None:
        while not stream.closing:
            due, changed = stream.take()
            for kind in sorted(changed):
                note = _NOTES[kind](params=t.NotificationParams(_meta=meta))
                await ctx.session.send_notification(note, related_request_id=ctx.request_id)
            updated = sorted(stream.updated)
            stream.updated = set()
            for uri in updated:
                word = t.ResourceUpdatedNotification(
                    params=t.ResourceUpdatedNotificationParams(uri=uri, _meta=meta)
                )
                await ctx.session.send_notification(word, related_request_id=ctx.request_id)
            for view in await db_call(self._build_views, due) if due else []:
                if view["status"] in DONE:
                    stream.open.discard(view["taskId"])
                whole = TaskNotification(
                    method="notifications/tasks", params=view | {"_meta": meta}
                )
                await ctx.session.send_notification(whole, related_request_id=ctx.request_id)  # type: ignore[arg-type]
            if not stream.open and not stays_open:
                return
            await stream.news.wait()

    def _build_views(self, task_ids: set[str]) -> list[dict[str, Any]]:
        return [self._own.build_view(task) for task in host_tasks.load_tasks(task_ids)]

    def _list_open_tasks(self) -> set[str]:
        """The tasks that streams wait for. Also called in the feed's thread, hence the copies."""
        return set().union(*(set(stream.open) for stream in list(self._streams)))

    def _compare_streams(self, found: dict[str, tuple[Any, ...] | None]) -> None:
        for stream in self._streams:
            _compare_stream(stream, found)


def _load_versions(task_ids: list[str]) -> dict[str, tuple[Any, ...] | None]:
    """None for a task that retention has deleted."""
    return dict.fromkeys(task_ids) | host_tasks.load_task_versions(task_ids)


def _compare_stream(stream: _TaskStream, found: dict[str, tuple[Any, ...] | None]) -> None:
    for task_id in stream.open.intersection(found):
        version = found[task_id]
        if version is None:
            stream.open.discard(task_id)
            stream.news.set()
        elif stream.told.get(task_id) != version:
            stream.told[task_id] = version
            stream.due.add(task_id)
            stream.news.set()


def _note_event(stream: _TaskStream, honored: t.SubscriptionFilter, event: object) -> None:
    if isinstance(event, ToolsListChanged) and honored.tools_list_changed:
        stream.changed.add(TOOL)
        stream.news.set()
    elif isinstance(event, PromptsListChanged) and honored.prompts_list_changed:
        stream.changed.add(PROMPT)
        stream.news.set()
    elif isinstance(event, ResourcesListChanged) and honored.resources_list_changed:
        stream.changed.add(RESOURCE)
        stream.news.set()
    elif isinstance(event, ResourceUpdated) and event.uri in (honored.resource_subscriptions or ()):
        stream.updated.add(event.uri)
        stream.news.set()


def _make_honored_filter(asked: t.SubscriptionFilter, own: list[str]) -> t.SubscriptionFilter:
    """What the host asked for, and of the tasks only its own."""
    return t.SubscriptionFilter(
        tools_list_changed=asked.tools_list_changed or None,
        prompts_list_changed=asked.prompts_list_changed or None,
        resources_list_changed=asked.resources_list_changed or None,
        resource_subscriptions=asked.resource_subscriptions or None,
        taskIds=own,  # type: ignore[call-arg]
    )


def _is_more_wanted(honored: t.SubscriptionFilter) -> bool:
    return bool(
        honored.tools_list_changed
        or honored.prompts_list_changed
        or honored.resources_list_changed
        or honored.resource_subscriptions
    )


async def _acknowledge(ctx: Context, honored: t.SubscriptionFilter, meta: dict[str, Any]) -> None:
    params = t.SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=meta)
    note = t.SubscriptionsAcknowledgedNotification(params=params)
    await ctx.session.send_notification(note, related_request_id=ctx.request_id)
