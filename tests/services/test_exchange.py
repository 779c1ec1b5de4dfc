"""Configuration files in and out of the database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.formats import FORMATS, text
from mcpregistry.models import AuditEntry, Credential, ImportedFile, Server
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.exchange.exporting import export_config
from mcpregistry.services.exchange.importing import ImportOutcome, import_file
from mcpregistry.services.exchange.policy import export_server_entry
from mcpregistry.services.exchange.sections import CONFLICT
from mcpregistry.services.servers.lifecycle import confirm_launch, disable_server
from subagents.models import ExpertTool
from tests.domain.formats.host_files import HOST_FILES
from tests.domain.formats.host_files import IDS as HOST_IDS
from tests.domain.formats.samples import IDS, SAMPLES, sample

pytestmark = [pytest.mark.django_db, pytest.mark.exhaustive(on="postgresql")]

SECRET = "sk-5ecre7"
# The address of a server may not begin with a variable when it is saved, so this sample needs
# expansion.
SAVEABLE = [(name, path) for name, path in SAMPLES if name != "claude-code"]


def take(data: dict[str, Any], **options: Any) -> ImportOutcome:
    return import_file(raw=json.dumps(data).encode(), path="x.json", actor="test", **options)


def servers(**entries: dict[str, Any]) -> dict[str, Any]:
    return {"mcpServers": entries}


def confirmed(slug: str) -> Server:
    server = Server.objects.get(slug=slug)
    return confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(("name", "path"), SAVEABLE)
def test_a_file_comes_back_from_the_database_unchanged(name: str, path: Any) -> None:
    outcome = import_file(
        raw=path.read_bytes(), path=path.name, actor="test", format_name=name, may_rule=True
    )
    assert outcome.saved, [str(note) for note in outcome.refused]
    written = export_config(format_name=name, actor="test", include_secrets=True)
    assert not written.refused
    original = text.load(path.read_bytes(), path.name)
    assert json.dumps(written.data, sort_keys=True) == json.dumps(original, sort_keys=True)


@pytest.mark.both_databases
@pytest.mark.exhaustive(one_in=12)
@pytest.mark.parametrize(("name", "path"), SAMPLES, ids=IDS)
def test_importing_a_file_twice_changes_nothing(name: str, path: Any) -> None:
    options = {
        "path": path.name,
        "actor": "test",
        "format_name": name,
        "variables": {},
        "folders": {"workspace": "/w"},
    }
    first = import_file(raw=path.read_bytes(), **options)
    assert first.saved, [str(note) for note in first.refused]
    revisions = dict(Server.objects.values_list("slug", "revision"))
    audited = AuditEntry.objects.count()
    again = import_file(raw=path.read_bytes(), **options)
    assert again.saved
    assert {change.action for change in again.changes} <= {"unchanged"}
    assert dict(Server.objects.values_list("slug", "revision")) == revisions
    assert AuditEntry.objects.count() == audited


def test_imported_servers_are_drafts_and_disabled_ones_stay_so() -> None:
    outcome = import_file(
        raw=sample("mcp-servers/mcp-servers.json"), path="mcp-servers.json", actor="test"
    )
    assert [change.action for change in outcome.changes] == ["created"] * 3
    assert dict(Server.objects.values_list("slug", "lifecycle")) == {
        "filesystem": "draft",
        "github": "draft",
        "web-search": "disabled",
    }
    assert Server.objects.get(slug="web-search").name == "brave-search"
    assert Server.objects.get(slug="github").env == {"GITHUB_TOKEN": "${GITHUB_TOKEN}"}
    assert {server.source for server in Server.objects.all()} == {"mcp-servers"}


@pytest.mark.parametrize(
    "bad", [{"command": "x", "env": {"LD_PRELOAD": "evil.so"}}, {"command": 5}, 5]
)
def test_bad_server_costs_only_itself(bad: Any) -> None:
    outcome = take(servers(good={"command": "x"}, bad=bad))
    assert outcome.saved
    assert outcome.left_out == {"bad"}
    (note,) = (note for note in outcome.notes if note.action == "left out")
    assert note.pointer.startswith("/mcpServers/bad")
    assert note.remedy
    assert [server.slug for server in Server.objects.all()] == ["good"]


def test_bad_server_keeps_a_whole_file_of_our_own_format_out() -> None:
    outcome = take(
        {
            "mcps": {
                "good": {"command": "x", "args": []},
                "bad": {"command": "x", "args": [], "env": {"LD_PRELOAD": "e"}},
            },
            "tools": [],
        }
    )
    assert [note.pointer for note in outcome.refused] == ["/mcps/bad"]
    assert not outcome.saved
    assert not Server.objects.exists()
    assert not AuditEntry.objects.filter(kind__startswith="server.").exists()


@pytest.mark.parametrize(
    "data", [{"mcpServers": {}}, {"mcp": {}, "mcpServers": {}}, {"mcp": {"a": {"enabled": False}}}]
)
def test_import_of_nothing_is_refused(data: dict[str, Any]) -> None:
    outcome = take(data)
    assert ["no servers to import" in note.sentence for note in outcome.refused] == [True]
    assert not outcome.saved
    assert take(data, may_be_empty=True).saved


def test_large_file_of_claude_code_is_read_without_its_histories() -> None:
    project = {
        "mcpServers": {"web": {"type": "http", "url": "https://web.example/mcp"}},
        "history": ["x" * 100] * 20_000,
    }
    data = {
        "numStartups": 1,
        "mcpServers": {"top": {"command": "x"}},
        "projects": {"/home/me/one": project, "/home/me/two": {}},
    }
    outcome = take(data)
    assert outcome.saved, [str(note) for note in outcome.refused]
    assert outcome.format == "claude-user"
    assert {server.slug for server in Server.objects.all()} == {"top", "web"}
    assert "xxxx" not in json.dumps([row.rest for row in ImportedFile.objects.all()])


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"mcpServers": ' + b" " * 1_100_000, "Line 1"),
        (b"mcpServers:\n" + b" " * 1_100_000, "not JSON"),
        (b'{"a": "\xff' + b" " * 1_100_000, "not UTF-8"),
        (b" " * (50 * 1024 * 1024 + 1), "50 MiB"),
    ],
)
def test_large_file_that_cannot_be_read_is_refused_with_the_reason(raw: bytes, says: str) -> None:
    (note,) = import_file(raw=raw, path="x", actor="test").refused
    assert says in note.sentence
    assert note.remedy


def test_secrets_of_a_file_are_kept_as_credentials_of_their_servers_if_asked_for() -> None:
    data = servers(
        gh={
            "command": "gh-mcp",
            "args": ["--token", SECRET],
            "env": {"API_KEY": SECRET, "MODE": "fast"},
        }
    )
    said = [note for note in take(data, save=False).notes if "look like secrets" in note.sentence]
    assert [note.pointer for note in said] == ["/mcpServers/gh"]
    assert take(data, secrets_apart=True).saved
    server = Server.objects.get(slug="gh")
    assert server.command == ["gh-mcp", "--token", "${cred:gh-token}"]
    assert server.env == {"API_KEY": "${cred:gh-api-key}", "MODE": "fast"}
    found = {each.name: (each.value, each.scope) for each in Credential.objects.all()}
    assert found == {"gh-token": (SECRET, ["server:gh"]), "gh-api-key": (SECRET, ["server:gh"])}
    assert {change.action for change in take(data, secrets_apart=True).changes} == {"unchanged"}


def test_secret_of_a_file_never_replaces_the_credential_of_another_server() -> None:
    Credential.objects.create(name="gh-api-key", value="mine", scope=["server:other"])
    outcome = take(servers(gh={"command": "x", "env": {"API_KEY": SECRET}}), secrets_apart=True)
    assert not outcome.saved
    assert Credential.objects.get().value == "mine"


@pytest.mark.exhaustive(but=("codex-config.toml",))
@pytest.mark.parametrize(("path", "content", "host", "expected"), HOST_FILES, ids=HOST_IDS)
def test_file_of_a_host_is_imported_as_its_dry_run_says_and_survives_an_export(
    path: str, content: str, host: str, expected: dict[str, Any]
) -> None:
    options = {
        "raw": content.encode(),
        "path": path,
        "actor": "test",
        "variables": {},
        "folders": {},
    }
    trial = import_file(**options, save=False)
    outcome = import_file(**options)
    assert outcome.saved, [str(note) for note in outcome.refused]
    assert (outcome.format, outcome.format_diff(), outcome.notes) == (
        host,
        trial.format_diff(),
        trial.notes,
    )
    assert {change.action for change in import_file(**options).changes} == {"unchanged"}
    before = {server.slug: export_server_entry(server).columns() for server in Server.objects.all()}
    written = export_config(format_name="mcpservers", actor="test", include_secrets=True)
    again = import_file(
        raw=text.dump(written.data).encode(), path="y.json", actor="test", on_conflict="replace"
    )
    assert again.saved, [str(note) for note in again.refused]
    silent = {
        "enabled",
        "connect_timeout_ms",
        "request_timeout_ms",
        "tools_allowed",
        "auto_approve",
    }
    for server in Server.objects.all():
        after = export_server_entry(server).columns()
        assert {name: after[name] for name in after.keys() - silent} == {
            name: value for name, value in before[server.slug].items() if name not in silent
        }


@pytest.mark.parametrize(
    "raw", [b"{", b"[]", b'{"what": 1}', b'{"mcpServers": {"a": {}}}', b"x" * 2_000_000]
)
def test_a_file_that_cannot_be_read_is_refused_as_a_note(raw: bytes) -> None:
    outcome = import_file(raw=raw, path="x.json", actor="test")
    assert len(outcome.refused) == 1
    assert outcome.refused[0].file == "x.json"
    assert not outcome.saved


def test_an_existing_server_that_differs_is_a_conflict_unless_told_otherwise() -> None:
    take(servers(a={"command": "one"}))
    refused = take(servers(a={"command": "two"}))
    assert refused.refused[0].remedy == CONFLICT
    raw = json.dumps(servers(a={"command": "two"})).encode()
    another = import_file(raw=raw, path="/home/me/shop/y.json", actor="test", on_conflict="own")
    assert [change.label for change in another.changes] == ["a-shop"]
    Server.objects.filter(slug="a-shop").delete()
    skipped = take(servers(a={"command": "two"}, b={"command": "three"}), on_conflict="skip")
    assert [change.action for change in skipped.changes] == ["skipped", "created"]
    assert Server.objects.get(slug="a").command == ["one"]
    renamed = take(servers(a={"command": "two"}), on_conflict="rename")
    assert renamed.saved
    assert Server.objects.get(slug="a-2").command == ["two"]
    assert (
        take(servers(a={"command": "one"}), on_conflict="rename").changes[0].action == "unchanged"
    )
    replaced = take(servers(a={"command": "two"}), on_conflict="replace")
    assert replaced.changes[0].action == "changed"
    assert Server.objects.get(slug="a").command == ["two"]


@pytest.mark.parametrize(
    "entry",
    [{"command": "two"}, {"command": "one", "env": {"A": "2"}}, {"url": "https://h.example"}],
)
def test_a_changed_launch_makes_a_confirmed_server_a_draft_again(entry: dict[str, Any]) -> None:
    take(servers(a={"command": "one", "env": {"A": "1"}}))
    assert confirmed("a").lifecycle == Lifecycle.ACTIVE
    take(servers(a=entry), on_conflict="replace")
    assert Server.objects.get(slug="a").lifecycle == Lifecycle.DRAFT


def test_a_confirmed_server_stays_active_while_its_launch_is_the_same() -> None:
    take(servers(a={"command": "one"}))
    confirmed("a")
    outcome = take(servers(a={"command": "one", "note": "new"}))
    assert [change.action for change in outcome.changes] == ["unchanged"]
    assert Server.objects.get(slug="a").lifecycle == Lifecycle.ACTIVE
    assert (
        export_config(format_name="claude-code", actor="test").data["mcpServers"]["a"]["note"]
        == "new"
    )


def test_a_disabled_server_is_enabled_only_by_a_file_that_says_so() -> None:
    take(servers(a={"command": "one"}))
    disable_server(server=confirmed("a"), actor="test")
    take(servers(a={"command": "one"}), on_conflict="replace")
    assert Server.objects.get(slug="a").lifecycle == Lifecycle.DISABLED
    take(servers(a={"command": "one", "disabled": False}), on_conflict="replace")
    assert Server.objects.get(slug="a").lifecycle == Lifecycle.ACTIVE
    take(servers(a={"command": "one", "disabled": True}), on_conflict="replace")
    assert Server.objects.get(slug="a").lifecycle == Lifecycle.DISABLED


def test_a_dry_run_shows_a_diff_without_secrets_and_saves_nothing() -> None:
    take(servers(a={"command": "one", "env": {"T": SECRET}}))
    before = list(Server.objects.values())
    outcome = take(
        servers(
            a={"command": "two", "env": {"T": SECRET + "2"}},
            b={"command": "new", "env": {"U": "${U}"}},
        ),
        on_conflict="replace",
        save=False,
    )
    assert not outcome.saved
    assert list(Server.objects.values()) == before
    diff = outcome.format_diff()
    assert "-  - one\n+  - two\n" in diff
    assert "# a: hidden values differ" in diff
    assert "+    U: ${U}" in diff
    assert SECRET not in diff


def test_limits_in_milliseconds_become_seconds_and_silence_keeps_what_was_set() -> None:
    data = {
        "mcp": {"servers": {"a": {"command": ["x"], "timeout": {"startup": 1500, "request": 2500}}}}
    }
    take(data)
    server = Server.objects.get(slug="a")
    assert (server.connect_timeout, server.request_timeout) == (1.5, 2.5)
    take(servers(a={"command": "y"}), on_conflict="replace")
    server = Server.objects.get(slug="a")
    assert (server.connect_timeout, server.request_timeout) == (1.5, 2.5)


def test_the_tool_timeout_of_an_ai_agent_file_is_every_servers_request_timeout() -> None:
    import_file(raw=sample("ai-agent/ai-agent.json"), path=".ai-agent.json", actor="test")
    assert {server.request_timeout for server in Server.objects.all()} == {10.0}


def test_variables_are_filled_in_where_no_secret_belongs_and_wait_where_one_does() -> None:
    entry = {"url": "${BASE}/mcp?k=${API_KEY}", "headers": {"A": "${BASE}"}}
    local = {"command": "${BIN:-/bin}/x", "args": ["${MISSING}"], "env": {"B": "${BASE}"}}
    outcome = take(
        servers(far=entry, near=local), variables={"BASE": "https://h.example", "API_KEY": SECRET}
    )
    far = Server.objects.get(slug="far")
    near = Server.objects.get(slug="near")
    assert far.url == "https://h.example/mcp?k=${API_KEY}"
    assert far.headers == {"A": "${BASE}"}
    assert near.command == ["/bin/x", "${MISSING}"]
    assert near.env == {"B": "${BASE}"}
    later = {note.pointer for note in outcome.notes if "SLIPSNISSE_PASS_ENV" in note.remedy}
    assert later == {"/mcpServers/far/url", "/mcpServers/near/command"}


def test_the_sites_own_variables_never_get_into_a_server() -> None:
    own = {"SLIPSNISSE_SITE": SECRET, "DATABASE_URL": SECRET, "DJANGO_SETTINGS_MODULE": SECRET}
    take(servers(a={"command": "x", "args": [f"${{{name}}}" for name in own]}), variables=own)
    assert SECRET not in str(Server.objects.get(slug="a").command)


def test_a_secret_variable_waits_for_the_start_even_when_it_has_a_default() -> None:
    take(servers(a={"command": "x", "args": ["${API_KEY:-none}"]}), variables={})
    assert Server.objects.get(slug="a").command == ["x", "${API_KEY:-none}"]


def test_an_expert_tool_follows_a_server_that_was_renamed() -> None:
    tool = {
        "name": "t",
        "description": "",
        "internal_tools": {"fs": ["read"]},
        "provider": "google",
        "model": "m",
    }
    take(servers(fs={"command": "other"}))
    take({"mcps": {"fs": {"command": "x", "args": []}}, "tools": [tool]}, on_conflict="rename")
    exported = export_config(format_name="slipsnisse", actor="test").data
    assert exported["tools"][0]["internal_tools"] == {"fs-2": ["read"]}
    assert exported["mcps"]["fs-2"]["command"] == "x"


def test_an_address_without_a_host_is_refused_until_its_variable_has_a_value() -> None:
    data = servers(a={"url": "${BASE}/mcp"})
    assert take(data, variables={}).refused[0].pointer == "/mcpServers/a/url"
    assert take(data, variables={"BASE": "https://h.example"}).saved


def test_the_workspace_must_be_known_where_a_server_speaks_of_it() -> None:
    data = servers(
        a={"command": "x", "args": ["${workspaceFolder}/s.py"], "env": {"D": "${userHome}"}}
    )
    assert "--workspace" in take(data, variables={}).refused[0].remedy
    assert take(data, variables={}, folders={"workspace": "/w", "home": "/h"}).saved
    server = Server.objects.get(slug="a")
    assert (server.command, server.env) == (["x", "/w/s.py"], {"D": "/h"})


def test_inputs_become_credentials_that_wait_for_a_value() -> None:
    import_file(
        raw=sample("vscode/mcp.json"),
        path=".vscode/mcp.json",
        actor="test",
        rights=grant_all_rights,
    )
    credential = Credential.objects.get(name="perplexity-key")
    assert credential.needs_value
    assert credential.description == "Perplexity API key"
    assert (
        Server.objects.get(slug="perplexity").env["PERPLEXITY_API_KEY"] == "${cred:perplexity-key}"
    )


def test_an_existing_credential_keeps_its_value() -> None:
    credential = Credential(name="level")
    credential.value = SECRET
    credential.save()
    import_file(raw=sample("vscode/mcp.json"), path=".vscode/mcp.json", actor="test")
    assert Credential.objects.get(name="level").value == SECRET


def test_what_later_features_will_use_is_kept_and_said_so() -> None:
    outcome = import_file(raw=sample("slipsnisse/worked_example.yaml"), path="s.yaml", actor="test")
    assert any(note.sentence.startswith("Kept, but not created") for note in outcome.notes)
    assert not ExpertTool.objects.exists()
    import_file(raw=sample("ai-agent/ai-agent.json"), path=".ai-agent.json", actor="test")
    tools = export_config(format_name="slipsnisse-extended", actor="test").data["tools"]
    assert [tool["name"] for tool in tools] == ["research_dependency"]
    assert (
        export_config(format_name="ai-agent", actor="test").data["providers"]
        == json.loads(sample("ai-agent/ai-agent.json"))["providers"]
    )


def test_a_second_file_of_a_family_adds_to_what_the_first_left() -> None:
    tool = {
        "name": "one",
        "description": "",
        "internal_tools": {},
        "provider": "google",
        "model": "m",
    }
    for name in ("one", "two", "one"):
        take({"mcps": {}, "tools": [tool | {"name": name, "description": name}]})
    rest = ImportedFile.objects.get(family="slipsnisse").rest
    assert [item["name"] for item in rest["expert_tools"]] == ["one", "two"]


@pytest.mark.both_databases
def test_secrets_of_a_file_are_sealed_in_the_database_and_leave_only_when_asked() -> None:
    take(servers(a={"command": "x", "env": {"T": SECRET}, "apiKey": SECRET}) | {"token": SECRET})
    stored = str(list(Server.objects.values())) + str(list(ImportedFile.objects.values()))
    stored += str(list(Server.history.values())) + str(list(AuditEntry.objects.values()))
    assert SECRET not in stored
    for name in FORMATS:
        written = export_config(format_name=name, actor="test")
        assert SECRET not in json.dumps(written.data) + str(written.notes)
    assert not AuditEntry.objects.filter(kind="configuration.exported").exists()
    assert SECRET in json.dumps(
        export_config(format_name="claude-code", actor="me", include_secrets=True).data
    )
    assert AuditEntry.objects.get(kind="configuration.exported").actor == "me"


def test_export_can_leave_disabled_servers_out_and_keeps_the_files_order() -> None:
    import_file(
        raw=sample("mcp-servers/remote_and_approved.json"), path="mcp-servers.json", actor="test"
    )
    take(servers(a={"command": "x"}))
    listed = export_config(format_name="mcp-servers", actor="test").data["servers"]
    assert [entry["id"] for entry in listed] == ["files", "far", "a"]
    listed = export_config(format_name="mcp-servers", actor="test", only_enabled=True).data[
        "servers"
    ]
    assert [entry["id"] for entry in listed] == ["files", "a"]


@pytest.mark.both_databases
def test_an_edit_made_here_shows_in_the_file_and_the_rest_stays() -> None:
    import_file(raw=sample("ai-agent/ai-agent.json"), path=".ai-agent.json", actor="test")
    server = Server.objects.get(slug="both")
    server.command = ["uvx", "other"]
    server.save()
    entry = export_config(format_name="ai-agent", actor="test").data["mcpServers"]["both"]
    assert entry == {"type": "stdio", "command": ["uvx", "other"], "args": [], "enabled": False}
