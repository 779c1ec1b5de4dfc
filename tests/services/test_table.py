"""Who can call what: every cell says what "Why?" says, and the narrowest grants are what was
missing."""

from __future__ import annotations

import itertools

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.policy.access import covers
from mcpregistry.domain.policy.risk import Level, risk_of
from mcpregistry.models import Agent, Endpoint, Grant, PolicyRule, Server, Tool
from mcpregistry.services.access import agents, grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy import explain
from mcpregistry.services.policy import table as table_module
from mcpregistry.services.policy.explain import why
from mcpregistry.services.policy.rules import save_rule
from mcpregistry.services.policy.table import (
    MOST_TICKS,
    Standing,
    Table,
    Wanted,
    narrowest,
    tools_of,
    why_nothing,
)

pytestmark = pytest.mark.django_db
ACTOR = "test"


@pytest.fixture
def endpoint() -> Endpoint:
    """Agents and tools in every state that a cell can have."""
    for slug in ("bank", "off", "draft"):
        server = Server.objects.create(slug=slug, command=["x"], lifecycle="active")
        observe.observe(
            server=server,
            listed=[{"name": name, "inputSchema": {"type": "object"}} for name in ("pay", "look")],
        )
        decisions.approve_waiting(server=server, actor=ACTOR)
    bank = Server.objects.get(slug="bank")
    observe.observe(
        server=bank,
        listed=[
            {"name": name, "inputSchema": {"type": "object"}} for name in ("pay", "look", "new")
        ],
    )
    Server.objects.filter(slug="off").update(lifecycle="disabled")
    for slug, capabilities in (
        ("ann", ["mcp_integration"]),
        ("ben", []),
        ("cleo", ["mcp_integration"]),
        ("dan", ["mcp_integration"]),
    ):
        agents.save_agent(agent=Agent(slug=slug, capabilities=capabilities), actor=ACTOR)
    Agent.objects.filter(slug="dan").update(enabled=False)
    for slug in ("ann", "ben"):
        grants.grant(agent=Agent.objects.get(slug=slug), server=bank, actor=ACTOR)
    save_rule(
        rule=PolicyRule(name="No pay", outcome="deny", tool=bank.tools.get(name="pay")), actor=ACTOR
    )
    save_rule(
        rule=PolicyRule(name="Looks run", outcome="allow", tool=bank.tools.get(name="look")),
        actor=ACTOR,
    )
    agents.save_endpoint(endpoint=Endpoint(slug="narrow", scope="listed"), actor=ACTOR)
    return agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)


def test_each_cell_is_what_why_says(endpoint: Endpoint) -> None:
    now = timezone.now()
    seen = set()
    for where in Endpoint.objects.all():
        table = Table(where, tools_of(Wanted()), now)
        for agent, tool in itertools.product(Agent.objects.all(), tools_of(Wanted())):
            cell = table.cell(agent, tool)
            told = why(agent=agent, endpoint=where, tool=tool, now=now)
            seen.add(cell.standing)
            assert told.listed is (cell.standing not in (Standing.HIDDEN, Standing.ABSENT))
            if told.decision:
                assert cell.standing == told.decision.outcome
            else:
                wrong = [
                    f"{stage.fact} {stage.remedy}".strip()
                    for stage in told.stages
                    if stage.ok is False
                ]
                assert cell.why in wrong
    assert seen == {*Standing} - {Standing.ASK}


def test_a_failed_server_hides_nothing_of_who_lacks_a_grant(endpoint: Endpoint) -> None:
    Server.objects.filter(slug="bank").update(unavailable_since=timezone.now())
    look = tools_of(Wanted(search="look")).get(server__slug="bank")
    table = Table(endpoint, tools_of(Wanted()), timezone.now())
    words = {
        slug: table.cell(Agent.objects.get(slug=slug), look).word for slug in ("ann", "ben", "cleo")
    }
    assert words == {"ann": "server failed", "ben": "capabilities", "cleo": "not granted"}


