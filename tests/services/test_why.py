"""Why a tool is listed or not, and what would happen to a call: each stage can be the one that
fails."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from mcpregistry.calls.catalog import Catalogues, DownstreamTools
from mcpregistry.domain.errors import NotFound
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    Endpoint,
    Grant,
    Invocation,
    Permit,
    PolicyRule,
    Server,
    Tool,
)
from mcpregistry.services.access import agents, grants
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy.explain import Why, explain_decision, find_tool
from mcpregistry.services.policy.rules import save_rule

pytestmark = pytest.mark.django_db
ACTOR = "test"
NOW = timezone.now()
SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


@pytest.fixture
def tool() -> Tool:
    server = Server.objects.create(slug="bank", command=["x"], lifecycle="active")
    listed = [
        {"name": "pay", "inputSchema": SCHEMA},
        {"name": "look", "inputSchema": {"type": "object"}},
    ]
    observe.observe(server=server, listed=listed)
    decisions.approve_waiting(server=server, actor=ACTOR)
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    grants.grant_access(agent=agent, server=server, actor=ACTOR)
    User.objects.create(username="eve").groups.add(Group.objects.get(name="approver"))
    return find_tool("bank::pay")


def ask(tool: Tool, arguments: dict[str, Any] | None = None) -> Why:
    """As the page does, and what it says of the list must be what hosts see."""
    agent = Agent.objects.get(slug="ann")
    endpoint = Endpoint.objects.get(slug="default")
    found = explain_decision(
        agent=agent,
        endpoint=endpoint,
        tool=find_tool(str(tool)),
        now=timezone.now(),
        arguments=arguments,
    )
    snapshot = load_snapshot()
    if "ann" in snapshot.agents and "default" in snapshot.endpoints:
        catalogue = Catalogues([DownstreamTools()]).get(
            snapshot,
            snapshot.endpoints["default"],
            snapshot.agents["ann"],
            timezone.now().timestamp(),
        )
        listed = {
            (e.offer.server.slug, e.offer.tool.name): name for name, e in catalogue.entries.items()
        }
        assert (listed.get(("bank", "pay")) or "") == found.name
        assert found.listed is (("bank", "pay") in listed)
    else:
        assert not found.listed
    return found


def _changed(tool: Tool) -> None:
    observe.observe(server=tool.server, listed=[{"name": "pay", "inputSchema": {"type": "object"}}])


def _rejected(tool: Tool) -> None:
    assert tool.latest is not None
    decisions.reject(definition=tool.latest, actor=ACTOR)


BROKEN: list[tuple[str, str, Callable[[Tool], Any]]] = [
    ("agent", "The agent ann is disabled.", lambda t: Agent.objects.update(enabled=False)),
    (
        "endpoint",
        "The endpoint default is disabled.",
        lambda t: Endpoint.objects.update(enabled=False),
    ),
    ("server", "The server bank is draft.", lambda t: Server.objects.update(lifecycle="draft")),
    (
        "server",
        "The server bank is disabled.",
        lambda t: Server.objects.update(lifecycle="disabled"),
    ),
    (
        "availability",
        "The server has failed",
        lambda t: Server.objects.update(unavailable_since=NOW),
    ),
    ("present", "no longer offers", lambda t: observe.observe(server=t.server, listed=[])),
    ("tool", "The tool is disabled.", lambda t: Tool.objects.update(enabled=False)),
    ("definition", "has changed the tool", _changed),
    ("definition", "was rejected", _rejected),
    ("capability", "do not cover", lambda t: Agent.objects.update(capabilities=["mcp_other"])),
    ("grant", "has no grant for the tool", lambda t: Grant.objects.all().delete()),
    ("grant", "has expired", lambda t: Grant.objects.update(expires_at=NOW - timedelta(days=1))),
    (
        "endpoint's list",
        "The endpoint has no grant",
        lambda t: Endpoint.objects.update(scope="listed"),
    ),
]


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    ("stage", "says", "breaks"), BROKEN, ids=[f"{s}: {w}" for s, w, _ in BROKEN]
)
def test_the_stage_that_hides_a_tool_is_named_with_what_to_do(
    tool: Tool, stage: str, says: str, breaks: Callable[[Tool], Any]
):
    breaks(tool)
    found = ask(tool)
    failed = [s for s in found.stages if s.ok is False]
    assert [s.name for s in failed] == [stage]
    assert says in failed[0].fact
    assert failed[0].remedy
    assert found.answer.startswith("The tool is not listed and cannot be called.")
    assert says in found.answer


def test_a_listed_tool_says_its_name_and_who_would_be_asked(tool: Tool):
    found = ask(tool)
    assert (found.listed, found.name, found.asked) == (True, "bank__pay", ("eve",))
    assert found.answer == "The call waits for 1 approval (no rule matches). 1 user can approve it."
    assert "Risk high" in next(s.fact for s in found.stages if s.name == "policy")
    assert next(s for s in found.stages if s.name == "arguments").ok is None


def test_the_rule_that_decides_is_named_beside_all_others(tool: Tool):
    rules = [
        save_rule(rule=PolicyRule(**fields), actor=ACTOR)
        for fields in (
            {"name": "small", "outcome": "allow", "condition": "args.amount < 10"},
            {"name": "big", "outcome": "deny", "condition": "args.amount > 100"},
            {"name": "odd", "outcome": "deny", "condition": "args.nope", "priority": 1},
            {
                "name": "other",
                "outcome": "deny",
                "server": Server.objects.create(slug="x", command=["x"]),
            },
        )
    ]
    small = ask(tool, {"amount": 1})
    big = ask(tool, {"amount": 1000})
    assert small.decision is not None
    assert (small.decision.outcome, small.decision.rule_id) == ("allow", rules[0].pk)
    assert small.answer == "The call runs immediately: rule 'small'."
    assert big.answer == "The call is denied: rule 'big'."
    assert {v.rule.name: v.fit.value for v in small.verdicts} == {
        "small": "fits",
        "big": "condition is false",
        "odd": "condition gives no answer",
        "other": "is about something else",
    }


def test_arguments_are_checked_like_those_of_a_call(tool: Tool):
    wrong = ask(tool, {"amount": "much"})
    assert [s.name for s in wrong.stages if s.ok is False] == ["schema"]
    Grant.objects.update(argument_pins={"amount": 5})
    pinned = ask(tool, {"amount": 6})
    assert [s.name for s in pinned.stages if s.ok is False] == ["pinned arguments"]
    assert "No grant allows" in pinned.answer
    assert not [s for s in ask(tool, {"amount": 5}).stages if s.ok is False]


def test_the_agents_owner_is_asked_only_where_the_rule_says_so(tool: Tool):
    Agent.objects.update(owner=User.objects.get())
    assert ask(tool).asked == ()
    assert "but only 0 users can approve it" in ask(tool).answer
    save_rule(rule=PolicyRule(name="r", outcome="ask", requester_may_confirm=True), actor=ACTOR)
    assert ask(tool).asked == ("eve",)


def test_a_permit_speaks_for_the_call(tool: Tool):
    found = ask(tool, {"amount": 1})
    assert found.decision is not None
    assert found.decision.terms is not None
    call = Invocation.objects.create(
        id="c",
        state="succeeded",
        agent_slug="ann",
        tool_name="pay",
        exposed_name="x",
        origin="http",
        writer="w",
        received_at=NOW,
    )
    request = ApprovalRequest.objects.create(
        id="r",
        call=call,
        asked_at=NOW,
        decide_by=NOW,
        rule_fingerprint=found.decision.terms.fingerprint,
    )
    assert tool.pinned is not None
    Permit.objects.create(
        agent=Agent.objects.get(),
        tool=tool,
        definition_hash=tool.pinned.hash,
        server_revision=tool.server.revision,
        argument_pins={"amount": 1},
        expires_at=NOW + timedelta(days=1),
        request=request,
        created_by=User.objects.get(),
    )
    assert "created by eve" in ask(tool, {"amount": 1}).answer
    assert ask(tool, {"amount": 2}).permit == ""


def test_tools_are_found_by_key_and_by_exposed_name(tool: Tool):
    assert find_tool("bank__pay") == find_tool("bank::pay") == tool
    for name in ("bank::nothing", "nothing", "", "::"):
        with pytest.raises(NotFound):
            find_tool(name)


def test_a_tool_is_found_by_the_name_that_hosts_use(tool: Tool):
    Tool.objects.filter(pk=tool.pk).update(own_name="transfer")
    assert (
        find_tool("bank__transfer")
        == find_tool("bank__pay")
        == find_tool("transfer")
        == find_tool("pay")
        == tool
    )
    assert find_tool("mcp_bank_transfer", styles=("mcp_single", "double")) == tool
    with pytest.raises(NotFound):
        find_tool("mcp_bank_transfer")


def test_a_name_that_may_mean_several_tools_says_so(tool: Tool):
    other = Server.objects.create(slug="shop", command=["x"], lifecycle="active")
    observe.observe(server=other, listed=[{"name": "pay", "inputSchema": SCHEMA}])
    with pytest.raises(NotFound, match=r"'pay' can mean several tools: bank::pay, shop::pay\."):
        find_tool("pay")
    assert find_tool("bank__pay") == tool


def test_a_resource_is_shown_by_its_uri(tool: Tool):
    guide = {"uri": "docs://guide", "name": "guide"}
    observe.observe(server=tool.server, listed=[], others={"resource": [guide]})
    decisions.approve_waiting(server=tool.server, actor=ACTOR)
    agent = Agent.objects.get(slug="ann")
    endpoint = Endpoint.objects.get(slug="default")
    grants.save_grant(
        grant=Grant(agent=agent, server=tool.server, kind="resource", uri="docs://*"), actor=ACTOR
    )
    found = explain_decision(
        agent=agent,
        endpoint=endpoint,
        tool=find_tool("bank::resource:docs://guide"),
        now=timezone.now(),
    )
    assert found.name == "docs://guide"
