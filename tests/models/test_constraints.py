"""What the tables refuse, whatever the forms let through."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from mcpregistry.models import Agent, Definition, Endpoint, Grant, Server, Token, Tool, Workspace

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def made(django_user_model: Any) -> dict[str, Any]:
    server = Server.objects.create(slug="s")
    tool = Tool.objects.create(server=server, name="t", first_seen_at=NOW, last_seen_at=NOW)
    return {
        "agent": Agent.objects.create(slug="a"),
        "endpoint": Endpoint.objects.create(slug="e"),
        "server": server,
        "tool": tool,
        "user": django_user_model.objects.create_user("u"),
    }


def refused(create: Any) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        create()


@pytest.mark.parametrize(
    ("parts", "right"),
    [
        (("agent", "server"), True),
        (("agent", "tool"), True),
        (("endpoint", "server"), True),
        (("endpoint", "tool"), True),
        ((), False),
        (("agent",), False),
        (("server",), False),
        (("agent", "endpoint", "server"), False),
        (("agent", "server", "tool"), False),
        (("agent", "endpoint"), False),
        (("server", "tool"), False),
    ],
)
def test_a_grant_has_one_holder_and_one_object(
    made: dict[str, Any], parts: tuple[str, ...], right: bool
):
    facts = {part: made[part] for part in parts}
    if right:
        assert Grant.objects.create(**facts).pk
    else:
        refused(lambda: Grant.objects.create(**facts))


def test_a_token_belongs_to_an_agent_or_to_a_person(made: dict[str, Any]):
    Token.objects.create(agent=made["agent"], name="n", hash="1")
    Token.objects.create(user=made["user"], name="n", hash="2")
    refused(lambda: Token.objects.create(name="n", hash="3"))
    refused(
        lambda: Token.objects.create(agent=made["agent"], user=made["user"], name="n", hash="4")
    )
    refused(lambda: Token.objects.create(agent=made["agent"], name="n", hash="1"))


def test_names_are_unique_where_they_are_looked_up_by(made: dict[str, Any]):
    refused(lambda: Server.objects.create(slug="s"))
    refused(lambda: Agent.objects.create(slug="a"))
    refused(lambda: Endpoint.objects.create(slug="e"))
    refused(
        lambda: Tool.objects.create(
            server=made["server"], name="t", first_seen_at=NOW, last_seen_at=NOW
        )
    )
    Definition.objects.create(tool=made["tool"], hash="h", body="{}", seen_at=NOW)
    refused(lambda: Definition.objects.create(tool=made["tool"], hash="h", body="{}", seen_at=NOW))
    facts = {"endpoint": made["endpoint"], "agent": made["agent"]}
    Workspace.objects.create(directory="/x", **facts)
    refused(lambda: Workspace.objects.create(directory="/x", **facts))


@pytest.mark.attack
@pytest.mark.parametrize(
    "slug",
    ["", "a__b", "-a", "_a", ".a", "a b", "a/b", "ü", "a\nb", "a::b", "x" * 64, "a\x00", "\uff41"],
)
def test_a_slug_is_short_plain_and_holds_no_separator(slug: str):
    with pytest.raises(ValidationError):
        Server(slug=slug, command=["x"]).full_clean()


@pytest.mark.parametrize("slug", ["a", "A1", "a-b_c.d", "9", "x" * 63])
def test_an_honest_slug_is_taken(slug: str):
    Server(slug=slug, command=["x"]).full_clean()


def test_what_waits_for_a_decision(made: dict[str, Any]):
    tool = made["tool"]
    first = Definition.objects.create(tool=tool, hash="1", body="{}", seen_at=NOW)
    Tool.objects.update(latest=first)
    assert [t.status for t in Tool.objects.waiting()] == ["quarantined"]
    Tool.objects.update(pinned=first)
    assert not Tool.objects.waiting()
    assert Tool.objects.get().status == "approved"
    second = Definition.objects.create(tool=tool, hash="2", body="{}", seen_at=NOW)
    Tool.objects.update(latest=second)
    assert [t.status for t in Tool.objects.waiting()] == ["changed"]
    Definition.objects.filter(pk=second.pk).update(decided_at=NOW)
    assert not Tool.objects.waiting()
    Tool.objects.update(pinned=None)
    assert Tool.objects.get().status == "rejected"
    Tool.objects.update(present=False)
    assert Tool.objects.get().status == "gone"
