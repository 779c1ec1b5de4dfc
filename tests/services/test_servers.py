"""A server is inert until a person has confirmed exactly what will be launched."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.models import AuditEntry, Credential, Grant, Server, Tool
from mcpregistry.services.access import credentials, grants
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import lifecycle

pytestmark = pytest.mark.django_db
ACTOR = "test"


def draft(**facts: Any) -> Server:
    return lifecycle.save_server(
        server=Server(**{"slug": "s", "command": ["x"]} | facts), actor=ACTOR
    )


def active(**facts: Any) -> Server:
    server = draft(**facts)
    return lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())


def remote(**facts: Any) -> Server:
    return active(**{"command": [], "transport": "http", "url": "https://h/mcp"} | facts)


@pytest.mark.attack
def test_a_new_server_is_a_draft_whatever_it_claims():
    claimed = Server(slug="s", command=["x"], lifecycle="active")
    claimed.confirmed_launch = claimed.launch_hash()
    assert lifecycle.save_server(server=claimed, actor=ACTOR).lifecycle == "draft"
    assert load_snapshot().servers == {}


def test_a_confirmed_server_is_active():
    assert active().lifecycle == "active"
    assert len(load_snapshot().servers) == 1


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("command", ["x", "--evil"]),
        ("cwd", "/tmp"),
        ("env", {"A": "2"}),
        ("env", {"B": "1"}),
        ("env", {}),
    ],
)
def test_any_change_of_a_local_launch_needs_a_new_confirmation(name: str, value: Any):
    server = active(env={"A": "1"})
    setattr(server, name, value)
    saved = lifecycle.save_server(server=server, actor=ACTOR)
    assert (saved.lifecycle, saved.revision) == ("draft", 2)
    assert not saved.launch_confirmed


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "https://evil/mcp"),
        ("headers", {"A": "2"}),
        ("allowed_networks", ["10.0.0.0/8"]),
        ("transport", "sse"),
    ],
)
def test_any_change_of_where_a_remote_server_is_needs_a_new_confirmation(name: str, value: Any):
    server = remote(headers={"A": "1"})
    setattr(server, name, value)
    assert lifecycle.save_server(server=server, actor=ACTOR).lifecycle == "draft"


@pytest.mark.parametrize(
    ("name", "value", "revision"),
    [
        ("name", "New", 1),
        ("description", "x", 1),
        ("request_timeout", 5.0, 2),
        ("max_concurrency", 2, 2),
        ("max_tools", 9, 2),
        ("max_definition_bytes", 9_000, 2),
        ("shared_by", "agent", 2),
        ("asks_sampling", False, 2),
        ("resend", "never", 2),
        ("slug", "renamed", 2),
    ],
)
def test_other_changes_keep_it_active(name: str, value: Any, revision: int):
    server = active()
    setattr(server, name, value)
    saved = lifecycle.save_server(server=server, actor=ACTOR)
    assert (saved.lifecycle, saved.revision) == ("active", revision)


@pytest.mark.attack
def test_what_was_changed_after_it_was_shown_cannot_be_confirmed():
    server = draft()
    shown = server.launch_hash()
    server.command = ["evil"]
    lifecycle.save_server(server=server, actor=ACTOR)
    with pytest.raises(Conflict):
        lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=shown)
    assert Server.objects.get().lifecycle == "draft"


@pytest.mark.attack
def test_the_hash_covers_secret_values_but_shows_none():
    first = draft(env={"TOKEN": "canary"})
    second = Server(slug="s", command=["x"], env={"TOKEN": "other"})
    assert first.launch_hash() != second.launch_hash()
    assert "canary" not in repr(first.launch_facts())
    assert "canary" not in repr([*AuditEntry.objects.values()])


def test_enabling_again_asks_for_nothing_if_nothing_changed():
    server = lifecycle.disable_server(server=active(), actor=ACTOR)
    assert load_snapshot().servers == {}
    assert lifecycle.enable_server(server=server, actor=ACTOR).lifecycle == "active"


@pytest.mark.attack
def test_enabling_what_was_changed_while_it_was_off_makes_a_draft():
    server = lifecycle.disable_server(server=active(), actor=ACTOR)
    server.command = ["evil"]
    assert lifecycle.save_server(server=server, actor=ACTOR).lifecycle == "disabled"
    assert lifecycle.enable_server(server=server, actor=ACTOR).lifecycle == "draft"


def test_where_local_servers_are_off_none_can_be_confirmed(settings: Any):
    settings.STDIO_ENABLED = False
    with pytest.raises(ConfigInvalid, match="are disabled"):
        active()
    assert remote(slug="r").lifecycle == "active"


@pytest.mark.parametrize(
    "facts",
    [
        {"slug": "integration"},
        {"command": []},
        {"command": "x"},
        {"command": ["x"], "url": "https://h"},
        {"env": {"LD_PRELOAD": "x"}},
        {"slug": "a__b"},
        {"transport": "http"},
        {"transport": "http", "command": [], "url": "ftp://h"},
        {"transport": "nosuch"},
        {"transport": "http", "command": [], "url": "https://h", "headers": {"A": "x\r\ny"}},
        {"request_timeout": -1},
        {"transport": "websocket", "command": [], "url": "https://h"},
        {"max_concurrency": 0},
        {"max_tools": 0},
        {"max_definition_bytes": 1},
        {"max_sessions": 0},
        {"shared_by": "nobody"},
        {"shared_by": "agent", "connect_mode": "eager"},
        {"max_tools": 10_001},
        {"connect_timeout": 0},
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(facts: dict[str, Any]):
    with pytest.raises(ConfigInvalid) as caught:
        draft(**facts)
    assert caught.value.remedy
    assert not Server.objects.exists()


def test_deleting_takes_tools_and_grants_along_and_is_told():
    server = active()
    observe.observe(server=server, listed=[{"name": "t"}])
    decisions.approve_waiting(server=server, actor=ACTOR)
    from mcpregistry.models import Agent

    grants.grant_access(agent=Agent.objects.create(slug="a"), tool=Tool.objects.get(), actor=ACTOR)
    lifecycle.delete_server(server=server, actor=ACTOR, rights=grant_all_rights)
    assert not (Server.objects.exists())
    assert not (Tool.objects.exists())
    assert not (Grant.objects.exists())
    assert AuditEntry.objects.order_by("seq").last().kind == "server.deleted"  # type: ignore[union-attr]


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(
    "facts",
    [
        {"env": {"A": "x ${cred:forge}"}},
        {"command": ["x", "--token=${cred:forge}"]},
        {"command": [], "transport": "http", "url": "https://h/mcp?key=${cred:forge}"},
        {
            "command": [],
            "transport": "http",
            "url": "https://h/mcp",
            "headers": {"A": "Bearer ${cred:forge:-none}"},
        },
    ],
    ids=["env", "command", "url", "headers"],
)
def test_whatever_a_credential_stands_for_is_part_of_its_servers_revision(facts: dict[str, Any]):
    server = active(**facts)
    other = active(slug="other", env={"A": "${cred:forget}", "B": "${forge}"})

    def revision() -> int:
        assert Server.objects.get(pk=other.pk).revision == other.revision
        now = Server.objects.get(pk=server.pk)
        assert now.lifecycle == "active"
        return now.revision - server.revision

    scope = [f"server:{server.slug}"]
    forge = credentials.save_credential(
        credential=Credential(name="forge"), actor=ACTOR, value="one", scope=scope
    )
    assert revision() == 1
    credentials.save_credential(credential=forge, actor=ACTOR, value="two")
    assert revision() == 2
    forge.description = "of the forge"
    credentials.save_credential(credential=forge, actor=ACTOR)
    assert revision() == 2
    forge.name = "smithy"
    credentials.save_credential(credential=forge, actor=ACTOR)
    assert revision() == 3
    forge.name = "forge"
    credentials.save_credential(credential=forge, actor=ACTOR)
    credentials.delete_credential(credential=forge, actor=ACTOR)
    assert revision() == 5


def test_a_save_of_a_row_that_was_read_earlier_does_not_set_its_revision_back():
    server = active(env={"A": "${cred:forge}"})
    scope = [f"server:{server.slug}"]
    credentials.save_credential(
        credential=Credential(name="forge"), actor=ACTOR, value="one", scope=scope
    )
    server.name = "Other"
    assert lifecycle.save_server(server=server, actor=ACTOR).revision == 2
