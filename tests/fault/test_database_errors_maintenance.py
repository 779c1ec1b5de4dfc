"""The database fails once, at any place at which the background sub-agent asks it: what it was
asked is done all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mcpregistry.db import db_call
from mcpregistry.models import Server, ServerTest
from mcpregistry.services.servers import lifecycle
from subagents.domain.maintenance import Kind, State
from subagents.leased import driver
from subagents.maintenance import manager as manager_module
from subagents.maintenance import queue, supervision
from subagents.maintenance.manager import Manager
from subagents.models import MaintenanceMessage, MaintenanceRequest, TrialReport
from tests.calls.conftest import add_server, tool
from tests.fakes.targets import SERVERS
from tests.fault.database import elsewhere, failing
from tests.subagents.maintenance.conftest import _no_broker, ask, manager
from tests.waiting import HANG_LIMIT, until

__all__ = ["_no_broker", "manager"]
pytestmark = pytest.mark.fault


def found() -> MaintenanceRequest:
    return MaintenanceRequest.objects.get()


async def until_it(
    here: Manager, is_so: Callable[[MaintenanceRequest], bool]
) -> MaintenanceRequest:
    """The manager looks as often as the clock makes it; whoever waits here is another process."""

    async def look() -> MaintenanceRequest | None:
        here.look()
        row = await elsewhere(found)
        return row if is_so(row) else None

    row = await until(look)
    assert row is not None
    return row


async def is_tried(here: Manager) -> str:
    await elsewhere(lambda: (add_server("echo", tool("echo")), ask(Kind.TEST, server="echo")))
    row = await until_it(here, lambda row: row.finished_at is not None)
    assert row.result is not None
    assert await elsewhere(ServerTest.objects.count) == 1
    return f"{row.state} {row.result['ok']}"


async def is_on_trial(here: Manager) -> str:
    await elsewhere(
        lambda: (
            add_server("echo", tool("echo"), sandbox_read=[str(SERVERS)]),
            ask(Kind.TRY, server="echo"),
        )
    )
    row = await until_it(here, lambda row: row.finished_at is not None)
    assert row.result is not None
    assert await elsewhere(TrialReport.objects.count) == 1
    return f"{row.state} {row.result['verdict']}"


async def is_refused(here: Manager) -> str:
    await elsewhere(
        lambda: lifecycle.save_server(server=Server(slug="draft", command=["true"]), actor="test")
    )
    await elsewhere(lambda: ask(Kind.TEST, server="draft"))
    return (await until_it(here, lambda row: row.finished_at is not None)).state


async def _working(here: Manager) -> MaintenanceRequest:
    await elsewhere(
        lambda: (add_server("mute", connect_timeout=HANG_LIMIT), ask(Kind.TEST, server="mute"))
    )
    return await until_it(here, lambda row: row.step == 1)


async def _more_charged(here: Manager, so_far: float) -> MaintenanceRequest:
    return await until_it(here, lambda row: row.energy_total > so_far)


async def is_cancelled(here: Manager) -> str:
    row = await _working(here)
    for _ in range(3):  # charged as its step begins, and from then on as its lease is renewed
        row = await _more_charged(here, row.energy_total)
    await elsewhere(lambda: queue.cancel(request_id=row.pk, actor="test", reason="enough"))
    return (await until_it(here, lambda row: row.finished_at is not None)).error


async def is_paused(here: Manager) -> str:
    row = await _working(here)
    await elsewhere(lambda: queue.pause(request_id=row.pk, actor="test"))
    return (await until_it(here, lambda row: row.lease_until is None)).substate


async def is_switched_off(here: Manager) -> str:
    row = await _working(here)
    await elsewhere(lambda: supervision.switch(on=False, actor="test"))
    row = await until_it(here, lambda row: row.lease_until is None)
    return f"{row.state} {row.substate} {row.finished_at}"


async def is_stopped(here: Manager) -> str:
    """Its worker stops. What is not given back is free when its lease is over."""
    row = await _working(here)
    await here.stop()
    row = await elsewhere(found)
    return f"{row.state} {row.finished_at}"


STORIES: dict[str, tuple[Callable[[Manager], Awaitable[str]], str]] = {
    "tested": (is_tried, f"{State.COMPLETED} True"),
    "on trial": (is_on_trial, f"{State.COMPLETED} ok"),
    "refused": (is_refused, State.FAILED),
    "cancelled": (is_cancelled, "cancelled: enough"),
    "paused": (is_paused, "paused"),
    "switched off": (is_switched_off, f"{State.IN_PROGRESS}  None"),
    "stopped": (is_stopped, f"{State.IN_PROGRESS} None"),
}
POINTS: dict[str, list[str]] = {
    "tested": [
        "manager._list_due",
        "manager._take",
        "manager._begin",
        "manager._begin@2",
        "targets.build_target",
        "manager._record_step",
        "manager._record_step@2",
        "manager._record_step@3",
    ],
    "on trial": ["trials._load_target"],
    "refused": ["request_lease.fail_request"],
    "cancelled": [
        "request_lease.cancel_request",
        "request_lease.renew",
        "manager._read_control_requests",
    ],
    "paused": ["request_lease.cut_run", "request_lease.pause_request"],
    "switched off": ["request_lease.halt_request"],
    "stopped": ["request_lease.release"],
}


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.exhaustive(on="postgresql")
@pytest.mark.parametrize(
    ("story", "point"), [(story, point) for story in STORIES for point in POINTS[story]]
)
async def test_what_was_asked_is_done_once_and_told_once(
    manager: Any, monkeypatch: pytest.MonkeyPatch, story: str, point: str
) -> None:
    monkeypatch.setattr(manager_module, "CHARGED_EVERY", 0.05)
    monkeypatch.setattr(driver, "_BEAT", 0.05)
    here = await manager()
    play, expected = STORIES[story]
    with failing(point):
        assert await play(here) == expected
    ends = await db_call(lambda: MaintenanceMessage.objects.exclude(kind="status_update").count())
    assert ends == (1 if story in ("tested", "on trial", "refused", "cancelled") else 0)
