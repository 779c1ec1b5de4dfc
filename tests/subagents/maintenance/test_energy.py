"""What the background sub-agent uses drains the pool of whoever asked, and a low pool holds its
work back."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from mcpregistry.db import db_call
from mcpregistry.models import Agent, EnergyEntry, EnergyPool
from mcpregistry.models.energy import LowPolicy
from mcpregistry.services.access import agents, tokens
from mcpregistry.services.energy import pools
from subagents import energy
from subagents.domain.maintenance import ControlRequest, Kind, Priority, State, Substate
from subagents.maintenance import manager as manager_module
from subagents.maintenance import queue
from subagents.models import MaintenanceRequest
from tests.calls.conftest import add_server, tool
from tests.subagents.maintenance.conftest import FOREVER, ask, ended, now
from tests.subagents.maintenance.test_manager import begun, children
from tests.subagents.test_api import Caller, person
from tests.waiting import until


def asked_by_ann(level: float, **fields: Any) -> MaintenanceRequest:
    """A test of a server that never answers, for an agent whose pool holds so much and does not
    refill."""
    add_server("mute", tool("say"), connect_timeout=FOREVER)
    pool = EnergyPool(**{"slug": "p", "regeneration": 0.0} | fields)
    pools.save_pool(pool=pool, actor="test")
    ann = Agent.objects.get(slug="ann")
    ann.energy_pool = pool
    agents.save_agent(agent=ann, actor="test")
    take(100 - level)
    return ask(Kind.TEST, server="mute", agent=ann, priority=Priority.LOW)


@transaction.atomic
def take(amount: float) -> None:
    pool = pools.lock_pool(EnergyPool.objects.get().pk)
    pools.charge_pool(pool, EnergyEntry.Kind.GRANT, amount, now=pool.level_at)


def level() -> float:
    return pools.load_pool_standing(EnergyPool.objects.with_reserved().get()).level


async def _regulated(request: MaintenanceRequest, substate: str) -> MaintenanceRequest | None:
    await db_call(energy.regulate)
    found = await now(request)
    return found if found.substate == substate else None


@pytest.mark.exhaustive
async def test_low_energy_pauses_the_work_and_enough_of_it_resumes_it(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "CHARGED_EVERY", 0.05)
    # Far enough from nothing: a test of a server costs 20 at most, however late a busy machine
    # pauses it.
    request = await db_call(
        lambda: asked_by_ann(40.2, low_policy="pause", critical=40.0, resume=60.0)
    )
    here = await manager()
    await begun(here, request)
    paused = await until(lambda: _regulated(request, Substate.PAUSED))
    assert paused is not None
    assert not children("mute.py")
    await db_call(energy.regulate)  # what was used until it stood still
    left = await db_call(level)
    assert left == pytest.approx(40.2 - paused.energy_total), "what was drained is what it has used"
    assert left < 40
    for _ in range(3):
        await db_call(energy.regulate)
    assert (await db_call(level), (await now(request)).substate) == (left, Substate.PAUSED)
    await db_call(
        pools.grant,
        pool_id=(await db_call(EnergyPool.objects.get)).pk,
        amount=59 - left,
        actor="test",
    )
    assert await _regulated(request, Substate.PAUSED), "not before the level of resuming"
    await db_call(
        pools.grant, pool_id=(await db_call(EnergyPool.objects.get)).pk, amount=1.5, actor="test"
    )
    assert await _regulated(request, Substate.NONE)
    await begun(here, request)
    await db_call(queue.cancel, request_id=request.pk, actor="user:ann")
    done = await ended(here, request)
    await db_call(energy.charge_used)
    entries = await db_call(lambda: [*EnergyEntry.objects.filter(kind="maintenance")])
    assert sum(entry.amount for entry in entries) == pytest.approx(done.energy_total)
    assert {entry.subject for entry in entries} == {request.pk}, "each says what it was for"


async def test_short_work_does_not_begin_while_the_level_is_critical(manager: Any) -> None:
    """Also before the clock has looked."""

    def asked() -> MaintenanceRequest:
        queue.cancel(
            request_id=asked_by_ann(0, low_policy="auto", critical=40.0, resume=60.0).pk,
            actor="test",
        )
        add_server("echo", tool("echo"))
        return ask(Kind.TEST, server="echo", agent=Agent.objects.get(slug="ann"))

    request = await db_call(asked)
    here = await manager()
    here.look()
    await until(lambda: _is_paused(request))
    assert (await now(request)).energy_total == 0
    await db_call(
        pools.grant, pool_id=(await db_call(EnergyPool.objects.get)).pk, amount=80, actor="test"
    )
    await db_call(energy.regulate)
    assert (await ended(here, request)).state == State.COMPLETED


async def _is_paused(request: MaintenanceRequest) -> bool:
    found = await now(request)
    assert found.state == State.QUEUED or found.substate == Substate.PAUSED, "nobody has begun it"
    return found.substate == Substate.PAUSED


async def test_where_the_pool_says_so_it_is_cancelled_with_its_processes(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "CHARGED_EVERY", 0.05)
    request = await db_call(lambda: asked_by_ann(10.1, low_policy="cancel"))
    await begun(await manager(), request)
    done = await until(lambda: _regulated(request, Substate.CANCELLED))
    assert done is not None
    assert done.error == "cancelled: there was not enough energy"
    await until(lambda: not children("mute.py"))


async def test_nothing_is_begun_while_the_level_is_critical_and_a_persons_pause_is_kept(
    live_db: None,
) -> None:
    request = await db_call(lambda: asked_by_ann(5))
    await db_call(energy.regulate)
    waits = await now(request)
    assert (waits.state, waits.substate, waits.message) == (
        State.QUEUED,
        Substate.PAUSED,
        energy.PAUSED,
    )
    await db_call(queue.pause, request_id=request.pk, actor="user:bob")
    await db_call(take, -60)
    await db_call(energy.regulate)
    assert (await now(request)).wish == ControlRequest.PAUSE, "a person has paused it as well"
    await db_call(queue.resume, request_id=request.pk, actor="user:bob")
    assert (await now(request)).wish == ControlRequest.NONE


async def test_who_has_no_pool_is_not_held_back(live_db: None) -> None:
    await db_call(asked_by_ann, 5)
    await db_call(lambda: Agent.objects.update(energy_pool=None))
    await db_call(energy.regulate)
    assert not await db_call(MaintenanceRequest.objects.exclude(wish="").exists)


def test_what_a_pool_pays_for_cannot_be_taken_ahead_of_it(live_db: None) -> None:
    """Neither by the agent itself, over REST, nor by a person."""
    request = asked_by_ann(100)
    MaintenanceRequest.objects.filter(pk=request.pk).update(energy_unreported=7.0, energy_total=7.0)
    robot = Caller(
        Client(),
        tokens.issue_token(agent=Agent.objects.get(slug="ann"), name="test", actor="test")[1],
    )
    for caller in (robot, person("operator")):
        assert caller.post("/maintenance/energy/poll").json() == {"energy": 0}
    assert energy.charge_used() == 7
    assert level() == pytest.approx(93)


@pytest.mark.parametrize(
    ("policy", "facts", "wish"),
    [
        ("auto", {"progress": 80}, ""),
        ("auto", {"progress": 40}, "pause"),
        ("auto", {"progress": 40, "priority": Priority.LOW}, "cancel"),
        ("auto", {"progress": 60, "priority": Priority.LOW}, "pause"),
        ("finish", {"progress": 1}, ""),
        ("pause", {"progress": 99}, "pause"),
        ("cancel", {"progress": 99}, "cancel"),
        ("finish", {"state": State.QUEUED}, "pause"),
        ("cancel", {"state": State.QUEUED}, "pause"),
        ("cancel", {"wish": "pause"}, ""),
    ],
)
def test_what_is_done_at_the_critical_level(policy: str, facts: dict[str, Any], wish: str) -> None:
    request = MaintenanceRequest(
        **{"state": State.IN_PROGRESS, "priority": Priority.MEDIUM} | facts
    )
    assert energy.wish_for(request, LowPolicy(policy)) == wish
