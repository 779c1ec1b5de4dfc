"""Who can call what: every cell says what "Why?" says, and the narrowest grants are what was
missing."""

from __future__ import annotations

import itertools

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.policy.access import is_covered_by_grant
from mcpregistry.domain.policy.risk import RiskLevel, assess_risk
from mcpregistry.models import Agent, Endpoint, Grant, PolicyRule, Server, Tool
from mcpregistry.services.access import agents, grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy import explain
from mcpregistry.services.policy import table as table_module
from mcpregistry.services.policy.explain import explain_decision
from mcpregistry.services.policy.rules import save_rule
from mcpregistry.services.policy.table import (
    MOST_TICKS,
    AccessTable,
    CellStanding,
    TableFilter,
    find_commonest_cause,
    propose_narrowest_grants,
    select_tools,
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
        grants.grant_access(agent=Agent.objects.get(slug=slug), server=bank, actor=ACTOR)
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
        table = AccessTable(where, select_tools(TableFilter()), now)
        for agent, tool in itertools.product(Agent.objects.all(), select_tools(TableFilter())):
            cell = table.build_cell(agent, tool)
            told = explain_decision(agent=agent, endpoint=where, tool=tool, now=now)
            seen.add(cell.standing)
            assert told.listed is (cell.standing not in (CellStanding.HIDDEN, CellStanding.ABSENT))
            if told.decision:
                assert cell.standing == told.decision.outcome
            else:
                wrong = [
                    f"{stage.fact} {stage.remedy}".strip()
                    for stage in told.stages
                    if stage.ok is False
                ]
                assert cell.why in wrong
    assert seen == {*CellStanding} - {CellStanding.ASK}


@pytest.mark.exhaustive
def test_a_failed_server_hides_nothing_of_who_lacks_a_grant(endpoint: Endpoint) -> None:
    Server.objects.filter(slug="bank").update(unavailable_since=timezone.now())
    look = select_tools(TableFilter(search="look")).get(server__slug="bank")
    table = AccessTable(endpoint, select_tools(TableFilter()), timezone.now())
    words = {
        slug: table.build_cell(Agent.objects.get(slug=slug), look).word
        for slug in ("ann", "ben", "cleo")
    }
    assert words == {"ann": "server failed", "ben": "capabilities", "cleo": "not granted"}


def test_the_narrowest_grants_let_the_agent_see_exactly_these_tools(endpoint: Endpoint) -> None:
    narrow = Endpoint.objects.get(slug="narrow")
    cleo = Agent.objects.get(slug="cleo")
    ben = Agent.objects.get(slug="ben")
    look = Tool.objects.select_related("server", "latest").get(server__slug="bank", name="look")
    table = AccessTable(narrow, select_tools(TableFilter()), timezone.now())
    assert table.build_cell(cleo, look).lacks == ("agent", "endpoint")
    assert table.build_cell(cleo, look).then is CellStanding.ALLOW
    assert not table.build_cell(
        ben, look
    ).lacks  # its capabilities are in the way, which no grant helps
    rows = propose_narrowest_grants(table, [(cleo, look), (ben, look), (cleo, look)])
    assert [(row.agent, row.endpoint, row.tool, row.server) for row in rows] == [
        (cleo, None, look, None),
        (None, narrow, look, None),
    ]
    grants.save_all(rows, actor=ACTOR)
    table = AccessTable(narrow, select_tools(TableFilter()), timezone.now())
    visible = {
        str(tool)
        for tool in select_tools(TableFilter())
        if table.build_cell(cleo, tool).standing is CellStanding.ALLOW
    }
    assert visible == {"bank::look"}
    assert not propose_narrowest_grants(table, [(cleo, look)])


@pytest.mark.exhaustive
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
    for level in RiskLevel:
        found = {tool.pk for tool in select_tools(TableFilter(risk=level))}
        assert found == {tool.pk for tool in Tool.objects.all() if assess_risk(tool).level is level}


@pytest.mark.exhaustive
def test_an_empty_list_has_its_true_cause(endpoint: Endpoint) -> None:
    def cause(slug: str, where: Endpoint = endpoint) -> str:
        return find_commonest_cause(Agent.objects.get(slug=slug), where, timezone.now()).fact

    assert "capabilities do not cover" in cause("ben")
    assert cause("cleo") == "The agent has no grant yet. Add a grant."
    assert "disabled" in cause("dan")
    assert "endpoint has no grant" in cause("ann", Endpoint.objects.get(slug="narrow"))
    Grant.objects.filter(agent__slug="ben").update(expires_at=timezone.now())
    assert cause("ben") == "All grants of the agent have expired. Add a new grant."
    tool = Tool.objects.get(server__slug="bank", name="new")
    grants.grant_access(agent=Agent.objects.get(slug="cleo"), tool=tool, actor=ACTOR)
    assert cause("cleo").startswith("The tool's definition is not approved yet")


def test_a_larger_table_asks_no_more_of_the_database(endpoint: Endpoint) -> None:
    def asked(slugs: list[str], most: int) -> int:
        people = list(Agent.objects.filter(slug__in=slugs))
        with CaptureQueriesContext(connection) as questions:
            tools = list(select_tools(TableFilter())[:most])
            table = AccessTable(endpoint, tools, timezone.now())
            for tool in tools:
                table.build_row(tool, people)
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
            module,
            "is_covered_by_grant",
            lambda grant, tool: looked.append(grant) or is_covered_by_grant(grant, tool),
        )
    assert (
        AccessTable(endpoint, [pay], timezone.now()).build_cell(ann, pay).standing
        is CellStanding.DENY
    )
    assert 0 < len(looked) <= 4


def test_more_ticks_than_one_page_has_are_refused_and_none_is_dropped(endpoint: Endpoint) -> None:
    tools = list(select_tools(TableFilter()))
    cleo = Agent.objects.get(slug="cleo")
    table = AccessTable(endpoint, tools, timezone.now())
    many = [(cleo, tools[number % len(tools)]) for number in range(MOST_TICKS)]
    assert propose_narrowest_grants(table, many)
    with pytest.raises(Conflict):
        propose_narrowest_grants(table, [*many, many[0]])
