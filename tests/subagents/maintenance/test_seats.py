"""Nobody starts a server while the run of a model that works on it may still have it started,
whoever stopped what."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.db import db_call
from subagents.domain.maintenance import Kind, State
from subagents.leased.leases import Lease
from subagents.maintenance import manager, model_stage, queue, request_lease, supervision
from subagents.maintenance.request_lease import Meter
from subagents.models import MaintenanceRequest, Run
from tests.calls.conftest import add_server, tool
from tests.subagents.kit import Bench
from tests.subagents.maintenance.conftest import ask
from tests.subagents.maintenance.test_by_model import BYE, bench, works_on

__all__ = ["bench"]


@pytest.fixture
def worked_on(bench: Bench, live_db: None) -> Callable[[], tuple[MaintenanceRequest, Lease, Run]]:
    """A request that a worker holds and a model's run works on; call it in a database thread."""

    def begin() -> tuple[MaintenanceRequest, Lease, Run]:
        works_on(bench, Kind.TEST, BYE)
        add_server("echo", tool("echo"))
        request = ask(Kind.TEST, server="echo")
        lease = taken(request)
        MaintenanceRequest.objects.filter(pk=request.pk).update(step=1)
        assert lease
        assert begun(lease).step is model_stage.STEP
        return request, lease, Run.objects.get()

    return begin


def taken(request: MaintenanceRequest) -> Lease | None:
    return request_lease.take(request.pk, worker="one")


def begun(lease: Lease) -> Any:
    return manager._begin(lease, Meter())


def end(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(state="cancelled", finished_at=timezone.now())


def died(request: MaintenanceRequest) -> None:
    over = timezone.now() - timedelta(seconds=1)
    MaintenanceRequest.objects.filter(pk=request.pk).update(lease_until=over)


def stood_still(monkeypatch: pytest.MonkeyPatch, request: MaintenanceRequest) -> None:
    """As if the cycles of whoever supervises it had ended."""
    monkeypatch.setattr(
        supervision, "explain_pause", lambda each: "still" if each.pk == request.pk else ""
    )


STOPS: dict[str, Callable[[MaintenanceRequest, Lease], object]] = {
    "its worker stops": lambda request, lease: request_lease.release(lease),
    "paused while nobody holds it": lambda request, lease: (
        request_lease.release(lease),
        queue.pause(request_id=request.pk, actor="user:ann"),
    ),
    "cancelled while nobody holds it": lambda request, lease: (
        request_lease.release(lease),
        queue.cancel(request_id=request.pk, actor="user:ann"),
    ),
    "its worker cannot wait longer": lambda request, lease: (
        request_lease.cut_run(lease, Meter()),
        request_lease.fail_request(lease, Meter(), "crashed"),
    ),
}


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("stop", STOPS)
async def test_another_may_start_the_server_once_the_run_has_ended(
    worked_on: Any, stop: str
) -> None:
    def story() -> None:
        request, lease, run = worked_on()
        other = ask(Kind.TRY, server="echo")
        STOPS[stop](request, lease)
        assert taken(other) is None, "the run may have the server started still"
        end(run)
        assert taken(other), "nothing has it started any more"

    await db_call(story)


async def test_its_own_steps_wait_for_a_run_that_was_given_up_or_left_behind(
    worked_on: Any,
) -> None:
    def story() -> None:
        _, lease, run = worked_on()
        manager._record_step(lease, Meter(), model_stage.STEP, None)  # its patience is over
        assert Run.objects.get().cancel_requested
        assert begun(lease).step is model_stage.LEAVING
        end(run)
        assert begun(lease).step.name == "probe"
        assert MaintenanceRequest.objects.get().notes["model"]["why"] == "The run took too long."

    await db_call(story)


async def test_a_request_that_is_resumed_waits_for_the_run_that_its_pause_has_stopped(
    worked_on: Any,
) -> None:
    def story() -> None:
        request, lease, run = worked_on()
        request_lease.release(lease)
        queue.pause(request_id=request.pk, actor="user:ann")
        queue.resume(request_id=request.pk, actor="user:ann")
        again = taken(request)
        assert again
        assert begun(again).step is model_stage.LEAVING
        end(run)
        assert begun(again).step is model_stage.STEP
        assert Run.objects.count() == 2

    await db_call(story)


async def test_what_stands_still_after_its_worker_died_gives_its_server_to_others_once_its_run_has_ended(
    worked_on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story() -> None:
        request, _, run = worked_on()
        other = ask(Kind.TRY, server="echo")
        died(request)
        assert taken(other) is None, "whoever takes it over goes on with it"
        assert not Run.objects.get().cancel_requested
        stood_still(monkeypatch, request)
        assert taken(other) is None
        assert Run.objects.get().cancel_requested, "nobody may go on with it"
        end(run)
        assert taken(other)
        assert MaintenanceRequest.objects.get(pk=request.pk).state == State.IN_PROGRESS
        assert taken(request) is None, "and the other way round"

    await db_call(story)


async def test_work_that_is_on_no_server_waits_for_none(live_db: None) -> None:
    def story() -> None:
        searches = [ask(Kind.SEARCH, query=f"find {number}") for number in range(2)]
        assert all(map(taken, searches)), "both at once"

    await db_call(story)