def test_the_narrowest_grants_let_the_agent_see_exactly_these_tools(endpoint: Endpoint) -> None:
    narrow = Endpoint.objects.get(slug="narrow")
    cleo = Agent.objects.get(slug="cleo")
    ben = Agent.objects.get(slug="ben")
    look = Tool.objects.select_related("server", "latest").get(server__slug="bank", name="look")
    table = Table(narrow, tools_of(Wanted()), timezone.now())
    assert table.cell(cleo, look).lacks == ("agent", "endpoint")
    assert table.cell(cleo, look).then is Standing.ALLOW
    assert not table.cell(ben, look).lacks  # its capabilities are in the way, which no grant helps
    rows = narrowest(table, [(cleo, look), (ben, look), (cleo, look)])
    assert [(row.agent, row.endpoint, row.tool, row.server) for row in rows] == [
        (cleo, None, look, None),
        (None, narrow, look, None),
    ]
    grants.save_all(rows, actor=ACTOR)
    table = Table(narrow, tools_of(Wanted()), timezone.now())
    visible = {
        str(tool)
        for tool in tools_of(Wanted())
        if table.cell(cleo, tool).standing is Standing.ALLOW
    }
    assert visible == {"bank::look"}
    assert not narrowest(table, [(cleo, look)])


def test_risk_is_filtered_as_it_is_reckoned(endpoint: Endpoint) -> None:
    server = Server.objects.get(slug="draft")
    known = itertools.product((None, True, False), repeat=3)
    for number, (reads, destroys, abroad) in enumerate(known):
        now = timezone.now()
        Tool.objects.create(
            server=server,
            name=f"t{number}",
            read_only=reads,
            destructive=destroys,
            open_world=abroad,
            first_seen_at=now,
            last_seen_at=now,
        )
    for level in Level:
        found = {tool.pk for tool in tools_of(Wanted(risk=level))}
        assert found == {tool.pk for tool in Tool.objects.all() if risk_of(tool).level is level}


def test_an_empty_list_has_its_true_cause(endpoint: Endpoint) -> None:
    def cause(slug: str, where: Endpoint = endpoint) -> str:
        return why_nothing(Agent.objects.get(slug=slug), where, timezone.now()).fact

    assert "capabilities do not cover" in cause("ben")
    assert cause("cleo") == "The agent has no grant yet. Add a grant."
    assert "disabled" in cause("dan")
    assert "endpoint has no grant" in cause("ann", Endpoint.objects.get(slug="narrow"))
    Grant.objects.filter(agent__slug="ben").update(expires_at=timezone.now())
    assert cause("ben") == "All grants of the agent have expired. Add a new grant."
    tool = Tool.objects.get(server__slug="bank", name="new")
    grants.grant(agent=Agent.objects.get(slug="cleo"), tool=tool, actor=ACTOR)
    assert cause("cleo").startswith("The tool's definition is not approved yet")


def test_a_larger_table_asks_no_more_of_the_database(endpoint: Endpoint) -> None:
    def asked(slugs: list[str], most: int) -> int:
        people = list(Agent.objects.filter(slug__in=slugs))
        with CaptureQueriesContext(connection) as questions:
            tools = list(tools_of(Wanted())[:most])
            table = Table(endpoint, tools, timezone.now())
            for tool in tools:
                table.row(tool, people)
        return len(questions)

    assert asked(["ann"], 1) == asked(["ann", "ben", "cleo", "dan"], 6)


def test_a_cell_looks_at_the_grants_about_its_tool_alone(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many grants an agent has."""
    ann = Agent.objects.get(slug="ann")
    pay = Tool.objects.get(server__slug="bank", name="pay")
    others = Tool.objects.filter(server__slug="draft")
    Grant.objects.bulk_create(Grant(agent=ann, tool=tool) for tool in others for _ in range(50))
    looked: list[object] = []
    for module in (explain, table_module):
        monkeypatch.setattr(
            module, "covers", lambda grant, tool: looked.append(grant) or covers(grant, tool)
        )
    assert Table(endpoint, [pay], timezone.now()).cell(ann, pay).standing is Standing.DENY
    assert 0 < len(looked) <= 4


def test_more_ticks_than_one_page_has_are_refused_and_none_is_dropped(endpoint: Endpoint) -> None:
    tools = list(tools_of(Wanted()))
    cleo = Agent.objects.get(slug="cleo")
    table = Table(endpoint, tools, timezone.now())
    many = [(cleo, tools[number % len(tools)]) for number in range(MOST_TICKS)]
    assert narrowest(table, many)
    with pytest.raises(Conflict):
        narrowest(table, [*many, many[0]])
