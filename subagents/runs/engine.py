"""The loop of a run: load its records, do the one step that they call for, commit it, look again.

Nothing about a run lives in this process but the request that is on its way. So a run goes on after
a crash wherever its records stand, in whatever worker takes the lease, and a run that waits for a
person costs a row. A tool call is written down as started before it is made; found started by
somebody else, it is looked up in the records of calls, never simply repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog

from mcpregistry.calls.engine import Engine
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call, estimate_database_now
from mcpregistry.domain.calls.requester import Requester
from mcpregistry.domain.errors import NotFound, SlipsnisseError
from mcpregistry.failpoints import failpoint
from mcpregistry.models.feed import CALLS
from mcpregistry.prepared_queries import Given, Select
from subagents.domain.lifecycle import Exit, RunState
from subagents.domain.next_steps import (
    AskModel,
    Conclude,
    FindOut,
    RunCalls,
    Step,
    WaitForPeople,
    next_step,
    only_reads,
)
from subagents.leased.database_retry import retry_while_unavailable
from subagents.leased.driver import Driver
from subagents.leased.leases import Lease
from subagents.llm import client
from subagents.models import RUN_TOPIC, Run
from subagents.runs import conclusion, lease, records, tool_calls
from subagents.runs.model_turn import Complete, Thinking
from subagents.runs.run_views import RunView, view
from subagents.runs.toolbox import Toolbox
from subagents.services import runs

log = structlog.get_logger(__name__)

_AHEAD = 4  # servers that are started for a run before it calls them
_CRASHED = "The run failed because of an internal error. See the log of the worker for the reason."


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run under our lease: everything that a step needs."""

    lease: Lease
    view: RunView
    tools: Toolbox


class RunEngine(Driver[bool]):
    """One per worker process, on its event loop. ``wake`` may be called as often as one likes.

    A wish to cancel ends model request and tool call.
    """

    kind = "run"

    def __init__(
        self, engine: Engine, worker: str, *, complete: Complete = client.complete
    ) -> None:
        super().__init__(StateWatch(engine.feed, RUN_TOPIC, _read_cancel_requests), False)
        self._engine = engine
        self._worker = worker
        self._thinking = Thinking(complete)
        self._decided: Decided | None = None

    def start(self) -> None:
        """Look at runs as soon as people have decided about their calls. Call it on the loop's
        thread."""
        self._decided = Decided(self._engine.feed, self.wake)

    async def stop(self) -> None:
        """Give up what is being worked on; other workers go on when the leases end."""
        if self._decided is not None:
            self._decided.stop()
        await super().stop()

    async def take(self, key: str) -> Lease | None:
        """The run's lease."""
        taken = await db_call(lease.take, key, worker=self._worker)
        if taken is not None:
            failpoint("run_leased")
        return taken

    async def renew(self, taken: Lease) -> bool:
        """Whether it shall be cancelled."""
        return bool((await db_call(lease.renew, taken)).cancel_requested)

    async def release(self, taken: Lease) -> None:
        """Give the run back."""
        await db_call(lease.release, taken)

    async def fulfil(self, taken: Lease, wish: bool) -> None:
        """Cancel it."""
        await _cancel_run(taken)

    async def handle_crash(self, taken: Lease) -> None:
        """It failed."""
        await db_call(
            records.finish, taken, state=RunState.FAILED, exit=Exit.CRASHED, error=_CRASHED
        )

    async def work(self, taken: Lease) -> None:
        """A step bears being begun again, whatever the one before it came to: a worker may die in
        any."""
        who = await retry_while_unavailable(partial(db_call, _identity, taken.key))
        if not client.is_loaded():  # the first turn waits for that, and servers can start meanwhile
            with suppress(NotFound):  # its agent was made a moment ago
                self._engine.connect_ahead(self._engine.get_run_catalogue(who.agent), _AHEAD)
        while await retry_while_unavailable(partial(self._do_step, taken, who)):
            pass

    async def _do_step(self, taken: Lease, who: _Identity) -> bool:
        """True: look again at once. False: the run has ended or sleeps."""
        try:
            tools = await self._load_tools(taken, who)
        except SlipsnisseError as error:
            await db_call(
                records.finish, taken, state=RunState.FAILED, exit=Exit.TOOL, error=str(error)
            )
            return False
        seen = await db_call(
            view, taken.key, now=estimate_database_now(), read_only=tools.read_only
        )
        if seen.cancel_requested:
            await _cancel_run(taken)
            tools.leave()
            return False
        joins = tools.joins if seen.spec.parallel else only_reads
        return await self._do(
            HeldRun(taken, seen, tools),
            next_step(seen.spec, seen.turns, seen.spent, seen.final, joins),
        )

    async def _load_tools(self, taken: Lease, who: _Identity) -> Toolbox:
        if who.agent not in self._engine.live.current.agents:  # perhaps made a moment ago
            await db_call(self._engine.live.refresh)
        catalogue = self._engine.get_run_catalogue(who.agent)
        if who.sees:
            catalogue = catalogue.narrow_to_servers(who.sees)
        return Toolbox(
            self._engine,
            catalogue,
            run=taken.key,
            expert=who.expert,
            requester=who.requester,
            conversation=who.conversation,
            payers=who.payers,
        )

    async def _do(self, held: HeldRun, step: Step) -> bool:
        match step:
            case AskModel():
                return await self._thinking.turn(held.lease, held.view, held.tools, step.final)
            case RunCalls():
                return await tool_calls.make(held.lease, held.view, held.tools, step.calls)
            case FindOut():
                return await tool_calls.find_out(held.lease, held.view, held.tools, step.calls)
            case WaitForPeople():
                return await tool_calls.look_at_waiting(
                    held.lease, held.view, held.tools, step.calls
                )
            case Conclude():
                more = await conclusion.conclude(
                    held.lease, held.view, held.tools, step.exit, self._thinking
                )
                if not more:
                    held.tools.leave()
                return more


