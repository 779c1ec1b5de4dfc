"""Servers: the form, its secrets, confirming a launch, and the buttons."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcpregistry.downstream.transports import bubblewrap, confinement
from mcpregistry.models import AuditEntry, Connection, Invocation, Server, ServerTest, Tool
from mcpregistry.services.definitions import observe
from mcpregistry.services.servers import lifecycle
from tests.admin.conftest import ClientOf
from tests.admin.pressing import pressed
from tests.fakes.seed import ACTOR, Site, tool

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]

ADD = "/admin/mcpregistry/server/add/"
LIMITS = {
    "connect_mode": "lazy",
    "protocol_mode": "auto",
    "resend": "safe",
    "check_interval": 300,
    "trial_hours": 0,
    "connect_timeout": 30,
    "request_timeout": 30,
    "idle_timeout": 600,
    "max_message_bytes": 4194304,
    "max_concurrency": 8,
    "max_tools": 2000,
    "max_definition_bytes": 1048576,
    "shared_by": "everybody",
    "max_sessions": 20,
    "asks_elicitation": "on",
    "asks_sampling": "on",
    "sandbox": "off",
    "sandbox_network": "all",
    "max_memory_mb": 4096,
    "max_processes": 256,
    "max_cpu_seconds": 0,
    "max_file_mb": 0,
    "max_open_files": 0,
}
LOCAL = LIMITS | {
    "slug": "new",
    "transport": "stdio",
    "command": "uvx\nmcp-server-time",
    "env": "TOKEN=s3cret",
}


def change(server: Server) -> str:
    return reverse("admin:mcpregistry_server_change", args=[server.pk])


def press(client: Client, server: Server, name: str) -> str:
    """Press a button and return the page that follows."""
    return str(pressed(client, server, name).content.decode())


def errors(answer: Any) -> dict[str, list[str]]:
    return {name: list(texts) for name, texts in answer.context["adminform"].form.errors.items()}


def test_a_new_server_is_a_draft_with_its_secrets_sealed(client_of: ClientOf) -> None:
    answer = client_of("operator").post(ADD, LOCAL | {"cwd": "/srv"})
    assert answer.status_code == 302, errors(answer)
    server = Server.objects.get(slug="new")
    assert (server.lifecycle, server.command, server.env) == (
        "draft",
        ["uvx", "mcp-server-time"],
        {"TOKEN": "s3cret"},
    )
    assert "s3cret" not in server.sealed_env
    assert AuditEntry.objects.filter(
        kind="server.created", subject="server:new", actor="user:operator"
    ).exists()


def test_a_command_may_also_be_a_json_list(client_of: ClientOf) -> None:
    client_of("operator").post(ADD, LOCAL | {"command": '["my prog", "two words", ""]'})
    assert Server.objects.get(slug="new").command == ["my prog", "two words", ""]


def test_a_pasted_line_becomes_its_words(client_of: ClientOf) -> None:
    line = "npx -y '@modelcontextprotocol/server-everything' --name 'two words'"
    client_of("operator").post(ADD, LOCAL | {"command": line})
    words = ["npx", "-y", "@modelcontextprotocol/server-everything", "--name", "two words"]
    assert Server.objects.get(slug="new").command == words


def test_headers_are_written_as_readmes_write_them(client_of: ClientOf) -> None:
    remote = LOCAL | {
        "transport": "http",
        "url": "https://example.org/mcp",
        "command": "",
        "env": "",
    }
    client_of("operator").post(
        ADD, remote | {"headers": "Authorization: Bearer a=b:c\nX-Team=blue"}
    )
    assert Server.objects.get(slug="new").headers == {
        "Authorization": "Bearer a=b:c",
        "X-Team": "blue",
    }


def test_secrets_of_a_refused_form_are_kept_and_never_shown_again(client_of: ClientOf) -> None:
    client = client_of("operator")
    typed = "TOKEN=s3cret\nthe s3cret alone\nMODE=fast"
    answer = client.post(ADD, LOCAL | {"env": typed})
    page = answer.content.decode()
    assert "Line 2" in " ".join(errors(answer)["env"])
    assert "TOKEN=•••" in page
    assert "s3cret" not in page
    sealed = re.search(r'name="env_typed" value="([^"]+)"', page)
    assert sealed is not None
    again = LOCAL | {"env": "TOKEN=•••\nMODE=slow", "env_typed": sealed[1]}
    refused = client.post(ADD, again | {"slug": "two__lines"}).content.decode()
    assert "s3cret" not in refused
    assert client.post(ADD, again).status_code == 302
    assert Server.objects.get(slug="new").env == {"TOKEN": "s3cret", "MODE": "slow"}
    made_up = LOCAL | {"slug": "other", "env": "TOKEN=•••", "env_typed": "v1.x.AAAA"}
    assert "no stored value" in " ".join(errors(client.post(ADD, made_up))["env"])


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("wrong", "where", "says"),
    [
        ({"command": ""}, "command", "must be a list of words"),
        ({"command": '["a"'}, "command", "not a valid JSON list"),
        ({"command": "[1, 2]"}, "command", "list of strings"),
        ({"slug": "two__lines"}, "slug", "single underscores"),
        ({"slug": "git"}, "slug", "already exists"),
        ({"env": "no equals sign"}, "env", "NAME=value"),
        ({"command": "no-such-program -y 'half"}, "command", "there is no program with this name"),
        ({"command": "no-such-program -y\nmore"}, "command", "on a line of its own"),
        ({"command": "TOKEN=1 uvx x"}, "command", "environment"),
        ({"env": "LD_PRELOAD=/tmp/x.so"}, "env", "load other code"),
        ({"env": "A=1\nA=2"}, "env", "twice"),
        ({"env": "NEW=•••"}, "env", "no stored value"),
        ({"transport": "http", "url": "ftp://x"}, "url", "not a valid http or https address"),
        ({"transport": "http", "url": "https://u:p@x/"}, "url", "password"),
        (
            {"transport": "http", "url": "https://x/", "allowed_networks": "10.0.0.0/99"},
            "allowed_networks",
            "not a valid network",
        ),
        ({"connect_timeout": "-1"}, "connect_timeout", "0.1"),
        ({"max_concurrency": "many"}, "max_concurrency", "whole number"),
    ],
)
def test_a_mistake_is_explained_at_its_field(
    client_of: ClientOf, wrong: dict[str, str], where: str, says: str
) -> None:
    answer = client_of("operator").post(ADD, LOCAL | wrong)
    assert answer.status_code == 200
    assert list(errors(answer)) == [where]
    assert says in " ".join(errors(answer)[where])
    assert "s3cret" not in answer.content.decode()


def test_values_of_env_and_headers_never_reach_a_page(client_of: ClientOf, site: Site) -> None:
    client = client_of("root")
    pages = [change(site.servers[slug]) for slug in ("git", "github", "postgres")]
    pages += [page.replace("change", "history") for page in pages]
    html = "".join(client.get(page).content.decode() for page in pages)
    assert "GIT_TOKEN=•••" in html
    assert "Authorization=•••" in html
    for secret in ("hunter2", "cred:github", "cred:git-forge"):
        assert secret not in html


def saved(client: Client, server: Server, **fields: Any) -> Server:
    form = client.get(change(server)).context["adminform"].form
    data = {name: form[name].value() for name in form.fields} | fields
    texts = {name: value for name, value in data.items() if isinstance(value, str | int | float)}
    answer = client.post(change(server), texts)
    assert answer.status_code == 302, errors(answer)
    return Server.objects.get(pk=server.pk)


@pytest.mark.exhaustive
def test_a_mask_keeps_the_stored_value_and_a_missing_line_removes_it(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("admin")
    command = "uvx\nmcp-server-git"
    kept = saved(
        client,
        site.servers["git"],
        command=command,
        env="GIT_TOKEN=•••\nNEW=1",
        allowed_networks="",
    )
    assert kept.env == {"GIT_TOKEN": "${cred:git-forge}", "NEW": "1"}
    assert kept.lifecycle == "draft"
    assert saved(client, kept, command=command, env="", allowed_networks="").env == {}


@pytest.mark.exhaustive
def test_changing_only_words_for_people_keeps_a_server_active(
    client_of: ClientOf, site: Site
) -> None:
    git = site.servers["git"]
    texts = {
        "command": "\n".join(git.command),
        "env": "GIT_AUTHOR_NAME=•••\nGIT_TOKEN=•••",
        "allowed_networks": "",
    }
    after = saved(client_of("operator"), git, description="Better words", **texts)
    assert (after.lifecycle, after.description, after.revision) == ("active", "Better words", 1)


def test_another_transport_empties_the_fields_of_the_old_one(
    client_of: ClientOf, site: Site
) -> None:
    fields = {
        "transport": "http",
        "url": "https://example.org/mcp",
        "command": "uvx",
        "headers": "X-Key=1",
    }
    after = saved(
        client_of("operator"), site.servers["git"], env="A=b", allowed_networks="", **fields
    )
    assert (after.command, after.cwd, after.env) == ([], "", {})
    assert (after.url, after.headers, after.lifecycle) == (
        "https://example.org/mcp",
        {"X-Key": "1"},
        "draft",
    )


# Confirming a launch


def confirm(server: Server) -> str:
    return reverse("admin:mcpregistry_server_confirm", args=[server.pk])


def test_the_launch_page_shows_every_word_and_no_value(client_of: ClientOf, site: Site) -> None:
    words = ["sh", "-c", "echo 'a b' && true", "", "x" * 5_000]
    server = lifecycle.save_server(
        server=Server(slug="long", command=words, env={"KEY": "canary-value"}, cwd="/srv/x"),
        actor=ACTOR,
    )
    html = client_of("admin").get(confirm(server)).content.decode()
    assert "x" * 5_000 in html
    assert "echo &#x27;a b&#x27; &amp;&amp; true" in html
    assert html.count("<li><code") == len(words)
    assert "KEY" in html
    assert "/srv/x" in html
    assert "canary-value" not in html
    assert str(shutil.which("sh") and __import__("os").path.realpath(shutil.which("sh"))) in html


@pytest.mark.exhaustive
def test_confirming_a_launch_names_paths_that_the_sandbox_hides(
    client_of: ClientOf, site: Site
) -> None:
    script = os.path.realpath(__file__)
    server = lifecycle.save_server(
        server=Server(slug="mine", command=["python3", script], sandbox="enforce"), actor=ACTOR
    )
    place = f'<code class="sn-code">{script}</code>'
    for address in (confirm(server), change(server)):
        html = client_of("admin").get(address).content.decode()
        assert place in html.split('id="hidden-paths"')[1].split("</p>")[0]
    server.change(sandbox_read=[os.path.dirname(script)])
    lifecycle.save_server(server=server, actor=ACTOR)
    assert "hidden-paths" not in client_of("admin").get(confirm(server)).content.decode()


def test_a_program_that_is_not_there_is_said_to_be_missing(client_of: ClientOf, site: Site) -> None:
    server = lifecycle.save_server(
        server=Server(slug="gone", command=["no-such-program-here"]), actor=ACTOR
    )
    assert (
        "was not found on this machine" in client_of("admin").get(confirm(server)).content.decode()
    )


def test_confirming_what_was_shown_activates_the_server(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    server = site.servers["browser"]
    shown = client.get(confirm(server)).context["shown"]
    page = client.post(confirm(server), {"shown": shown}, follow=True).content.decode()
    server.refresh_from_db()
    assert (server.lifecycle, server.confirmed_by) == ("active", site.people["admin"])
    assert AuditEntry.objects.filter(kind="server.confirmed", actor="user:admin").exists()
    assert "browser is active. The test has started." in page


def test_a_confirmed_launch_has_nothing_to_confirm(client_of: ClientOf, site: Site) -> None:
    page = client_of("admin").get(
        reverse("admin:mcpregistry_server_confirm", args=[site.servers["git"].pk])
    )
    text = page.content.decode()
    assert "This is already confirmed." in text
    assert ">Confirm launch</button>" not in text


def test_a_confirmed_server_is_tested_and_its_page_follows_the_test(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("admin")
    server = site.servers["browser"]
    client.post(confirm(server), {"shown": client.get(confirm(server)).context["shown"]})
    (test,) = server.tests.filter(verdict="queued")
    live = reverse("admin:mcpregistry_server_live", args=[server.pk])
    assert f'data-live="{live}"' in client.get(change(server)).content.decode()
    going_on = client.get(live)
    assert (going_on.status_code, "waiting for a worker" in going_on.content.decode()) == (
        200,
        True,
    )
    server.tests.filter(pk=test.pk).update(verdict="passed")
    assert client.get(live).status_code == 286
    assert "data-live" not in client.get(change(server)).content.decode()


def test_a_launch_that_changed_meanwhile_is_not_confirmed_and_shown_anew(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("admin")
    server = site.servers["browser"]
    shown = client.get(confirm(server)).context["shown"]
    server.command = ["sh", "-c", "evil"]
    lifecycle.save_server(server=server, actor=ACTOR)
    answer = client.post(confirm(server), {"shown": shown})
    html = answer.content.decode()
    assert answer.status_code == 409
    assert "changed after you opened this page" in html
    assert "evil" in html
    server.refresh_from_db()
    assert server.lifecycle == "draft"


@pytest.mark.parametrize("wrong", ["", "0" * 64])
def test_a_made_up_fingerprint_confirms_nothing(
    client_of: ClientOf, site: Site, wrong: str
) -> None:
    server = site.servers["browser"]
    assert client_of("root").post(confirm(server), {"shown": wrong}).status_code == 409
    server.refresh_from_db()
    assert server.lifecycle == "draft"


# Buttons


def test_testing_and_refreshing_wake_a_worker(
    client_of: ClientOf, site: Site, woken: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    client = client_of("operator")
    git = site.servers["git"]
    with django_capture_on_commit_callbacks(execute=True):
        assert "The test has started" in press(client, git, "test")
    test = git.tests.first()
    assert test is not None
    assert (test.verdict, test.requested_by) == ("queued", site.people["operator"])
    assert "being read again" in press(client, git, "refresh")
    assert [task for task, _ in woken] == ["test_server", "refresh_server"]


def test_a_draft_cannot_be_tested_and_says_why(client_of: ClientOf, site: Site) -> None:
    html = press(client_of("operator"), site.servers["browser"], "test")
    assert "its launch is not confirmed" in html
    assert not site.servers["browser"].tests.exists()


def test_reconnecting_raises_the_revision_for_every_process(
    client_of: ClientOf, site: Site
) -> None:
    assert "close their connections" in press(
        client_of("operator"), site.servers["git"], "reconnect"
    )
    assert Server.objects.get(slug="git").revision == 2


def test_disabling_and_enabling_a_confirmed_server(client_of: ClientOf, site: Site) -> None:
    client = client_of("operator")
    git = site.servers["git"]
    press(client, git, "disable")
    assert Server.objects.get(slug="git").lifecycle == "disabled"
    assert "active again" in press(client, git, "enable")
    assert Server.objects.get(slug="git").lifecycle == "active"


def test_all_waiting_definitions_are_approved_at_once(client_of: ClientOf, site: Site) -> None:
    assert "2 definitions approved" in press(
        client_of("approver"), site.servers["github"], "approve"
    )
    assert not Tool.objects.waiting().exists()


def test_deleting_a_server_keeps_the_records_of_its_calls(client_of: ClientOf, site: Site) -> None:
    calls = Invocation.objects.count()
    url = reverse("admin:mcpregistry_server_delete", args=[site.servers["git"].pk])
    client = client_of("admin")
    assert "The records of its calls are kept" in client.get(url).content.decode()
    client.post(url, {"post": "yes"})
    assert not Server.objects.filter(slug="git").exists()
    assert Invocation.objects.count() == calls


# The pages


def test_the_page_tells_how_the_server_is(client_of: ClientOf, site: Site) -> None:
    html = client_of("viewer").get(change(site.servers["git"])).content.decode()
    for told in (
        "web@box:4711",
        "git_status",
        "connect 640 ms",
        "Idle for 600 s.",
        "⟦ESC⟧[33mWARNING",
        "git_commit",
    ):
        assert told in html, told
    assert "\x1b" not in html
    down = client_of("viewer").get(change(site.servers["tickets"])).content.decode()
    assert "did not accept a connection" in down


@pytest.mark.exhaustive
def test_a_connection_whose_process_is_silent_does_not_say_that_it_is_connected(
    client_of: ClientOf, site: Site
) -> None:
    row = site.servers["git"].connections.get(process="web@box:4711")
    pages = change(site.servers["git"]), reverse("admin:mcpregistry_connection_changelist")
    for seen, silent in (
        (timezone.now() - timedelta(hours=1), True),
        (timezone.now() + timedelta(hours=1), False),
    ):
        Connection.objects.filter(pk=row.pk).update(seen_at=seen, state="connected")
        for page in pages:
            assert ("not reporting" in client_of("viewer").get(page).content.decode()) == silent


def test_the_page_names_the_tools_that_are_left_out(client_of: ClientOf, site: Site) -> None:
    Server.objects.filter(slug="git").update(left_out="8 beyond the limit of 2,000: zebra")
    assert (
        "8 beyond the limit of 2,000: zebra"
        in client_of("viewer").get(change(site.servers["git"])).content.decode()
    )


@pytest.mark.both_databases
def test_the_list_shows_states_calls_and_errors(client_of: ClientOf, site: Site) -> None:
    answer = client_of("viewer").get("/admin/mcpregistry/server/")
    shown = {server.slug: server for server in answer.context["cl"].result_list}
    assert shown["github"].tool_count == 6
    assert sum(server.recent.calls for server in shown.values()) == 40
    html = answer.content.decode()
    for state in ("ready", "unavailable", "failing", "draft"):
        assert state in html


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("query", "slugs"),
    [
        ("q=warehouse", {"postgres"}),
        ("q=githubcopilot", {"github"}),
        ("state=unavailable", {"tickets"}),
        ("state=failing", {"postgres"}),
        ("state=ready", {"time", "git", "github"}),
        ("state=untested", set()),
        ("lifecycle__exact=draft", {"browser"}),
        ("transport__exact=sse", {"tickets"}),
        ("state=nonsense", {"time", "git", "github", "postgres", "tickets", "browser"}),
    ],
)
@pytest.mark.both_databases
def test_the_list_is_searched_and_filtered(
    client_of: ClientOf, query: str, slugs: set[str]
) -> None:
    answer = client_of("operator").get(f"/admin/mcpregistry/server/?{query}")
    assert {server.slug for server in answer.context["cl"].result_list} == slugs


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.attack
@pytest.mark.parametrize(
    "query", ["o=999", "o=-1.x", "q=%00", "lifecycle__exact=%27", "env__x=1", "p=99999999999"]
)
@pytest.mark.both_databases
def test_hostile_list_addresses_are_no_server_error(client_of: ClientOf, query: str) -> None:
    answer = client_of("viewer").get(f"/admin/mcpregistry/server/?{query}")
    assert answer.status_code in (200, 302, 400)


def test_secrets_that_no_longer_open_leave_the_page_readable(
    client_of: ClientOf, site: Site
) -> None:
    other = site.servers["github"].sealed_headers
    Server.objects.filter(slug="git").update(sealed_env=other)
    html = client_of("admin").get(change(site.servers["git"])).content.decode()
    assert "cannot be decrypted" in html


def test_json_of_a_tool_is_shown_as_the_server_wrote_it(client_of: ClientOf, site: Site) -> None:
    listed = tool("evil", "<img src=x onerror=alert(1)> \u202eabc")
    observe.observe(server=site.servers["time"], listed=[listed])
    found = Tool.objects.get(name="evil")
    html = (
        client_of("viewer")
        .get(reverse("admin:mcpregistry_tool_change", args=[found.pk]))
        .content.decode()
    )
    assert "&lt;img src=x onerror=alert(1)&gt; ⟦U+202E⟧abc" in html
    assert "\u202e" not in html
    assert json.loads(found.latest.body)["description"].endswith("abc")  # type: ignore[union-attr]


def test_the_sandbox_is_set_on_the_form_shown_on_the_page_and_confirmed(
    client_of: ClientOf, monkeypatch
) -> None:
    wanted = {
        "sandbox": "enforce",
        "sandbox_network": "none",
        "sandbox_read": "/srv/docs\n/srv/more",
    }
    client_of("operator").post(ADD, LOCAL | wanted)
    server = Server.objects.get(slug="new")
    assert (server.sandbox, server.sandbox_read) == ("enforce", ["/srv/docs", "/srv/more"])
    monkeypatch.setattr(confinement, "get_landlock_version", lambda: 7)
    monkeypatch.setattr(confinement, "is_filter_supported", lambda: True)
    page = client_of("admin").get(change(server)).content.decode()
    assert "<strong>full</strong>" in page
    assert "command lines of other processes" in page
    launch = (
        client_of("admin")
        .get(reverse("admin:mcpregistry_server_confirm", args=[server.pk]))
        .content.decode()
    )
    assert "/srv/more" in launch
    assert "It cannot use the network." in launch


def test_a_new_local_server_is_in_its_sandbox_where_there_is_one(
    client_of: ClientOf, monkeypatch
) -> None:
    for abi, mode in ((7, "enforce"), (0, "off")):
        monkeypatch.setattr(confinement, "get_landlock_version", lambda abi=abi: abi)
        form = client_of("operator").get(ADD).context["adminform"].form
        assert form["sandbox"].value() == mode
        assert (form["max_memory_mb"].value(), form["max_processes"].value()) == (4096, 256)


def test_strict_ports_and_limits_are_set_on_the_form_shown_and_confirmed(
    client_of: ClientOf, monkeypatch
) -> None:
    monkeypatch.setattr(confinement, "is_filter_supported", lambda: True)
    monkeypatch.setattr(confinement, "get_landlock_version", lambda: 7)
    wanted = {
        "sandbox": "strict",
        "sandbox_network": "ports",
        "sandbox_connect": "443, 53",
        "max_memory_mb": 500,
    }
    refused = client_of("operator").post(
        ADD, LOCAL | wanted | {"sandbox_connect": "https", "sandbox_listen": "70000"}
    )
    assert (
        "not a number" in errors(refused)["sandbox_connect"][0],
        "65535" in errors(refused)["sandbox_listen"][0],
    ) == (
        True,
        True,
    )
    client_of("operator").post(ADD, LOCAL | wanted)
    server = Server.objects.get(slug="new")
    assert (server.sandbox_connect, server.max_memory_mb) == ([443, 53], 500)
    for missing, said in (
        ("", "<strong>full</strong>"),
        ("bubblewrap is not installed", "<strong>none</strong>: bubblewrap"),
    ):
        monkeypatch.setattr(bubblewrap, "explain_missing", lambda missing=missing: missing)
        page = client_of("admin").get(change(server)).content.decode()
        assert said in page
    assert "500 MB of memory" in page
    launch = (
        client_of("admin")
        .get(reverse("admin:mcpregistry_server_confirm", args=[server.pk]))
        .content.decode()
    )
    assert "TCP ports: 443, 53" in launch
    assert "in its own namespaces" in launch


@pytest.mark.attack
def test_the_page_says_none_where_nothing_is_enforced(client_of: ClientOf, monkeypatch) -> None:
    client_of("operator").post(ADD, LOCAL | {"sandbox": "enforce"})
    server = Server.objects.get(slug="new")
    monkeypatch.setattr(confinement, "get_landlock_version", lambda: 0)
    page = client_of("admin").get(change(server)).content.decode()
    assert "<strong>none</strong>: this kernel has no Landlock" in page
    lifecycle.save_server(server=Server(slug="off", command=["x"]), actor=ACTOR)
    page = client_of("admin").get(change(Server.objects.get(slug="off"))).content.decode()
    assert "<strong>none</strong>: its sandbox is disabled" in page


@pytest.mark.exhaustive
def test_the_page_says_what_keeps_the_sandbox_from_being_switched_on(
    client_of: ClientOf, tmp_path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    server = lifecycle.save_server(
        server=Server(slug="before", command=[sys.executable, str(files)]), actor=ACTOR
    )

    def page() -> str:
        return client_of("operator").get(change(server)).content.decode()

    assert "cannot read these paths" not in page(), "it is a draft"
    lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    assert f'in its command: <code class="sn-code">{files}</code>' in page()
    assert "start a trial that proposes them" in page()
    files.rmdir()
    assert "The sandbox allows all paths" in page()
    test = ServerTest.objects.create(
        server=server,
        in_sandbox=True,
        verdict="failed",
        requested_at=timezone.now(),
        server_revision=server.revision,
    )
    assert "The server failed a test in its sandbox" in page()
    ServerTest.objects.filter(pk=test.pk).update(verdict="passed")
    assert "The server has passed a test in its sandbox" in page()
    assert reverse("admin:mcpregistry_server_verb", args=[server.pk, "enforce-sandbox"]) in page()


def test_paths_that_open_the_sites_data_are_refused_on_the_form(client_of: ClientOf) -> None:
    answer = client_of("operator").post(
        ADD, LOCAL | {"sandbox": "enforce", "sandbox_write": "docs"}
    )
    assert "absolute" in errors(answer)["sandbox_write"][0]
    answer = client_of("operator").post(ADD, LOCAL | {"sandbox": "enforce", "sandbox_write": "/"})
    assert "access data" in answer.content.decode()
    assert not Server.objects.filter(slug="new").exists()


def test_a_new_server_leads_to_its_next_step(client_of: ClientOf) -> None:
    answer = client_of("operator").post(ADD, LOCAL)
    server = Server.objects.get(slug="new")
    assert answer["Location"] == reverse("admin:mcpregistry_server_set_up_step", args=[server.pk])
    another = client_of("operator").post(ADD, LOCAL | {"slug": "second", "_addanother": "1"})
    assert another["Location"] == ADD


@pytest.mark.parametrize(
    ("word", "warned"), [("sk-live-abcdef0123456789abcdef", True), ("${cred:KEY}", False)]
)
def test_the_launch_page_warns_of_a_secret_in_the_command(
    client_of: ClientOf, word: str, warned: bool
) -> None:
    server = Server(slug="open", command=["sh", "--token", word])
    server = lifecycle.save_server(server=server, actor=ACTOR)
    html = client_of("admin").get(confirm(server)).content.decode()
    assert ("This contains what looks like a secret." in html) is warned
    page = (
        client_of("admin")
        .get(reverse("admin:mcpregistry_server_change", args=[server.pk]))
        .content.decode()
    )
    assert ("Store secrets as credentials" in page) is warned
    assert ('id="open-secrets"' in page) is warned
    if warned:
        client_of("admin").post(
            reverse("admin:mcpregistry_server_verb", args=[server.pk, "keep-secrets"])
        )
        server.refresh_from_db()
        assert server.command == ["sh", "--token", "${cred:open-token}"]


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    ("era", "date"), [("modern", "2026-07-28"), ("legacy", "2025-11-25 and earlier")]
)
def test_page_shows_protocol_version_by_its_date(client_of: ClientOf, era: str, date: str) -> None:
    server = lifecycle.save_server(server=Server(slug="dated", command=["x"]), actor=ACTOR)
    Server.objects.filter(pk=server.pk).update(protocol_era=era)
    page = client_of("viewer").get(change(server)).content.decode()
    assert f'<dt>Protocol version</dt><dd class="sn-long">{date}</dd>' in page
