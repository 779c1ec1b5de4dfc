"""The loop of a run: load its records, do the one step that they call for, commit it, look again.

Nothing about a run lives in this process but the request that is on its way. So a run goes on after a
crash wherever its records stand, in whatever worker takes the lease, and a run that waits for a person
costs a row. A tool call is written down as started before it is made; found started by somebody else,
it is looked up in the records of calls, never simply repeated.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import structlog
from django.utils import timezone

from mcpregistry.calls.engine import Engine
from mcpregistry.composed import Given, Select
from mcpregistry.db import db_call
from mcpregistry.domain.errors import Busy, SlipsnisseError
from mcpregistry.failpoints import failpoint
from subagents.domain.lifecycle import Exit, RunState
from subagents.domain.steps import AskModel, Conclude, FindOut, RunCalls, Step, WaitForPeople, next_step
from subagents.llm import client
from subagents.models import Run
from subagents.runs import calling, concluding, lease, records
from subagents.runs.thinking import Complete, Thinking
from subagents.runs.toolbox import Toolbox
from subagents.runs.views import RunView, view

log = structlog.get_logger(__name__)

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
        self._driving: dict[str, asyncio.Task[None]] = {}

    def wake(self, run_id: str) -> None:
        """Look at the run soon. Call it on the loop's thread."""
        if run_id in self._driving:
            return
        task = asyncio.ensure_future(self.drive(run_id))
        self._driving[run_id] = task
        task.add_done_callback(partial(self._left, run_id))

    def _left(self, run_id: str, task: asyncio.Task[None]) -> None:
        self._driving.pop(run_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("run.given_back", run=run_id, exc_info=error)  # the clock finds it again

    async def stop(self) -> None:
        """Give up what is being worked on; other workers go on when the leases end."""
        tasks = list(self._driving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drive(self, run_id: str) -> None:
        """Do steps until the run has ended, sleeps, or belongs to somebody else."""
        taken = await db_call(lease.take, run_id, worker=self._worker)
        if taken is None:
            return
        failpoint("run_leased")
        try:
            who = await db_call(_identity, run_id)
            while await self._cancellable(taken, who):
                pass
        except lease.LostLease:
            log.info("run.lost", run=run_id)
        except (asyncio.CancelledError, Busy):
            with suppress(Exception):  # the process ends; at worst the lease runs out by itself
                await asyncio.shield(db_call(lease.release, taken))
            raise
        except Exception:
            log.exception("run.crashed", run=run_id)
            with suppress(lease.LostLease):
                await db_call(records.finish, taken, state=RunState.FAILED, exit=Exit.CRASHED, error=_CRASHED)

    async def _cancellable(self, taken: lease.Lease, who: tuple[str, str]) -> bool:
        """One step, with the lease kept alive beside it; a wish to cancel ends model request and tool call."""
        step = asyncio.ensure_future(self._step(taken, who))
        pulse = asyncio.ensure_future(_pulse(taken))
        try:
            await asyncio.wait({step, pulse}, return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                return step.result()
            pulse.result()  # raises LostLease
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            await _cancelled(taken)
            return False
        finally:
            for task in (step, pulse):
                task.cancel()
            await asyncio.gather(step, pulse, return_exceptions=True)

    async def _step(self, taken: lease.Lease, who: tuple[str, str]) -> bool:
        """True: look again at once. False: the run has ended or sleeps."""
        try:
            tools = await self._tools(taken, *who)
        except SlipsnisseError as error:
            await db_call(records.finish, taken, state=RunState.FAILED, exit=Exit.TOOL, error=str(error))
            return False
        seen = await db_call(view, taken.run, now=timezone.now(), read_only=tools.read_only)
        if seen.cancel_requested:
            await _cancelled(taken)
            return False
        return await self._do(Held(taken, seen, tools), next_step(seen.spec, seen.turns, seen.spent, seen.final))

    async def _tools(self, taken: lease.Lease, agent: str, expert: str) -> Toolbox:
        if agent not in self._engine.live.current.agents:  # perhaps made a moment ago
            await db_call(self._engine.live.refresh)
        return Toolbox(self._engine, self._engine.run_catalogue(agent), run=taken.run, expert=expert)

    async def _do(self, held: Held, step: Step) -> bool:
        match step:
            case AskModel():
                return await self._thinking.turn(held.lease, held.view, held.tools, step.final)
            case RunCalls():
                return await calling.make(held.lease, held.view, held.tools, step.calls)
            case FindOut():
                return await calling.find_out(held.lease, held.view, held.tools, step.calls)
            case WaitForPeople():
                return await calling.look_at_waiting(held.lease, held.view, held.tools, step.calls)
            case Conclude():
                return await concluding.conclude(held.lease, held.view, held.tools, step.exit, self._thinking)


_ONE = Run.objects.filter(id=Given("id"))
_WISH = Select(_ONE.values_list("cancel_requested", named=True))
_WHO = Select(_ONE.values_list("version__expert__agent__slug", "expert_name", named=True))


async def _pulse(taken: lease.Lease) -> None:
    """Keep the lease; returns when the run shall be cancelled. Raises LostLease."""
    renewed = timezone.now()
    while True:
        await asyncio.sleep(0.5)
        if await db_call(_wants_to_stop, taken.run):
            return
        if timezone.now() - renewed > timedelta(seconds=lease.RENEW_EVERY):
            renewed = timezone.now()
            if await db_call(lease.renew, taken):
                return


def _wants_to_stop(run_id: str) -> bool:
    return bool(_WISH.get(id=run_id).cancel_requested)


def _identity(run_id: str) -> tuple[str, str]:
    """(the agent that the run's calls are made as, the name of the expert tool)"""
    return tuple(_WHO.get(id=run_id))


async def _cancelled(taken: lease.Lease) -> None:
    await db_call(calling.settle_started, taken.run)
    await db_call(records.finish, taken, state=RunState.CANCELLED, exit=Exit.CANCELLED, error="It was cancelled.")
