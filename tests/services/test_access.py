"""Agents, tokens and grants: shown once, hashed, expiring, audited."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.policy.access import has_capability, is_unambiguous
from mcpregistry.models import Agent, AuditEntry, Grant, Server, Token
from mcpregistry.queries import consequences
from mcpregistry.services.access import agents, grants, tokens
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import lifecycle

pytestmark = pytest.mark.django_db
ACTOR = "test"


@pytest.fixture
def agent() -> Agent:
    return agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)


def test_a_tokens_text_is_nowhere_in_the_database(agent: Agent):
    token, raw = tokens.issue_token(name="n", agent=agent, actor=ACTOR)
    secret = raw[len(token.prefix) :]
    assert secret not in repr([*Token.objects.values(), *AuditEntry.objects.values()])
    assert tokens.find_token(raw) == token


def test_tokens_are_long_and_never_alike(agent: Agent):
    raws = {tokens.issue_token(name="n", agent=agent, actor=ACTOR)[1] for _ in range(20)}
    assert len(raws) == 20
    assert all(raw.startswith("slp_") and len(raw) > 40 for raw in raws)


def test_a_token_lives_90_days_unless_told_otherwise(agent: Agent):
    token, _ = tokens.issue_token(name="n", agent=agent, actor=ACTOR)
    assert token.expires_at is not None
    assert abs(token.expires_at - timezone.now() - timedelta(days=90)) < timedelta(minutes=1)
    with pytest.raises(ConfigInvalid):
        tokens.issue_token(name="n", agent=agent, actor=ACTOR, expires_at=timezone.now())


@pytest.mark.attack
@pytest.mark.parametrize("how", ["revoked", "expired", "disabled", "changed", "empty", "surrogate"])
def test_a_dead_token_is_not_found(agent: Agent, how: str):
    token, raw = tokens.issue_token(name="n", agent=agent, actor=ACTOR)
    if how == "revoked":
        tokens.revoke_token(token=token, actor=ACTOR)
    elif how == "expired":
        Token.objects.update(expires_at=timezone.now())
    elif how == "disabled":
        Agent.objects.update(enabled=False)
    else:
        raw = {
            "changed": raw[:-1] + ("a" if raw[-1] != "a" else "b"),
            "empty": "",
            "surrogate": raw + "\ud800",
        }[how]
    assert tokens.find_token(raw) is None


def test_a_token_of_a_person_who_left_is_not_found(django_user_model: Any):
    person = django_user_model.objects.create_user("u")
    _, raw = tokens.issue_token(name="n", user=person, actor=ACTOR)
    assert tokens.find_token(raw) is not None
    person.is_active = False
    person.save()
    assert tokens.find_token(raw) is None


def test_a_token_needs_one_owner(agent: Agent, django_user_model: Any):
    for owners in ({}, {"agent": agent, "user": django_user_model.objects.create_user("u")}):
        with pytest.raises(ConfigInvalid):
            tokens.issue_token(name="n", actor=ACTOR, **owners)
    assert not Token.objects.exists()


def test_revoking_twice_keeps_the_first_time(agent: Agent):
    token, _ = tokens.issue_token(name="n", agent=agent, actor=ACTOR)
    tokens.revoke_token(token=token, actor=ACTOR)
    first = Token.objects.get().revoked_at
    tokens.revoke_token(token=token, actor=ACTOR)
    assert Token.objects.get().revoked_at == first
    assert AuditEntry.objects.filter(kind="token.revoked").count() == 1


def test_a_persons_token_is_told_of_as_the_persons(django_user_model: Any):
    kim, other = (django_user_model.objects.create_user(name) for name in ("kim", "other"))
    token, _ = tokens.issue_token(name="n", user=kim, actor=ACTOR)
    tokens.issue_token(name="n", user=other, actor=ACTOR)
    told = " ".join(consequences.revoking_token(token))
    assert "The token of 'kim' is refused" in told
    assert "'kim' has no other token" in told
    tokens.revoke_token(token=token, actor=ACTOR)
    assert AuditEntry.objects.get(kind="token.revoked").subject == "user:kim"


@pytest.mark.parametrize("overlap", [timedelta(hours=1), timedelta(days=7)])
def test_a_token_is_rotated_once_and_its_successor_lives_as_long(agent: Agent, overlap: timedelta):
    token, _ = tokens.issue_token(name="n", agent=agent, actor=ACTOR)
    successor, _ = tokens.rotate_token(token=token, actor=ACTOR, overlap=overlap)
    token.refresh_from_db()
    assert token.expires_at is not None
    assert token.expires_at <= timezone.now() + overlap
    with pytest.raises(ConfigInvalid, match="already rotated"):
        tokens.rotate_token(token=token, actor=ACTOR)
    third, _ = tokens.rotate_token(token=successor, actor=ACTOR)
    assert third.expires_at is not None
    assert third.expires_at - timezone.now() > timedelta(days=89)


@pytest.mark.parametrize("capabilities", ["mcp_integration", {"a": 1}, [1], [None], None])
def test_capabilities_are_a_list_of_names(capabilities: Any):
    with pytest.raises(ConfigInvalid):
        agents.save_agent(agent=Agent(slug="x", capabilities=capabilities), actor=ACTOR)
    assert not Agent.objects.exists()


def test_the_same_grant_is_not_made_twice_but_a_narrower_one_is_another(agent: Agent):
    server = Server.objects.create(slug="s")
    narrow = Grant(agent=agent, server=server, argument_pins={"a": 1})
    grants.save_grant(grant=narrow, actor=ACTOR)
    first = grants.grant_access(agent=agent, server=server, actor=ACTOR)
    assert first != narrow
    assert grants.grant_access(agent=agent, server=server, actor=ACTOR) == first
    assert Grant.objects.count() == 2


@pytest.mark.parametrize("pins", [[], "x", 1, None])
def test_pins_are_an_object(agent: Agent, pins: Any):
    with pytest.raises(ConfigInvalid):
        grants.save_grant(
            grant=Grant(agent=agent, server=Server.objects.create(slug="s"), argument_pins=pins),
            actor=ACTOR,
        )


def test_every_verb_is_in_the_audit_log(agent: Agent):
    given = grants.grant_access(agent=agent, server=Server.objects.create(slug="s"), actor=ACTOR)
    grants.withdraw_grant(grant=given, actor=ACTOR)
    agent.name = "Ann"
    agents.save_agent(agent=agent, actor=ACTOR)
    kinds = list(AuditEntry.objects.order_by("seq").values_list("kind", flat=True))
    assert kinds == ["agent.created", "grant.created", "grant.withdrawn", "agent.changed"]
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {ACTOR}


def may_use(slug: str) -> set[str]:
    """The tools that the agent's capabilities reach, of all that serve."""
    snapshot = load_snapshot()
    agent = snapshot.agents[slug]
    pairs = [(snapshot.servers[tool.server_id], tool) for tool in snapshot.tools.values()]
    return {
        f"{server.slug}::{tool.name}"
        for server, tool in pairs
        if has_capability(agent, server, tool)
    }


