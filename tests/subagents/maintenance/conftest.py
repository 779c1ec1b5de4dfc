"""A worker's background sub-agent, and short ways to ask it for something."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mcpregistry.calls.engine import Engine
from mcpregistry.db import db_call
from subagents import energy
from subagents.domain.maintenance import Kind
from subagents.maintenance import queue
from subagents.maintenance.manager import Manager
from subagents.models import MaintenanceRequest
from tests.calls.conftest import broken
from tests.waiting import until

FOREVER = 600  # seconds: the longest that a server may be given to start


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "subagents.maintenance.queue.send_task", lambda task: True
    )  # tests look by hand


@pytest.fixture
async def manager(live_db: None) -> AsyncIterator[Callable[..., Any]]:
    """``await manager()`` starts one. All stop at the end, and every invariant must hold."""
    made: list[tuple[Engine, Manager]] = []

    async def make() -> Manager:
        engine = Engine("worker")
        await engine.start()
        made.append((engine, Manager(engine, f"worker-{len(made)}", may_begin=energy.may_begin)))
        return made[-1][1]

    yield make
    for engine, each in made:
        await each.stop()
        await engine.stop()
    assert await db_call(broken) == []


def ask(kind: Kind, actor: str = "user:ann", **params: Any) -> MaintenanceRequest:
    more = {
        name: params.pop(name) for name in ("priority", "agent", "supervisor") if name in params
    }
    return queue.ask(kind=kind, params=params, actor=actor, **more)


async def now(request: MaintenanceRequest) -> MaintenanceRequest:
    return await db_call(MaintenanceRequest.objects.get, pk=request.pk)


async def ended(here: Manager, request: MaintenanceRequest) -> MaintenanceRequest:
    """It, once it has ended; the manager looks as the clock does."""

    async def look() -> MaintenanceRequest | None:
        here.look()
        found = await now(request)
        return found if found.finished_at else None

    found = await until(look)
    assert found is not None
    return found
