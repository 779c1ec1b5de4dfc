"""Tell connected hosts, of both protocol eras, when what they see has changed.

A host is told only if its own list differs: every caller has its own stream of events. Modern hosts
hold a ``subscriptions/listen`` stream; older ones a session to which we push.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from mcp import types as t
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

from mcpregistry.calls.engine import Engine
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.offer_kinds import KINDS, PROMPT, RESOURCE, TEMPLATE, TOOL
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.listen_streams import ListenStreams

Push = Callable[[Connection], Awaitable[None]]
MOST_OWN = 256  # streams of one agent on one endpoint that hear of resources
_TICK = 0.5  # seconds between looks for grants that ran out

# How hosts of the modern and of the older era are told, by kind.
_TOLD: Mapping[str, tuple[type[Any], Push]] = {
    TOOL: (ToolsListChanged, Connection.send_tool_list_changed),
    PROMPT: (PromptsListChanged, Connection.send_prompt_list_changed),
    RESOURCE: (ResourcesListChanged, Connection.send_resource_list_changed),
    TEMPLATE: (ResourcesListChanged, Connection.send_resource_list_changed),
}


@dataclass
class _Audience:
    """The hosts of one caller, and the lists that they were last told of, by kind."""

    versions: dict[str, str]
    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    sessions: WeakSet[Connection] = field(default_factory=WeakSet)

    def __post_init__(self) -> None:
        self.streams = ListenStreams(self.bus)


class ListChanges:
    """Tells the hosts of this process when their lists have changed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._audiences: dict[tuple[str, str], _Audience] = {}
        # that hear of resources as well, with agent and endpoint
        self._own: dict[ListenStreams, tuple[str, str]] = {}
        self._task: asyncio.Task[None] | None = None
        # notifications that wait for each older host
        self._due: dict[Connection, dict[Push, None]] = {}
        self._pushing: set[asyncio.Task[None]] = set()
        self._look = asyncio.Event()
        self.closing: list[Callable[[], None]] = []  # other streams that end with ours

    def start(self) -> None:
        """Begin to follow the configuration; to be called on the event loop."""
        loop = asyncio.get_running_loop()

        def schedule_look(_: Snapshot) -> None:
            loop.call_soon_threadsafe(self._look.set)

        self._engine.live.listeners.append(schedule_look)
        self._task = loop.create_task(self._watch())

    def close(self) -> None:
        """End every listen stream gracefully; hosts learn at once that we are going."""
        for task in [self._task, *self._pushing]:
            if task is not None:
                task.cancel()
        for audience in self._audiences.values():
            audience.streams.close()
        for streams in self._own:
            streams.close()
        for close in self.closing:
            close()

    def get_bus(self, caller: Caller) -> InMemorySubscriptionBus:
        """Where this caller's changes are told, for a stream that carries more than these."""
        return self._get_audience(caller).bus

    async def listen(
        self,
        caller: Caller,
        ctx: ServerRequestContext[Any, Any],
        params: t.SubscriptionsListenRequestParams,
        bus: InMemorySubscriptionBus | None = None,
    ) -> t.SubscriptionsListenResult:
        """The handler of ``subscriptions/listen``: stays open until the host leaves or ``close``.
        ``get_bus``: the stream's own, where it hears of more than its caller's lists.
        """
        if bus is None:
            return await self._get_audience(caller).streams.serve(ctx, params)
        whose = (caller.agent, caller.endpoint)
        if sum(each == whose for each in self._own.values()) >= MOST_OWN:
            raise MCPError(t.INTERNAL_ERROR, "Too many streams are open. Close a stream first.")
        streams = ListenStreams(bus)
        self._own[streams] = whose
        try:
            return await streams.serve(ctx, params)
        finally:
            self._own.pop(streams, None)

    def remember(self, caller: Caller, connection: Connection) -> None:
        """A host of the older era has finished its handshake."""
        self._get_audience(caller).sessions.add(connection)

    def mark_outdated(self, caller: Caller) -> None:
        """This caller was shown a list of tools that is not true any more: tell its hosts at the
        next look."""
        self._get_audience(caller).versions[TOOL] = "outdated"
        self._look.set()

    def _get_audience(self, caller: Caller) -> _Audience:
        key = (caller.endpoint, caller.agent)
        if key not in self._audiences:
            self._audiences[key] = _Audience(self._read_versions(key))
        return self._audiences[key]

    def _read_versions(self, key: tuple[str, str]) -> dict[str, str]:
        try:
            catalogue = self._engine.get_catalogue(*key)
        except SlipsnisseError:
            return dict.fromkeys(KINDS, "")  # endpoint or agent is gone: the lists are empty now
        return {kind: catalogue.get_kind(kind).version for kind in KINDS}

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):  # now and then, to notice grants that ran out
                await asyncio.wait_for(self._look.wait(), _TICK)
            self._look.clear()
            for key, audience in list(self._audiences.items()):
                versions = self._read_versions(key)
                before = audience.versions
                audience.versions = versions
                for kind in KINDS:
                    if versions[kind] != before[kind]:
                        await self._notify_audience(audience, kind)

    async def _notify_audience(self, audience: _Audience, kind: str) -> None:
        event, push = _TOLD[kind]
        await audience.bus.publish(event())
        for connection in list(audience.sessions):
            self._queue_push(push, connection)

    def _queue_push(self, push: Push, connection: Connection) -> None:
        """Notify an older host. A host that does not read does not delay the others. It gets one
        notification for each list when it reads again."""
        if (due := self._due.get(connection)) is not None:
            due[push] = None
            return
        self._due[connection] = {push: None}
        task = asyncio.ensure_future(self._send_due(connection))
        self._pushing.add(task)
        task.add_done_callback(self._pushing.discard)

    async def _send_due(self, connection: Connection) -> None:
        due = self._due[connection]
        try:
            while due:
                push = next(iter(due))
                del due[push]
                await push(connection)
        finally:
            del self._due[connection]
