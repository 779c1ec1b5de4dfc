"""Results say what their calls cost, on endpoints that want it: every lane the same, and as the books have it."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.models import Agent, EnergyEntry, EnergyPool
from mcpregistry.services.access import agents
from mcpregistry.services.energy import pools
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
    row.energy_pool = pools.save_pool(pool=EnergyPool(slug=slug, regeneration=0.0, per_call=1.0), actor=ACTOR)
    agents.save_agent(agent=row, actor=ACTOR)
    return slug


def books(slug: str) -> list[dict[str, float]]:
    rows = EnergyEntry.objects.filter(pool__slug=slug, kind="call").order_by("id")
    return [{"charged": row.amount, "level": row.after} for row in rows]


def told(result: dict[str, Any]) -> Any:
    return result["_meta"][KEY]


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
        name, arguments = f"{slug}-e__echo", {"_meta": envelope(), "arguments": {}}
        found.append(told((await host.ask(2, "tools/call", name=name, **arguments))["result"]))
    assert found == await outside(books, slug)
    assert [each["charged"] >= 1 for each in found] == [True] * 3
