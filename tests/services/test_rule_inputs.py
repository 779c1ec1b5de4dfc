"""Who may not change rules does not change what rules match either."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.errors import Denied
from mcpregistry.domain.policy.conditions import FIELDS, compile_condition
from mcpregistry.models import Agent, Endpoint, PolicyRule, Server, Tool
from mcpregistry.services.access import agents
from mcpregistry.services.access.roles import OPERATOR
from mcpregistry.services.configuration.rule_inputs import list_rule_inputs
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy import rules
from mcpregistry.services.servers import lifecycle
from subagents.models import ExpertTool, LanguageModel, Provider
from subagents.services import experts, providers

pytestmark = pytest.mark.django_db
ACTOR = "test"
# Fields of conditions that no column behind them changes without a decision of its own: what a
# server says of its tools is approved with the definition, what a tool does is confirmed with the
# same right, and the rest is a fact of each call.
_ELSEWHERE = {
    "tool.kind",
    "tool.risk",
    "tool.read_only",
    "tool.destructive",
    "tool.open_world",
    "call.origin",
    "call.host",
    "call.time",
    "call.hour",
    "call.minute",
    "call.weekday",
}


@pytest.fixture
def server() -> Server:
    row = lifecycle.save_server(
        server=Server(slug="git", name="Production git", command=["x"]), actor=ACTOR
    )
    observe.observe(server=row, listed=[{"name": "push", "inputSchema": {"type": "object"}}])
    return row


@pytest.fixture
def operator() -> User:
    user = User.objects.create(username="op", password="!")
    user.groups.add(Group.objects.get(name=OPERATOR))
    return user


def rule(condition: str = "", **fields: object) -> PolicyRule:
    values: dict[str, object] = {
        "name": "guard",
        "outcome": "deny",
        "condition": condition,
    } | fields
    return rules.save_rule(rule=PolicyRule(**values), actor=ACTOR)


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.attack
@pytest.mark.parametrize(
    ("condition", "column", "value"),
    [
        ('server.slug == "git"', "slug", "other"),
        ('server.title.startsWith("Prod")', "name", "git for tests"),
        ('server["title"].contains("Prod")', "name", "git for tests"),
        ('has(server.title) && server . title != ""', "name", ""),
        ('[server].exists(each, each.slug == "git")', "slug", "other"),
        ('server.title == "git"', "slug", "other"),
    ],
)
def test_a_server_that_a_rule_reads_is_not_renamed(
    server: Server, operator: User, condition: str, column: str, value: str
) -> None:
    rule(condition)
    if condition == 'server.title == "git"':
        Server.objects.update(name="")
        server.refresh_from_db()
    setattr(server, column, value)
    with pytest.raises(Denied, match="'guard'"):
        lifecycle.save_server(server=server, actor=ACTOR, rights=operator.has_perm)
    server.refresh_from_db()
    assert getattr(server, column) != value
    setattr(server, column, value)
    lifecycle.save_server(server=server, actor=ACTOR, rights=grant_all_rights)


@pytest.mark.attack
@pytest.mark.parametrize("outcome", ["deny", "allow"])
def test_an_endpoint_that_a_rule_reads_is_not_renamed(operator: User, outcome: str) -> None:
    """Also not to the name that an allowing rule waits for."""
    row = agents.save_endpoint(endpoint=Endpoint(slug="lab"), actor=ACTOR)
    rule('call.endpoint == "prod"', outcome=outcome)
    row.slug = "prod"
    with pytest.raises(Denied, match="'guard'"):
        agents.save_endpoint(endpoint=row, actor=ACTOR, rights=operator.has_perm)


@pytest.mark.parametrize(
    ("condition", "fields"),
    [
        ('tool.name == "server.title"', {}),
        ('server.transport == "stdio" // server.title', {}),
        ("server.title != ''", {"enabled": False}),
        ("server.title != ''", {"draft": True}),
    ],
)
def test_a_rule_that_does_not_read_the_title_or_does_not_count_keeps_no_name(
    server: Server, operator: User, condition: str, fields: dict[str, object]
) -> None:
    rule(condition, **fields)
    server.name = "Another name"
    lifecycle.save_server(server=server, actor=ACTOR, rights=operator.has_perm)


def test_a_rule_about_another_server_keeps_no_name(server: Server, operator: User) -> None:
    other = lifecycle.save_server(server=Server(slug="time", command=["x"]), actor=ACTOR)
    rule("server.title != ''", server=other)
    server.name = "Another name"
    lifecycle.save_server(server=server, actor=ACTOR, rights=operator.has_perm)


@pytest.mark.attack
def test_what_else_rules_read_is_kept_as_well(server: Server, operator: User) -> None:
    tool = Tool.objects.get()
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    rule('!tool.idempotent || agent.slug == "ann"')
    tool.idempotent = True
    agent.slug = "bob"
    with pytest.raises(Denied, match="idempotent"):
        decisions.save_tool(tool=tool, actor=ACTOR, rights=operator.has_perm)
    with pytest.raises(Denied, match="slug"):
        agents.save_agent(agent=agent, actor=ACTOR, rights=operator.has_perm)
    tool.refresh_from_db()
    tool.call_energy = 1.0
    decisions.save_tool(tool=tool, actor=ACTOR, rights=operator.has_perm)


@pytest.mark.attack
@pytest.mark.parametrize("how", ["condition", "limit"])
def test_an_expert_tool_that_a_rule_names_keeps_its_name(operator: User, how: str) -> None:
    provider = providers.save_provider(provider=Provider(slug="p", kind="scripted"), actor=ACTOR)
    model = providers.save_model(
        model=LanguageModel(provider=provider, name="m", free=True), actor=ACTOR
    )
    expert = experts.save_expert(
        expert=ExpertTool(name="clerk", description="Files."), targets=[model], actor=ACTOR
    )
    rule('call.expert == "clerk"') if how == "condition" else rule(expert="clerk")
    expert.name = "scribe"
    with pytest.raises(Denied, match="'guard'"):
        experts.save_expert(expert=expert, targets=[model], actor=ACTOR, rights=operator.has_perm)


def test_every_field_of_conditions_has_a_guard_or_a_decision() -> None:
    guarded: set[str] = set()
    for columns in list_rule_inputs().values():
        guarded.update(*columns.values())
    known = {f"{variable}.{name}" for variable, names in FIELDS.items() for name in names}
    assert known - guarded - _ELSEWHERE == set(), (
        "new: guard the column behind it, or say why nobody changes it"
    )


@pytest.mark.parametrize(
    ("condition", "fields"),
    [
        ("server.slug == 'a' && call.hour > 8", {"server.slug", "call.hour"}),
        ("args.server == 'server.slug'", set()),
        ("has(server.title)", {"server.title"}),
        ("server == server", {"server.slug", "server.title", "server.transport"}),
        (
            "server.slug == 'a' && server['title'] == 'b'",
            {"server.slug", "server.title", "server.transport"},
        ),
        ("agent.slug.startsWith('ci-')", {"agent.slug"}),
    ],
)
def test_a_condition_says_which_fields_it_reads(condition: str, fields: set[str]) -> None:
    assert compile_condition(condition).fields == fields
