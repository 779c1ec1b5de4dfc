"""The background sub-agent's loop: takes what is due by priority, does step after step, and can be
stopped at any.

A step's outcome and that it is done are one transaction, so whoever takes over after a death goes
on after it. A wish to pause or cancel cuts the step that runs, with the processes that it has
started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from mcpregistry.calls.engine import Engine
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.failpoints import failpoint
from subagents.domain.maintenance import (
    STARTS_SERVER,
    ControlRequest,
    Kind,
    RequestMessageKind,
    State,
    Substate,
    energy_to_least,
)
from subagents.leased.database_retry import retry_while_unavailable
from subagents.leased.driver import Driver
from subagents.leased.leases import Lease
from subagents.maintenance import model_stage, queue, request_lease, supervision
from subagents.maintenance.plan_steps import PlanStep
from subagents.maintenance.plans import PLANS
from subagents.maintenance.queue import AT_ONCE, STARTING
from subagents.maintenance.request_lease import Meter
from subagents.models import MAINTENANCE_TOPIC, RUN_TOPIC, MaintenanceRequest, Run

log = structlog.get_logger(__name__)

# seconds that the run of a model has to end; ending its server may take 15, finding its worker dead
# 10
_PARTING = 25.0
CHARGED_EVERY = 1.0  # seconds: that often energy is counted while a step runs
_CRASHED = (
    "The request failed because of an internal error. See the log of the worker for the reason."
)


class Manager(Driver[ControlRequest]):
    """One per worker process, on its event loop. ``look`` may be called as often as one likes.

    ``may_begin`` is asked in a database thread before a request is taken.
    """

    kind = "maintenance"

    def __init__(
        self, engine: Engine, worker: str, *, may_begin: Callable[[str], bool] = lambda _: True
    ) -> None:
        super().__init__(
            StateWatch(engine.feed, MAINTENANCE_TOPIC, _read_control_requests), ControlRequest.NONE
        )
        self._engine = engine
        self._worker = worker
        self._runs = StateWatch(engine.feed, RUN_TOPIC, _run_ends)
        self._may_begin = may_begin
        self._meters: dict[str, Meter] = {}
        self._looking: asyncio.Task[None] | None = None
        self._stopping = False

    def look(self) -> None:
        """Take what is due, as far as there is room. Call it on the loop's thread."""
        if not self._stopping and (self._looking is None or self._looking.done()):
            self._looking = asyncio.ensure_future(self._take_due())

    async def stop(self) -> None:
        """Give up what is being worked on; other workers go on."""
        self._stopping = True
        if self._looking is not None:
            self._looking.cancel()
        await super().stop()

    async def _take_due(self) -> None:
        if (room := AT_ONCE - len(self._driving)) <= 0:
            return
        try:
            for key in await db_call(_list_due, room, list(self._driving)):
                self.wake(key)
        except Exception:  # the database may be away; the clock looks again
            log.exception("maintenance.due_unread")

    def _finish_task(self, key: str, task: asyncio.Task[bool]) -> None:
        super()._finish_task(key, task)
        if self._meters.pop(key, None) is not None:  # it was worked on: there is room for the next
            self.look()

    async def take(self, key: str) -> Lease | None:
        """The request's lease; None if it may not be worked on now."""
        taken = await db_call(_take, key, self._worker, self._may_begin)
        if taken is not None:
            self._meters[key] = Meter()
            failpoint("maintenance_leased")
        return taken

    async def renew(self, taken: Lease) -> ControlRequest:
        """Keep it and count the energy."""
        return await db_call(request_lease.renew, taken, self._meters[taken.key])

    def renew_every(self) -> float:
        """Often enough that what it has used can be followed."""
        return CHARGED_EVERY

    async def release(self, taken: Lease) -> None:
        """Give it back."""
        await db_call(request_lease.release, taken)

    async def fulfil(self, taken: Lease, wish: ControlRequest) -> None:
        """Pause, cancel or put it down. The run of a model ends first, and lets go of what it has
        started."""
        if run := await db_call(request_lease.cut_run, taken, self._meters[taken.key]):
            await self._wait_for_run_end(taken, run)
        match wish:
            case ControlRequest.PAUSE:
                await db_call(request_lease.pause_request, taken, self._meters[taken.key])
            case ControlRequest.HALT:
                await db_call(request_lease.halt_request, taken, self._meters[taken.key])
            case _:
                await db_call(request_lease.cancel_request, taken, self._meters[taken.key])

    async def _wait_for_run_end(self, taken: Lease, run: str) -> None:
        """The run has let go of what it has started. Until then nobody else may start its server:
        the lease is kept."""
        until = time.monotonic() + _PARTING
        while (
            not await self._runs.wait_for_change(run, False, CHARGED_EVERY)
            and time.monotonic() < until
        ):
            await retry_while_unavailable(partial(self.renew, taken))

    async def handle_crash(self, taken: Lease) -> None:
        """It failed."""
        await db_call(request_lease.fail_request, taken, self._meters[taken.key], _CRASHED)

    async def work(self, taken: Lease) -> None:
        """Step after step, until it has ended or somebody wishes otherwise."""
        meter = self._meters[taken.key]
        while isinstance(
            begun := await retry_while_unavailable(partial(db_call, _begin, taken, meter)), _Begun
        ):
            try:
                outcome = await retry_while_unavailable(partial(self._act_on_step, begun))
                failpoint("maintenance_acted")
                await retry_while_unavailable(
                    partial(db_call, _record_step, taken, meter, begun.step, outcome)
                )
            except SlipsnisseError as error:
                await retry_while_unavailable(
                    partial(db_call, request_lease.fail_request, taken, meter, str(error))
                )
        if begun:
            await retry_while_unavailable(partial(self.fulfil, taken, begun))

    async def _act_on_step(self, begun: _Begun) -> Any:
        model = begun.request.notes.get("model", {})
        if begun.step is model_stage.LEAVING:
            return await self._runs.wait_for_change(model["leaving"], False, CHARGED_EVERY)
        if begun.step is model_stage.STEP:
            return await self._runs.wait_for_change(
                model["run"],
                False,
                max(0.0, await db_call(model_stage.compute_time_left, model["run"])),
            )
        return await begun.step.act(self._engine, begun.request)


