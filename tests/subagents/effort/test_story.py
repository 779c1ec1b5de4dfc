"""The whole of the first goal: an agent lacks a server, has the sub-agent look for it, uses it once
people said yes, on a budget."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from mcpregistry.db import db_call
from mcpregistry.models import Agent, EnergyEntry, EnergyPool, Invocation
from mcpregistry.services.access import grants
from mcpregistry.services.energy import pools
from subagents.domain.maintenance import ProposalState
from subagents.effort import agents
from subagents.maintenance import proposals
from subagents.models import CycleLog, EffortAgent, MaintenanceRequest, Proposal
from tests.calls.conftest import add_server, tool
from tests.subagents.effort.test_cycles import ACTOR, begun, said, talking, write
from tests.subagents.kit import Bench, calls
from tests.subagents.maintenance.conftest import _no_broker, manager
from tests.subagents.runs.conftest import bench, worker, working
from tests.waiting import until

__all__ = ["_no_broker", "bench", "manager", "talking", "worker", "working"]
LACKS = calls(
    ("mcp_request_server_addition", {"serverName": "echo", "purpose": "to say things again"})
)
HEARD = "The background sub-agent: "
THERE = "Person: It is there now."
TURNS = (
    [
        calls(("echo__echo", {"text": "noon"})) | {"when": {"user_contains": THERE}},
        {"text": "A person decides about it.", "when": {"user_contains": HEARD}},
        LACKS,
    ],
    [
        {"text": "I asked for it.", "when": {"last_tool": "mcp_request_server_addition"}},
        {"text": "It says noon."},
    ],
)


def speaker(bench: Bench) -> EffortAgent:
    expert = bench.expert(bench.model("m", *TURNS))
    pool = pools.save_pool(pool=EnergyPool(slug="p", regeneration=0), actor=ACTOR)
    Agent.objects.filter(pk=expert.agent_id).update(energy_pool=pool)
    return agents.save_effort_agent(row=EffortAgent(expert=expert, cycle_seconds=0.2), actor=ACTOR)


def added(row: EffortAgent) -> None:
    """A person decides: the server is added, its tool approved and granted, and the proposal
    closed."""
    server = add_server("echo", tool("echo"))
    grants.grant_access(agent=row.expert.agent, server=server, actor=ACTOR)
    proposals.decline(proposal_id=Proposal.objects.get().pk, actor="user:ann")


@pytest.mark.exhaustive
async def test_it_lacks_a_server_asks_hears_uses_it_and_pays_for_all_of_it(
    bench: Bench, talking: Any, manager: Any
) -> None:
    row = await db_call(speaker, bench)
    talk = await db_call(begun)
    here = await manager()
    ann = await db_call(User.objects.create_user, "ann")
    await talking(row)
    await db_call(write, talk, "Say noon.", ann)

    async def heard() -> bool:
        here.look()
        return ("out", "A person decides about it.") in await db_call(said, talk)

    await until(heard)
    request = await db_call(MaintenanceRequest.objects.get)
    assert (request.kind, request.state, request.conversation) == (
        "add_server",
        "completed",
        talk.pk,
    )
    proposal = await db_call(Proposal.objects.get)
    assert proposal.state == ProposalState.WAITING, "nothing is added by itself"
    await db_call(added, row)
    await db_call(write, talk, "It is there now.", ann)

    async def answered() -> bool:
        return ("out", "It says noon.") in await db_call(said, talk)

    await until(answered)
    made = await db_call(
        lambda: list(
            Invocation.objects.order_by("received_at").values_list("exposed_name", "state")
        )
    )
    assert made == [("mcp_request_server_addition", "succeeded"), ("echo__echo", "succeeded")]
    kinds = await db_call(lambda: set(EnergyEntry.objects.values_list("kind", flat=True)))
    assert {"maintenance", "turn"} <= kinds
    drained = await db_call(lambda: sum(EnergyEntry.objects.values_list("amount", flat=True)))
    left = await db_call(
        lambda: pools.load_pool_standing(EnergyPool.objects.with_reserved().get()).level
    )
    assert left == pytest.approx(100 - drained)
    assert await db_call(lambda: CycleLog.objects.filter(polled__gt=0).exists()), (
        "and each cycle shows it"
    )