@pytest.mark.attack
def test_a_server_that_comes_later_gives_no_agent_more_than_it_had():
    serving("git", "push", "pull")
    agent = agents.save_agent(agent=Agent(slug="ann", capabilities=["mcp_git_push"]), actor=ACTOR)
    assert may_use("ann") == {"git::push"}
    with pytest.raises(ConfigInvalid, match="has two meanings") as refused:
        serving("git_push", "anything")
    assert "Write mcp_git::push in" in refused.value.remedy
    with pytest.raises(ConfigInvalid, match="has two meanings"):
        serving("other", slug_later="git_push")
    agent.capabilities = ["mcp_git::push"]
    agents.save_agent(agent=agent, actor=ACTOR)
    serving("git_push", "anything")
    assert may_use("ann") == {"git::push"}
    agent.capabilities = ["mcp_git_push"]
    with pytest.raises(ConfigInvalid, match="more than one meaning") as refused:
        agents.save_agent(agent=agent, actor=ACTOR)
    assert "Write mcp_git::push or mcp_git_push::* in" in refused.value.remedy


@pytest.mark.attack
def test_a_capability_that_has_become_ambiguous_counts_for_nothing():
    serving("a_b", "c")
    agents.save_agent(agent=Agent(slug="ann", capabilities=["mcp_a_b_c"]), actor=ACTOR)
    assert may_use("ann") == {"a_b::c"}
    server = serving("z", "b_c")
    Server.objects.filter(pk=server.pk).update(slug="a")  # past every check of ours
    assert may_use("ann") == set()


def serving(slug: str, *tools: str, slug_later: str = "") -> Server:
    server = lifecycle.save_server(server=Server(slug=slug, command=["x"]), actor=ACTOR)
    server = lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    observe.observe(
        server=server, listed=[{"name": name, "inputSchema": {"type": "object"}} for name in tools]
    )
    decisions.approve_waiting(server=server, actor=ACTOR)
    if slug_later:
        server.slug = slug_later
        lifecycle.save_server(server=server, actor=ACTOR)
    return server


def test_what_people_are_shown_is_the_spelling_that_has_one_meaning():
    shown = re.findall(r'\["(\w[^"]*)"\]', str(Agent._meta.get_field("capabilities").help_text))
    assert len(shown) == 3
    assert all(map(is_unambiguous, shown)), shown
