"""Results say what their calls cost, on endpoints that want it: every lane the same, and as the
books have it."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.domain.snapshot_specs import ToolSpec
from mcpregistry.gateway.tasks.task_handlers import Tasks
from mcpregistry.ids import make_ordered_id
from mcpregistry.models import Agent, Endpoint, EnergyEntry, EnergyPool, HostTask, Invocation
from mcpregistry.services.access import agents
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.energy import pools, reservations
from mcpregistry.services.energy.estimates import Work
from mcpregistry.services.tasks import host_tasks
from tests.fakes.stage import ACTOR, Stage, envelope, folder, fresh, listed, outside, raw_host
from tests.gateway.doors import Corpus, doors

pytestmark = pytest.mark.one_database

KEY = "slipsnisse/energy"


def furnished(stage: Stage) -> str:
    """An endpoint that tells it, of an agent whose pool does not refill."""
    slug = fresh("energy")
    stage.endpoint(slug, tell_energy=True)
    stage.agent(slug, stage.fake("echo", listed("echo"), slug=f"{slug}-e"))
    row = Agent.objects.get(slug=slug)
    row.energy_pool = pools.save_pool(
        pool=EnergyPool(slug=slug, regeneration=0.0, per_call=1.0), actor=ACTOR
    )
    agents.save_agent(agent=row, actor=ACTOR)
    return slug


def books(slug: str) -> list[dict[str, float]]:
    rows = EnergyEntry.objects.filter(pool__slug=slug, kind="call").order_by("id")
    return [{"charged": row.amount, "level": row.after} for row in rows]


def told(result: dict[str, Any]) -> Any:
    return result["_meta"][KEY]


def test_the_result_of_a_task_says_it_too_and_who_asks_first_charges_the_call(stage: Stage) -> None:
    slug = furnished(stage)
    now = timezone.now()
    call = Invocation.objects.create(
        id=make_ordered_id(),
        state="dispatched",
        agent_slug=slug,
        endpoint_slug=slug,
        tool_name="echo",
        exposed_name="x",
        origin="http",
        writer="w",
        received_at=now,
        dispatched_at=now,
    )
    work = Work(ToolSpec(0, 0, "t", "", {}, idempotent=False, energy=5.0), 2)
    pool = EnergyPool.objects.get(slug=slug)
    assert reservations.reserve(pool_id=pool.pk, call_id=call.pk, agent=slug, work=work) is None
    handle = host_tasks.create_task(
        call_id=call.pk, agent=slug, endpoint=slug, ttl_ms=None, poll_ms=100
    )
    tasks = Tasks(
        SimpleNamespace(live=SimpleNamespace(current=load_snapshot()), catalogue=None), None
    )  # type: ignore[arg-type]
    assert "result" not in tasks.build_view(_task(handle))
    text = {"content": [{"type": "text", "text": "done"}], "_meta": {KEY: {"charged": -5}}}
    Invocation.objects.filter(pk=call.pk).update(
        state="succeeded", finished_at=now + timedelta(seconds=2), result=json.dumps(text)
    )
    shown = tasks.build_view(_task(handle))["result"]
    assert told(shown) == {"charged": 5.0, "level": 95.0} == books(slug)[0], (
        "one for the call, two for each second"
    )
    Endpoint.objects.filter(slug=slug).update(tell_energy=False)
    tasks = Tasks(
        SimpleNamespace(live=SimpleNamespace(current=load_snapshot()), catalogue=None), None
    )  # type: ignore[arg-type]
    assert KEY not in tasks.build_view(_task(handle))["result"].get("_meta", {}), (
        "and no server can say it"
    )


def _task(handle: HostTask) -> HostTask:
    (found,) = host_tasks.load_tasks([handle.pk])
    return found


async def test_every_lane_says_what_the_books_say(stage: Stage) -> None:
    slug = await outside(furnished, stage)
    echo = Corpus("tools/call", named=f"{slug}-e__echo", name=f"{slug}-e__echo", arguments={})
    absent = Corpus("tools/call", named="nothing", name="nothing", arguments={})
    found = []
    async with doors(slug, stage.tokens[slug]) as both:
        for lane in (True, False):
            _, _, answer = await both.ask(lane, "POST", echo.request(), [*echo.usual.items()])
            found.append(told(answer["result"]))
        await both.ask(True, "POST", absent.request(), [*absent.usual.items()])
    place = ("--endpoint", slug, "--agent", slug, "--cwd", str(folder()))
    async with raw_host(stage.runmcp(*place), forked=True) as host:
        await host.ask(1, "server/discover", _meta=envelope())
        name = f"{slug}-e__echo"
        arguments = {"_meta": envelope(), "arguments": {}}
        found.append(told((await host.ask(2, "tools/call", name=name, **arguments))["result"]))
    assert found == await outside(books, slug)
    assert [each["charged"] >= 1 for each in found] == [True] * 3
