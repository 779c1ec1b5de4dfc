"""Agents, tokens and grants: shown once, hashed, expiring, audited."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Agent, AuditEntry, Grant, Server, Token
from mcpregistry.services import access

pytestmark = pytest.mark.django_db
ACTOR = "test"


@pytest.fixture
def agent() -> Agent:
    return access.save_agent(agent=Agent(slug="ann"), actor=ACTOR)


def test_a_tokens_text_is_nowhere_in_the_database(agent: Agent):
    token, raw = access.issue_token(name="n", agent=agent, actor=ACTOR)
    secret = raw[len(token.prefix) :]
    assert secret not in repr([*Token.objects.values(), *AuditEntry.objects.values()])
    assert access.find_token(raw) == token


def test_tokens_are_long_and_never_alike(agent: Agent):
    raws = {access.issue_token(name="n", agent=agent, actor=ACTOR)[1] for _ in range(20)}
    assert len(raws) == 20
    assert all(raw.startswith("slp_") and len(raw) > 40 for raw in raws)


def test_a_token_lives_90_days_unless_told_otherwise(agent: Agent):
    token, _ = access.issue_token(name="n", agent=agent, actor=ACTOR)
    assert token.expires_at is not None
    assert abs(token.expires_at - timezone.now() - timedelta(days=90)) < timedelta(minutes=1)
    with pytest.raises(ConfigInvalid):
        access.issue_token(name="n", agent=agent, actor=ACTOR, expires_at=timezone.now())


@pytest.mark.attack
@pytest.mark.parametrize("how", ["revoked", "expired", "disabled", "changed", "empty", "surrogate"])
def test_a_dead_token_is_not_found(agent: Agent, how: str):
    token, raw = access.issue_token(name="n", agent=agent, actor=ACTOR)
    if how == "revoked":
        access.revoke_token(token=token, actor=ACTOR)
    elif how == "expired":
        Token.objects.update(expires_at=timezone.now())
    elif how == "disabled":
        Agent.objects.update(enabled=False)
    else:
        raw = {"changed": raw[:-1] + ("a" if raw[-1] != "a" else "b"), "empty": "", "surrogate": raw + "\ud800"}[how]
    assert access.find_token(raw) is None


def test_a_token_of_a_person_who_left_is_not_found(django_user_model: Any):
    person = django_user_model.objects.create_user("u")
    _, raw = access.issue_token(name="n", user=person, actor=ACTOR)
    assert access.find_token(raw) is not None
    person.is_active = False
    person.save()
    assert access.find_token(raw) is None


def test_a_token_needs_one_owner(agent: Agent, django_user_model: Any):
    for owners in ({}, {"agent": agent, "user": django_user_model.objects.create_user("u")}):
        with pytest.raises(ConfigInvalid):
            access.issue_token(name="n", actor=ACTOR, **owners)
    assert not Token.objects.exists()


def test_revoking_twice_keeps_the_first_time(agent: Agent):
    token, _ = access.issue_token(name="n", agent=agent, actor=ACTOR)
    access.revoke_token(token=token, actor=ACTOR)
    first = Token.objects.get().revoked_at
    access.revoke_token(token=token, actor=ACTOR)
    assert Token.objects.get().revoked_at == first


@pytest.mark.parametrize("capabilities", ["mcp_integration", {"a": 1}, [1], [None], None])
def test_capabilities_are_a_list_of_names(capabilities: Any):
    with pytest.raises(ConfigInvalid):
        access.save_agent(agent=Agent(slug="x", capabilities=capabilities), actor=ACTOR)
    assert not Agent.objects.exists()


def test_the_same_grant_is_not_made_twice_but_a_narrower_one_is_another(agent: Agent):
    server = Server.objects.create(slug="s")
    narrow = Grant(agent=agent, server=server, argument_pins={"a": 1})
    access.save_grant(grant=narrow, actor=ACTOR)
    first = access.grant(agent=agent, server=server, actor=ACTOR)
    assert first != narrow
    assert access.grant(agent=agent, server=server, actor=ACTOR) == first
    assert Grant.objects.count() == 2


@pytest.mark.parametrize("pins", [[], "x", 1, None])
def test_pins_are_an_object(agent: Agent, pins: Any):
    with pytest.raises(ConfigInvalid):
        access.save_grant(
            grant=Grant(agent=agent, server=Server.objects.create(slug="s"), argument_pins=pins), actor=ACTOR
        )


def test_every_verb_is_in_the_audit_log(agent: Agent):
    given = access.grant(agent=agent, server=Server.objects.create(slug="s"), actor=ACTOR)
    access.withdraw_grant(grant=given, actor=ACTOR)
    agent.name = "Ann"
    access.save_agent(agent=agent, actor=ACTOR)
    kinds = list(AuditEntry.objects.order_by("seq").values_list("kind", flat=True))
    assert kinds == ["agent.created", "grant.created", "grant.withdrawn", "agent.changed"]
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {ACTOR}
