"""Tasks that servers make of our calls: adopted, followed by polling, and told to hosts as tasks of
ours.

The host gets a handle of our own; the server's id never leaves. One asyncio task follows each
server's task in the process that made the call; when that process dies, any other takes over,
because all progress is in the rows (``services/tasks/remote_tasks.py``). What hosts say meanwhile
(answers, cancel) comes by the rows too, so it does not matter which process they say it to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from mcpregistry.calls.call import Call
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import (
    AS_TASK,
    QUESTIONS,
    Forwarding,
    list_unsupported_questions,
)
from mcpregistry.domain.errors import (
    ConnectionFailed,
    DownstreamError,
    InputNeeded,
    ProtocolError,
    SlipsnisseError,
    TimedOut,
    ToolRefused,
)
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.repairs import repair_result
from mcpregistry.models.feed import TASKS
from mcpregistry.services.tasks import remote_tasks
from mcpregistry.services.tasks.remote_tasks import FollowedTask, HostRequest, Lost

log = structlog.get_logger(__name__)

_TICK = 1.0  # seconds between looks at the two clocks below
RENEW = 4.0  # seconds between renewals of the leases
SEARCH = 3.0  # seconds between searches for tasks that nobody follows
LONGEST_PAUSE = 10.0  # seconds between two questions to a server, whatever it wishes
MAX_ID = 1024
_SLACK_MS = 60_000
_FIRST_RETRY = 0.5
_LONGEST_RETRY = 15.0


def choose_forwarding(call: Call) -> Forwarding:
    """What of the host goes to the server. What people approved is not added to: no questions, no
    answers."""
    forwarding = call.request.host.forwarding.allow_questions(call.entry.offer.server.questions)
    if not call.entry.offer.server.mcp_apps:
        forwarding = forwarding.drop_apps()
    if call.entry.offer.server.shared_by != "everybody":
        forwarding = forwarding.drop_tasks()  # a task outlives the session that knows it
    return forwarding if call.decision.outcome is RuleOutcome.ALLOW else forwarding.drop_questions()


def check_result_kind(result: Mapping[str, Any], forwarding: Forwarding) -> None:
    """Only what the host declared that it can bear reaches it. Raises ProtocolError or InputNeeded
    (sent)."""
    kind = result.get("resultType", "complete")
    if kind == "complete" or (kind == "task" and forwarding.tasks):
        return
    if kind != "input_required":
        message = f'The server answered with a result of the type "{clean_text(str(kind), 40)}", which was not requested.'
        raise ProtocolError(message, sent=True)
    requests = result.get("inputRequests")
    missing = (
        list_unsupported_questions(requests, forwarding.capabilities)
        if isinstance(requests, dict)
        else []
    )
    if missing or not forwarding.capabilities.keys() & set(QUESTIONS.values()):
        raise InputNeeded(
            f"The server asks a question that this host cannot answer{(': ' + ', '.join(missing)) if missing else ''}.",
            remedy="Use a host that can answer questions of servers. If a rule with the decision “ask” matches the call, the server cannot ask the host.",
        )


class Adoption:
    """All tasks of servers that this process follows."""

    def __init__(self, pool: Pool, feed: Feed) -> None:
        self._pool = pool
        self._wishes = StateWatch(feed, TASKS, remote_tasks.load_host_wishes)
        self._followers: dict[str, _Follower] = {}
        self._watcher: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for tasks whose process has died, and for what hosts say."""
        self._watcher = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        """Hand what can be followed elsewhere to whoever comes; the rest dies with our server
        processes."""
        followers = list(self._followers.values())
        tasks = [each.work for each in followers] + ([self._watcher] if self._watcher else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in followers:
            with contextlib.suppress(Exception):  # the lease runs out by itself
                await each.hand_over()

    async def __call__(self, call: Call, made: Mapping[str, Any], forwarding: Forwarding) -> str:
        """The server answered the dispatched call with a task: follow it. Returns the id of our
        handle for it.

        Raises DownstreamError (sent) when it cannot be adopted.
        """
        try:
            followed = await self._record_task(call, made)
        except DownstreamError:
            raise
        except SlipsnisseError as error:
            raise DownstreamError(error.message, remedy=error.remedy, sent=True) from error
        self._follow(followed, forwarding)
        return followed.task_id

    async def _record_task(self, call: Call, made: Mapping[str, Any]) -> FollowedTask:
        task_id = made.get("taskId")
        catalogue = call.request.catalogue
        if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_ID:
            raise ProtocolError("The server created a task without a valid id.", sent=True)
        return await db_call(
            remote_tasks.adopt_task,
            call_id=call.id,
            fence=call.fence,
            agent=catalogue.agent.slug,
            endpoint=catalogue.endpoint.slug,
            server_id=call.entry.offer.server.id,
            downstream_id=task_id,
            ttl_ms=_read_ttl(made),
            poll_ms=_read_poll_interval(made),
            message=_read_status_message(made),
        )

    def _follow(self, followed: FollowedTask, forwarding: Forwarding) -> None:
        follower = _Follower(self._pool, self._wishes, followed, forwarding)
        self._followers[followed.task_id] = follower
        follower.work.add_done_callback(lambda _: self._forget_follower(follower))

    def _forget_follower(self, follower: _Follower) -> None:
        """Its own entry alone: after a stall we may have taken the task over from ourselves."""
        if self._followers.get(follower.followed.task_id) is follower:
            del self._followers[follower.followed.task_id]

    async def _watch(self) -> None:
        renewed = 0.0
        searched = 0.0
        while True:
            try:
                now = time.monotonic()
                if self._followers and now - renewed >= RENEW:
                    await self._renew()
                    renewed = now
                if now - searched >= SEARCH:
                    await self._take_over()
                    searched = now
            except Exception:  # the database may be away; the next look comes soon
                log.exception("tasks.watch_failed")
            await asyncio.sleep(_TICK)

    async def _renew(self) -> None:
        ours = [each.followed for each in self._followers.values()]
        for task_id in await db_call(remote_tasks.renew_task_leases, ours):
            if follower := self._followers.get(task_id):
                follower.work.cancel()

    async def _take_over(self) -> None:
        for task_id in await db_call(remote_tasks.list_orphaned_tasks):
            followed = await db_call(remote_tasks.take_over_task, task_id=task_id)
            if followed is not None:
                log.info("task.taken_over", task=task_id[:8], call=followed.call_id)
                self._follow(followed, AS_TASK)


class _Follower:
    """Follows one task to its end."""

    def __init__(
        self,
        pool: Pool,
        wishes: StateWatch[HostRequest],
        followed: FollowedTask,
        forwarding: Forwarding,
    ) -> None:
        self._pool = pool
        self._wishes = wishes
        self.followed = followed
        self._forwarding = forwarding
        self._wish = HostRequest({}, cancel=False)
        self._cancel_sent = False
        self.work = asyncio.ensure_future(self._run())
        if not followed.remote:  # its process is all that knows of the task
            release = pool.hold(followed.server_id)
            self.work.add_done_callback(lambda _: release())

    async def hand_over(self) -> None:
        """This process ends. A task on stdio ends with the server's process."""
        if self.followed.remote:
            await db_call(remote_tasks.release_task, followed=self.followed)
        else:
            await self._end(
                InvocationState.UNKNOWN,
                "SITE_STOPPED",
                "The site stopped before the server's task ended.",
            )

    async def _run(self) -> None:
        failing_since = 0.0
        retry = _FIRST_RETRY
        while True:
            pause = retry
            try:
                await self._pass_on()
                seen = await self._ask("tasks/get")
                if await self._record_status(seen):
                    return
                pause = self._compute_pause(seen)
                retry = _FIRST_RETRY
                failing_since = 0.0
            except (Lost, asyncio.CancelledError):
                return
            except SlipsnisseError as error:
                failing_since = failing_since or time.monotonic()
                if self._is_hopeless(error, failing_since):
                    await self._give_up(error)
                    return
                retry = min(retry * 2, _LONGEST_RETRY)
            except Exception:  # the database, perhaps; the rows say where to go on
                log.exception("task.not_followed", call=self.followed.call_id)
                retry = min(retry * 2, _LONGEST_RETRY)
            # Sooner only for a wish that is new: one that a dead server did not take waits its time
            # like the rest.
            self._wish = await self._wishes.wait_for_change(
                self.followed.task_id, self._wish, pause
            )

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        it = self.followed
        return await self._pool.request_task(
            it.server_id, method, it.downstream_id, params, host=self._forwarding
        )

    async def _pass_on(self) -> None:
        """What the host has said, to the server; answers stay kept until it has taken them."""
        wish = self._wish
        if wish.cancel and not self._cancel_sent:
            await self._ask("tasks/cancel")
            self._cancel_sent = True
        if wish.responses:
            await self._ask("tasks/update", inputResponses=dict(wish.responses))
            await db_call(
                remote_tasks.record_passed_answers,
                task_id=self.followed.task_id,
                keys=list(wish.responses),
            )
            self._wish = HostRequest({}, wish.cancel)

    async def _record_status(self, seen: Mapping[str, Any]) -> bool:
        """Keep what the server says. True when that was the end."""
        status = seen.get("status")
        if status in ("working", "input_required"):
            await self._record_progress(seen)
            return False
        if status == "completed" and isinstance(result := seen.get("result"), dict):
            result = repair_result(result)
            state = (
                InvocationState.TOOL_ERROR if result.get("isError") else InvocationState.SUCCEEDED
            )
            await self._end(state, outcome={"result": result})
        elif status == "failed" and isinstance(error := seen.get("error"), dict):
            told = _build_rpc_error(error)
            await self._end(
                InvocationState.TOOL_ERROR,
                ToolRefused.code,
                told["message"],
                outcome={"error": told},
            )
        elif status == "cancelled" and self._cancel_sent:
            await self._end(
                InvocationState.UNKNOWN,
                "CANCELLED",
                "The caller cancelled the task while it was running.",
            )
        elif status == "cancelled":
            await self._end(
                InvocationState.UNKNOWN,
                "TASK_CANCELLED",
                "The server cancelled its task. Check what it has done.",
            )
        else:
            reason = "The server reported an invalid status of its task. Check what it has done."
            await self._end(InvocationState.UNKNOWN, ProtocolError.code, reason)
        return True

    async def _record_progress(self, seen: Mapping[str, Any]) -> None:
        requests = seen.get("inputRequests") if seen.get("status") == "input_required" else None
        asked = requests if isinstance(requests, dict) else {}
        if (
            missing := list_unsupported_questions(asked, self._forwarding.capabilities)
            if self._forwarding is not AS_TASK
            else []
        ):
            with contextlib.suppress(SlipsnisseError):
                await self._ask("tasks/cancel")
            raise ProtocolError(
                f"The server's task asks a question that this host cannot answer: {', '.join(missing)}.",
                remedy="Use a host that can answer questions of servers.",
                sent=True,
            )
        await db_call(
            remote_tasks.record_task_status,
            followed=self.followed,
            message=_read_status_message(seen),
            requests=asked,
            poll_ms=_read_poll_interval(seen),
        )

    @staticmethod
    def _compute_pause(seen: Mapping[str, Any]) -> float:
        """As the server wishes, within reason."""
        return max(min(_read_poll_interval(seen) / 1000, LONGEST_PAUSE), 0.05)

    def _is_hopeless(self, error: SlipsnisseError, failing_since: float) -> bool:
        it = self.followed
        if isinstance(error, ToolRefused | ProtocolError):
            return True  # it answers, and knows the task no more
        if isinstance(error, ConnectionFailed) and not it.remote:
            return True  # the process that had the task is gone
        late = it.deadline is not None and datetime.now(UTC) > it.deadline
        return late or timedelta(seconds=time.monotonic() - failing_since) > remote_tasks.PATIENCE

    async def _give_up(self, error: SlipsnisseError) -> None:
        code = TimedOut.code if isinstance(error, TimedOut) else "TASK_LOST"
        reason = (
            f"The status of the server's task is no longer available: {error.message} "
            "Check what it has done before you repeat the call."
        )
        await self._end(InvocationState.UNKNOWN, code, reason)

    async def _end(
        self,
        state: InvocationState,
        code: str = "",
        reason: str = "",
        outcome: Mapping[str, Any] | None = None,
    ) -> None:
        await db_call(
            remote_tasks.finish_task,
            followed=self.followed,
            state=state,
            code=code,
            reason=reason,
            outcome=outcome,
        )


def _read_poll_interval(said: Mapping[str, Any]) -> int:
    value = said.get("pollIntervalMs")
    return value if type(value) is int and value > 0 else 1_000


def _read_ttl(said: Mapping[str, Any]) -> int | None:
    value = said.get("ttlMs")
    return value + _SLACK_MS if type(value) is int and 0 < value < 2**53 else None


def _read_status_message(said: Mapping[str, Any]) -> str:
    value = said.get("statusMessage")
    return value if isinstance(value, str) else ""


def _build_rpc_error(error: Mapping[str, Any]) -> dict[str, Any]:
    code = error.get("code")
    message = error.get("message")
    told = {
        "code": code if type(code) is int else -32603,
        "message": message if isinstance(message, str) else "",
    }
    return told | ({"data": error["data"]} if "data" in error else {})
