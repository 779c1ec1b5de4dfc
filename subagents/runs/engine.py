"""The loop of a run: load its records, do the one step that they call for, commit it, look again.

Nothing about a run lives in this process but the request that is on its way. So a run goes on after a
crash wherever its records stand, in whatever worker takes the lease, and a run that waits for a person
costs a row. A tool call is written down as started before it is made; found started by somebody else,
it is looked up in the records of calls, never simply repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog
from django.db import OperationalError

from mcpregistry.calls.engine import Engine
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.waiting import Watch
from mcpregistry.db import db_call, reckoned_now
from mcpregistry.domain.calls.requester import Requester
from mcpregistry.domain.errors import Busy, SlipsnisseError
from mcpregistry.failpoints import failpoint
from mcpregistry.models.feed import CALLS
from mcpregistry.prepared_queries import Given, Select
from subagents.domain.lifecycle import Exit, RunState
from subagents.domain.steps import AskModel, Conclude, FindOut, RunCalls, Step, WaitForPeople, next_step
from subagents.llm import client
from subagents.models import RUN_TOPIC, Run
from subagents.runs import concluding, lease, records, tool_calls
from subagents.runs.model_turn import Complete, Thinking
from subagents.runs.patience import AWAY, patiently
from subagents.runs.toolbox import Toolbox
from subagents.runs.views import RunView, view
from subagents.services import runs

log = structlog.get_logger(__name__)

_BEAT = 0.5  # seconds until a database that is away is asked again
_PARTING = 2.0  # seconds to give a run back
_CRASHED = "The run failed inside the control plane. The operator finds the reason in the log."


@dataclass(frozen=True, slots=True)
class Held:
    """A run under our lease: everything that a step needs."""

    lease: lease.Lease
    view: RunView
    tools: Toolbox


class RunEngine:
    """One per worker process, on its event loop. ``wake`` may be called as often as one likes."""

    def __init__(self, engine: Engine, worker: str, *, complete: Complete = client.complete) -> None:
        self._engine = engine
        self._worker = worker
        self._thinking = Thinking(complete)
        self._driving: dict[str, asyncio.Task[bool]] = {}
        self._wishes: Watch[bool] = Watch(engine.feed, RUN_TOPIC, _wishes)
        self._decided: Decided | None = None

    def start(self) -> None:
        """Look at runs as soon as people have decided about their calls. Call it on the loop's thread."""
        self._decided = Decided(self._engine.feed, self.wake)

    def wake(self, run_id: str) -> None:
        """Look at the run soon. Call it on the loop's thread."""
        if run_id in self._driving:
            return
        task = asyncio.ensure_future(self.drive(run_id))
        self._driving[run_id] = task
        task.add_done_callback(partial(self._left, run_id))

    def _left(self, run_id: str, task: asyncio.Task[bool]) -> None:
        self._driving.pop(run_id, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.warning("run.given_back", run=run_id, exc_info=error)  # the clock finds it again
        elif task.result():
            self.wake(run_id)  # taken from us, perhaps for us: what we were told meanwhile is not lost

    async def stop(self) -> None:
        """Give up what is being worked on; other workers go on when the leases end."""
        if self._decided is not None:
            self._decided.stop()
        tasks = list(self._driving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drive(self, run_id: str) -> bool:
        """Do steps until the run has ended, sleeps, or belongs to somebody else. True: it was taken from us."""
        taken = await db_call(lease.take, run_id, worker=self._worker)
        if taken is None:
            return False
        failpoint("run_leased")
        try:
            await self._held(taken)
        except lease.LostLease:
            log.info("run.lost", run=run_id)
            await _give_back(taken)  # of no effect unless it is ours still
            return True
        except (asyncio.CancelledError, Busy, *AWAY):
            await _give_back(taken)
            raise
        except Exception:
            log.exception("run.crashed", run=run_id)
            with suppress(lease.LostLease):
                await db_call(records.finish, taken, state=RunState.FAILED, exit=Exit.CRASHED, error=_CRASHED)
        return False

    async def _held(self, taken: lease.Lease) -> None:
        """All steps, with the lease kept alive beside them; a wish to cancel ends model request and tool call."""
        steps = asyncio.ensure_future(self._steps(taken))
        pulse = asyncio.ensure_future(_pulse(taken, self._wishes))
        try:
            await asyncio.wait({steps, pulse}, return_when=asyncio.FIRST_COMPLETED)
            if steps.done():
                return steps.result()
            pulse.result()  # raises LostLease, or what kept it from being renewed
            steps.cancel()
            await asyncio.gather(steps, return_exceptions=True)
            await patiently(partial(_cancelled, taken))
        finally:
            for task in (steps, pulse):
                task.cancel()
            await asyncio.gather(steps, pulse, return_exceptions=True)

    async def _steps(self, taken: lease.Lease) -> None:
        """A step bears being begun again, whatever the one before it came to: a worker may die in any."""
        who = await patiently(partial(db_call, _identity, taken.run))
        while await patiently(partial(self._step, taken, who)):
            pass

    async def _step(self, taken: lease.Lease, who: _Identity) -> bool:
        """True: look again at once. False: the run has ended or sleeps."""
        try:
            tools = await self._tools(taken, who)
        except SlipsnisseError as error:
            await db_call(records.finish, taken, state=RunState.FAILED, exit=Exit.TOOL, error=str(error))
            return False
        seen = await db_call(view, taken.run, now=reckoned_now(), read_only=tools.read_only)
        if seen.cancel_requested:
            await _cancelled(taken)
            return False
        return await self._do(Held(taken, seen, tools), next_step(seen.spec, seen.turns, seen.spent, seen.final))

    async def _tools(self, taken: lease.Lease, who: _Identity) -> Toolbox:
        if who.agent not in self._engine.live.current.agents:  # perhaps made a moment ago
            await db_call(self._engine.live.refresh)
        catalogue = self._engine.run_catalogue(who.agent)
        return Toolbox(self._engine, catalogue, run=taken.run, expert=who.expert, requester=who.requester)

    async def _do(self, held: Held, step: Step) -> bool:
        match step:
            case AskModel():
                return await self._thinking.turn(held.lease, held.view, held.tools, step.final)
            case RunCalls():
                return await tool_calls.make(held.lease, held.view, held.tools, step.calls)
            case FindOut():
                return await tool_calls.find_out(held.lease, held.view, held.tools, step.calls)
            case WaitForPeople():
                return await tool_calls.look_at_waiting(held.lease, held.view, held.tools, step.calls)
            case Conclude():
                return await concluding.conclude(held.lease, held.view, held.tools, step.exit, self._thinking)


_ONE = Run.objects.filter(id=Given("id"))
_WHO = Select(_ONE.values_list("version__expert__agent__slug", "expert_name", "requester_id", "requester", named=True))


class _Identity(NamedTuple):
    """As which agent a run's calls are made, for which expert tool, and for whom."""

    agent: str
    expert: str
    requester: Requester


async def _pulse(taken: lease.Lease, wishes: Watch[bool]) -> None:
    """Keep the lease; returns when the run shall be cancelled. Raises LostLease.

    Nothing is asked between renewals: the feed tells of a wish to cancel. A database that is away is asked again,
    until the lease would soon be somebody else's: then raises what it said.
    """
    safe = (lease.LEASE - lease.AT_RISK).total_seconds()
    renewed, pause = time.monotonic(), lease.RENEW_EVERY
    while not await wishes.until_not(taken.run, False, pause):
        now = time.monotonic()
        try:
            async with asyncio.timeout(renewed + safe - now):
                run = await db_call(lease.renew, taken)
        except (TimeoutError, *AWAY) as error:
            if time.monotonic() < renewed + safe:
                pause = _BEAT
                continue
            raise OperationalError("The run's lease could not be renewed.") from error
        renewed, pause = now, lease.RENEW_EVERY
        if run.cancel_requested:
            return


def _wishes(run_ids: list[str]) -> dict[str, bool]:
    """Whether somebody wants them to stop."""
    return dict(Run.objects.filter(pk__in=run_ids).values_list("pk", "cancel_requested"))


class Decided:
    """Wakes runs that sleep for people when one of their held calls has ended, wherever that was written."""

    def __init__(self, feed: Feed, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._end = feed.hear(CALLS, lambda _: self._loop.call_soon_threadsafe(self._news.set))
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
                for run_id in await db_call(runs.decided):
                    self._wake(run_id)
            except Exception:  # the database may be away; the clock looks as well
                log.exception("runs.decided_unread")


async def _give_back(taken: lease.Lease) -> None:
    """At worst the lease runs out by itself: the process ends, or the database is away."""
    with suppress(Exception):
        async with asyncio.timeout(_PARTING):
            await asyncio.shield(db_call(lease.release, taken))


def _identity(run_id: str) -> _Identity:
    agent, expert, key, name = _WHO.get(id=run_id)
    return _Identity(agent, expert, Requester(key, name))


async def _cancelled(taken: lease.Lease) -> None:
    await db_call(tool_calls.settle_started, taken.run)
    await db_call(records.finish, taken, state=RunState.CANCELLED, exit=Exit.CANCELLED, error="It was cancelled.")