_ONE = Run.objects.filter(id=Given("id"))
_WHO = Select(
    _ONE.values_list(
        "version__expert__agent__slug",
        "expert_name",
        "requester_id",
        "requester",
        "conversation_id",
        "conversation__agent__slug",
        "conversation__servers",
        "payers",
        named=True,
    )
)


class _Identity(NamedTuple):
    """As which agent a run's calls are made, for which expert tool, for whom, and in which
    conversation."""

    agent: str
    expert: str
    requester: Requester
    conversation: str
    # the agents whose calls have led to it, and the endpoint by which they came
    payers: tuple[str, ...]
    # to which servers a conversation of that very agent is narrowed; empty: to none
    sees: frozenset[str]


def _read_cancel_requests(run_ids: list[str]) -> dict[str, bool]:
    """Whether somebody wants them to stop."""
    return dict(Run.objects.filter(pk__in=run_ids).values_list("pk", "cancel_requested"))


class Decided:
    """Wakes runs that sleep for people when one of their held calls has ended, wherever that was
    written."""

    def __init__(self, feed: Feed, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._end = feed.subscribe(CALLS, lambda _: self._loop.call_soon_threadsafe(self._news.set))
        self._looking = asyncio.ensure_future(self._look())

    def stop(self) -> None:
        """Listen no more; what it has woken goes on."""
        self._end()
        self._looking.cancel()

    async def _look(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                for run_id in await db_call(runs.wake_decided_runs):
                    self._wake(run_id)
            except Exception:  # the database may be away; the clock looks as well
                log.exception("runs.decided_unread")


def _identity(run_id: str) -> _Identity:
    agent, expert, key, name, conversation, speaker, servers, payers = _WHO.get(id=run_id)
    sees = frozenset(servers or ()) if speaker == agent else frozenset()
    return _Identity(
        agent, expert, Requester(key, name), conversation or "", tuple(payers.split()), sees
    )


async def _cancel_run(taken: Lease) -> None:
    await tool_calls.wait_until_recorded(taken.key)
    await db_call(tool_calls.settle_started, taken.key)
    await db_call(
        records.finish,
        taken,
        state=RunState.CANCELLED,
        exit=Exit.CANCELLED,
        error="The run was cancelled.",
    )
