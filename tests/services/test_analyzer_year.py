"""The access analyzer over a generated year of calls: its proposals would not have stopped any call
of the period.

The test does not rely on the analyzer's own replay. It applies each proposal and asks the code that
decides about calls.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.policy.access import may_call
from mcpregistry.models import Agent, Configuration, Endpoint, Grant, Invocation, Server, Tool
from mcpregistry.services.access import agents, grants
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy.analyzer import apply_grant_proposal, select_candidates
from mcpregistry.services.policy.findings import PERIODS, load_findings, refresh_findings
from mcpregistry.services.records import call_hours

pytestmark = pytest.mark.django_db
ACTOR = "test"
NOW = timezone.now()
AGENTS = ("ann", "bob", "cat")
SERVERS = ("git", "bank", "mail")
TOOLS = 8
YEAR = timedelta(days=365)


@dataclass
class Habits:
    """How agents call: some tools of some servers, with arguments that stay the same until a habit
    changes."""

    dice: random.Random
    usual: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def call(self, number: int, at: datetime) -> Invocation:
        agent = self.dice.choice(AGENTS)
        server = self.dice.choice(SERVERS)
        tool = f"t{int(TOOLS * self.dice.random() ** 3)}"
        key = (agent, server, tool)
        if key not in self.usual or self.dice.random() < 0.01:
            self.usual[key] = {"repo": self.dice.choice("abc"), "deep": self.dice.random() < 0.5}
        arguments = self.usual[key] | (
            {"n": self.dice.randrange(9)} if self.dice.random() < 0.7 else {}
        )
        return Invocation(
            id=f"{number:032x}",
            state=self.dice.choice(["succeeded", "succeeded", "tool_error"]),
            agent_slug=agent,
            endpoint_slug="default",
            server_slug=server,
            tool_name=tool,
            exposed_name=f"{server}__{tool}",
            origin="http",
            writer="w",
            binding="b",
            arguments=json.dumps(arguments),
            received_at=at,
        )


def configured() -> None:
    """Every agent holds whole servers, and single tools of one."""
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    for slug in SERVERS:
        server = Server.objects.create(slug=slug, command=["x"], lifecycle="active")
        tools = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(TOOLS)]
        observe.observe(server=server, listed=tools)
        decisions.approve_waiting(server=server, actor=ACTOR)
    for slug in AGENTS:
        agent = agents.save_agent(agent=Agent(slug=slug), actor=ACTOR)
        for server in Server.objects.exclude(slug="mail"):
            grants.grant_access(agent=agent, server=server, actor=ACTOR)
        for tool in Tool.objects.filter(server__slug="mail"):
            grants.grant_access(agent=agent, tool=tool, actor=ACTOR)
    Configuration.objects.update(keep_calls_days=730)
    Grant.objects.update(created_at=NOW - 2 * YEAR)
    Tool.objects.update(first_seen_at=NOW - 2 * YEAR)


def refused(calls: list[Invocation], at: datetime) -> Iterator[str]:
    """The calls that the present grants do not allow."""
    snapshot = load_snapshot()
    tools = {
        (snapshot.servers[each.server_id].slug, each.key): each for each in snapshot.tools.values()
    }
    place = snapshot.endpoints["default"]
    for call in calls:
        tool = tools[call.server_slug, call.tool_name]
        if not may_call(
            snapshot.agents[call.agent_slug],
            place,
            tool,
            json.loads(call.arguments),
            at.timestamp(),
        ):
            yield call.pk


@pytest.mark.exhaustive
@pytest.mark.both_databases
@pytest.mark.parametrize("quarter", [1, 2, 3, 4])
def test_proposals_over_a_year_stop_no_call_that_was_used(quarter: int) -> None:
    configured()
    habits = Habits(random.Random(11))
    count = 3_000
    calls = [habits.call(number, NOW - YEAR * (1 - number / count)) for number in range(count)]
    at = NOW - YEAR + timedelta(days=91 * quarter)
    # nothing is known of the calls to come
    Invocation.objects.bulk_create(
        [call for call in calls if call.received_at < at], batch_size=500
    )
    call_hours.count_due(at)
    refresh_findings(at, seconds=float("inf"))
    kinds: set[str] = set()
    for days in PERIODS:
        used = [call for call in calls if at - timedelta(days=days) <= call.received_at < at]
        found = load_findings(list(select_candidates()), days=days).proposals.values()
        assert not any(each.stops for each in found)
        with transaction.atomic():
            for each in found:
                apply_grant_proposal(
                    grant=each.grant, key=each.key, days=days, now=at, actor=ACTOR, user=None
                )
            assert not list(refused(used, at)), f"{days} days until {at}"
            transaction.set_rollback(True)
        kinds |= {each.kind for each in found}
    assert kinds == {"withdraw", "tools", "pins"}