@dataclass(frozen=True, slots=True)
class _Begun:
    request: MaintenanceRequest
    step: PlanStep


def _list_due(room: int, driven: list[str]) -> list[str]:
    starting = (
        STARTING - MaintenanceRequest.objects.filter(pk__in=driven, kind__in=STARTS_SERVER).count()
    )
    return queue.list_due_requests(read_database_now(), room, starting=starting)


def _begin(taken: Lease, meter: Meter) -> _Begun | ControlRequest:
    """The next step, told to whoever asked; else what is wished instead, which is nothing once it
    has ended."""
    if MaintenanceRequest.objects.filter(
        pk=taken.key, fence=taken.fence, finished_at__isnull=False
    ).exists():
        return ControlRequest.NONE
    with request_lease.fence_request(taken, meter) as request:
        if request.wish:
            return ControlRequest(request.wish)
        if supervision.explain_pause(request):
            return ControlRequest.HALT
        step = _choose_step(request)
        if request.message != step.says:
            MaintenanceRequest.objects.filter(pk=request.pk).update(message=step.says)
            queue.tell(
                request,
                RequestMessageKind.STATUS,
                progress=request.progress,
                step=step.name,
                message=step.says,
            )
        return _Begun(request, step)


def _take(key: str, worker: str, may_begin: Callable[[str], bool]) -> Lease | None:
    return request_lease.take(key, worker=worker) if may_begin(key) else None


def _choose_step(request: MaintenanceRequest) -> PlanStep:
    """The model's stage, where that is due, or the plan's next step that no model has done; first a
    run has to end."""
    if queue.leaving(request):
        return model_stage.LEAVING
    if model_stage.is_due(request) and model_stage.begin(request):
        return model_stage.STEP
    plan = PLANS[Kind(request.kind)]
    done = request.notes.get("done", ())
    skipped = 0
    while plan[request.step].name in done:
        request.step += 1
        skipped += 1
    if skipped:
        MaintenanceRequest.objects.filter(pk=request.pk).update(step=request.step)
    return plan[request.step]


def _record_step(taken: Lease, meter: Meter, step: PlanStep, outcome: object) -> None:
    """What the step found, and that it is done. The last one ends the request."""
    with request_lease.fence_request(taken, meter) as request:
        if request.wish == ControlRequest.CANCEL:
            queue.end(
                request,
                State.FAILED,
                substate=Substate.CANCELLED,
                error=f"cancelled: {request.wish_reason}",
            )
            return
        if step is model_stage.LEAVING:  # whether it has left is looked at before the next
            return
        if step is model_stage.STEP:
            model_stage.keep(request)
            MaintenanceRequest.objects.filter(pk=request.pk).update(notes=request.notes)
            return
        told = model_stage.describe_model_stage(request.notes)
        step.keep(request, outcome)
        last = request.step + 1 == len(PLANS[Kind(request.kind)])
        MaintenanceRequest.objects.filter(pk=request.pk).update(
            step=request.step + 1,
            progress=max(request.progress, step.progress),
            notes=request.notes,
        )
        if last:
            request_lease.charge(request, energy_to_least(Kind(request.kind), request.energy_total))
            queue.end(request, State.COMPLETED, result=(request.result or {}) | told)
            log.info("maintenance.done", request=request.pk, what=request.kind)


def _read_control_requests(keys: list[str]) -> dict[str, ControlRequest]:
    """What somebody wants of them."""
    rows = MaintenanceRequest.objects.filter(pk__in=keys).values_list("pk", "wish")
    return {key: ControlRequest(wish) for key, wish in rows}


def _run_ends(keys: list[str]) -> dict[str, bool]:
    """Whether these runs have ended; one that is forgotten has."""
    there = dict(Run.objects.filter(pk__in=keys).values_list("pk", "finished_at"))
    return {key: there.get(key, True) is not None for key in keys}
