"""A row becomes a Target: only confirmed servers, only listed variables, no secret in any
message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcpregistry.domain.errors import ConfigInvalid, Conflict, NotFound, SlipsnisseError
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.models import Configuration, Credential, Server, ServerEvent
from mcpregistry.models.server import Lifecycle, Transport
from mcpregistry.services.servers import checks
from mcpregistry.services.servers.lifecycle import confirm_launch, disable_server
from mcpregistry.services.servers.targets import build_target
from tests.services.rows import confirmed, draft

pytestmark = pytest.mark.django_db
SECRET = "canary-7f3a91"
SCOPE = [f"server:{slug}" for slug in ("echo", "one", "two")]


@pytest.fixture(autouse=True)
def _variables(settings, monkeypatch):
    settings.PASS_ENV = ["TEAM", "TOKEN"]
    monkeypatch.setenv("TEAM", "blue")
    monkeypatch.setenv("DATABASE_URL", f"postgres://me:{SECRET}@db/site")
    monkeypatch.delenv("TOKEN", raising=False)
    Credential.objects.create(name="github", value=SECRET, scope=SCOPE)
    Configuration.objects.update_or_create(
        id=1, defaults={"variable_scope": {"TEAM": SCOPE, "TOKEN": SCOPE}}
    )
    Credential.objects.create(name="empty", scope=SCOPE)


def test_a_target_carries_the_row_with_every_value_filled_in():
    server = confirmed(
        command=["run", "--team=${TEAM}", "${NONE:-fallback}"],
        cwd="/srv/${TEAM}",
        env={"GITHUB": "${cred:github}", "PLAIN": "x"},
        max_message_bytes=2048,
        request_timeout=5.0,
    )
    target = build_target(server.pk)
    assert target.argv == ("run", "--team=blue", "fallback")
    assert (target.cwd, target.env) == ("/srv/blue", {"GITHUB": SECRET, "PLAIN": "x"})
    assert (target.server_id, target.slug, target.revision) == (server.pk, "echo", server.revision)
    assert (target.limits.message_bytes, target.limits.request_timeout) == (2048, 5.0)
    assert SECRET not in repr(target)


def test_a_target_knows_what_a_local_server_spoke_until_its_launch_is_confirmed_again():
    server = confirmed(command=["run"])
    Server.objects.filter(pk=server.pk).update(protocol_era="legacy")
    assert build_target(server.pk).last_era == "legacy"
    confirm_launch(server=server, actor="user:1", launch_hash=server.launch_hash())
    assert build_target(server.pk).last_era == ""


@pytest.mark.parametrize(
    "ask",
    [checks.request_test, checks.request_refresh, checks.request_connect, checks.request_reconnect],
)
def test_remembered_handshake_is_forgotten_when_a_person_asks_for_the_server(
    ask: Callable[..., object],
):
    server = confirmed(command=["run"])
    Server.objects.filter(pk=server.pk).update(protocol_era="legacy")
    ask(server=server, actor="user:1")
    assert build_target(server.pk).last_era == ""


def test_remembered_handshake_is_forgotten_when_the_server_reports_another_version():
    server = confirmed(command=["run"])

    def answer(version: str) -> str:
        found = Discovery(
            (), (), "", {"name": "echo", "version": version}, {}, "legacy", "2025-11-25"
        )
        checks.mark_ok(server_id=server.pk, discovery=found)
        return build_target(server.pk).last_era

    assert answer("1.0") == "legacy", "the first answer"
    assert answer("1.0") == "legacy"
    assert answer("2.0") == "", "an upgraded server may speak the newer protocol"
    assert answer("2.0") == "legacy", "it still speaks the older one"


def test_a_remote_target_has_headers_and_networks_and_no_command():
    server = confirmed(
        command=[],
        transport=Transport.HTTP,
        url="https://${TEAM}.example.org/mcp",
        headers={"Authorization": "Bearer ${cred:github}"},
        allowed_networks=["10.0.0.0/8"],
    )
    target = build_target(server.pk)
    assert (target.url, target.headers) == (
        "https://blue.example.org/mcp",
        {"Authorization": f"Bearer {SECRET}"},
    )
    assert (target.argv, target.env, target.allowed_networks) == ((), {}, ("10.0.0.0/8",))


def test_a_configuration_cannot_read_variables_that_the_operator_does_not_list():
    server = confirmed(env={"STOLEN": "${DATABASE_URL}", "FINE": "1"})
    assert build_target(server.pk).env == {"FINE": "1"}


def test_a_pair_without_a_value_is_left_out_and_the_servers_page_says_so_once():
    server = confirmed(env={"A": "${TOKEN}", "B": "${cred:empty}", "C": "${cred:absent}", "D": "1"})
    for _ in range(3):
        assert build_target(server.pk).env == {"D": "1"}
    (event,) = ServerEvent.objects.filter(server=server)
    assert event.kind == "value_missing"
    assert "A, B, C" in event.message


@pytest.mark.parametrize("changes", [{"command": ["run", "${TOKEN}"]}, {"cwd": "/srv/${TOKEN}"}])
def test_without_a_value_that_the_launch_needs_the_server_does_not_start(changes):
    server = confirmed(**changes)
    with pytest.raises(ConfigInvalid, match=r"\$\{TOKEN\}.*SLIPSNISSE_PASS_ENV"):
        build_target(server.pk)


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (f"{SECRET}\nX: y", {"env": {"A": "${cred:odd}"}}),
        (f"{SECRET}\n", {"command": ["run", "${cred:odd}"]}),
        (f"/{SECRET}", {"transport": Transport.HTTP, "command": [], "url": "https://${cred:odd}"}),
        (
            f"me:{SECRET}@host",
            {"transport": Transport.HTTP, "command": [], "url": "https://${cred:odd}/"},
        ),
    ],
)
def test_values_are_checked_again_once_filled_in_and_never_quoted(value, changes):
    Credential.objects.create(name="odd", value=value, scope=SCOPE)
    server = confirmed(**changes)
    with pytest.raises(
        SlipsnisseError, match="after variables and credentials were replaced"
    ) as caught:
        build_target(server.pk)
    assert SECRET not in f"{caught.value!r} {caught.value}"
    assert caught.value.__cause__ is None or SECRET not in str(caught.value.__cause__)


_REMOTE = {"transport": Transport.HTTP, "command": []}


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.attack
@pytest.mark.parametrize(
    ("value", "changes"),
    [
        ("evil.example", _REMOTE | {"url": "https://${cred:own}/mcp"}),
        (".evil.example/", _REMOTE | {"url": "https://good.example${cred:own}/mcp"}),
        ("x/../other", _REMOTE | {"url": "https://good.example/${cred:own}/mcp"}),
        ("..", _REMOTE | {"url": "https://good.example/a/${cred:own}/mcp"}),
        ("other?", _REMOTE | {"url": "https://good.example/${cred:own}/mcp"}),
        ("x&account=other", _REMOTE | {"url": "https://good.example/mcp?key=${cred:own}"}),
        ("x#", _REMOTE | {"url": "https://good.example/mcp?key=${cred:own}&account=mine"}),
        ("/bin/sh", {"command": ["${cred:own}", "-c", "run"]}),
        ("--require=/tmp/evil.js", {"command": ["node", "${cred:own}", "server.js"]}),
        ("/tmp/evil", {"command": ["run"], "cwd": "${cred:own}"}),
    ],
)
def test_a_credential_changes_no_destination_and_no_program(value: str, changes: dict[str, object]):
    """An operator may change the value of a credential. What an administrator has confirmed must
    stay what it is."""
    Credential.objects.create(name="own", value="harmless", scope=SCOPE)
    server = confirmed(**changes)
    Credential.objects.filter(name="own").first().change(value=value).save()
    with pytest.raises(ConfigInvalid, match="after variables and credentials were replaced"):
        build_target(server.pk)


def test_a_credential_is_a_part_of_a_path_a_query_or_a_word():
    Credential.objects.create(name="own", value="ab/c?d@e==", scope=SCOPE)
    server = confirmed(
        "one", **_REMOTE, url="https://good.example/${cred:github}/mcp?key=${cred:own}&account=mine"
    )
    assert (
        build_target(server.pk).url
        == f"https://good.example/{SECRET}/mcp?key=ab/c?d@e==&account=mine"
    )
    server = confirmed("two", command=["run", "--key=${cred:own}", "${cred:github}"])
    assert build_target(server.pk).argv == ("run", "--key=ab/c?d@e==", SECRET)


def test_a_draft_a_disabled_and_an_unknown_server_have_no_target():
    with pytest.raises(Conflict, match="is not confirmed"):
        build_target(draft("one").pk)
    with pytest.raises(Conflict, match="disabled"):
        build_target(disable_server(server=confirmed("two"), actor="test").pk)
    with pytest.raises(NotFound):
        build_target(0)


def test_a_row_changed_behind_our_back_is_a_draft_again():
    server = confirmed()
    Server.objects.filter(pk=server.pk).update(command=["/bin/sh", "-c", "evil"])
    assert Server.objects.get(pk=server.pk).lifecycle == Lifecycle.ACTIVE
    with pytest.raises(Conflict, match="is not confirmed"):
        build_target(server.pk)


def test_local_servers_can_be_switched_off_for_the_whole_site(settings):
    server = confirmed()
    settings.STDIO_ENABLED = False
    with pytest.raises(ConfigInvalid, match="SLIPSNISSE_STDIO"):
        build_target(server.pk)
