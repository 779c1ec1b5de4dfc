"""Servers over REST: drafts, secrets that never come out, tests by id, status and events."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from django.utils import timezone

from mcpregistry.downstream.transports import confinement
from mcpregistry.models import (
    AuditEntry,
    Connection,
    Credential,
    Invocation,
    Server,
    ServerEvent,
    ServerTest,
)
from mcpregistry.services.servers import lifecycle
from tests.api.conftest import new_call, new_server, new_tool

pytestmark = pytest.mark.one_database

SECRET = "hunter2-very-secret"


@pytest.fixture
def operator(db, caller):
    return caller("operator")


@pytest.fixture
def sent():
    """Messages to workers, caught before the broker."""
    with mock.patch("celery.current_app.send_task") as send:
        yield send


def active(slug: str = "echo") -> Server:
    server = new_server(slug)
    return lifecycle.confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())


@pytest.mark.parametrize(("abi", "mode"), [(7, "enforce"), (0, "off")])
def test_a_new_server_is_in_its_sandbox_where_there_is_one(operator, monkeypatch, abi, mode):
    monkeypatch.setattr(confinement, "get_landlock_version", lambda: abi)
    made = operator.post("/servers", {"slug": "git", "command": ["x"], "max_memory_mb": 500}).json()
    assert (made["sandbox"], made["max_memory_mb"], made["max_processes"]) == (mode, 500, 256)
    wanted = {"sandbox": "strict", "sandbox_network": "ports", "sandbox_connect": [443, 53]}
    changed = operator.patch("/servers/git", wanted).json()
    assert {name: changed[name] for name in wanted} == wanted
    assert operator.patch("/servers/git", {"sandbox_connect": [70000]}).status_code == 422


def test_a_server_is_made_changed_and_removed(operator):
    made = operator.post(
        "/servers",
        {"slug": "git", "command": ["mcp-server-git", "--repository", "."], "cwd": "/tmp"},
    )
    assert made.status_code == 201
    body = made.json()
    assert (body["lifecycle"], body["source"], body["revision"]) == ("draft", "api", 1)
    assert body["command"] == ["mcp-server-git", "--repository", "."]
    changed = operator.patch(
        "/servers/git", {"name": "Git", "request_timeout": 5.0, "cwd": None}
    ).json()
    assert (changed["name"], changed["request_timeout"], changed["cwd"]) == ("Git", 5.0, "/tmp")
    assert operator.get("/servers/git").json() == changed
    assert operator.delete("/servers/git").status_code == 204
    assert operator.get("/servers/git").status_code == 404
    assert [
        e.kind for e in AuditEntry.objects.filter(actor__startswith="user:operator").order_by("id")
    ] == [
        "server.created",
        "server.changed",
        "server.deleted",
    ]


def test_what_a_readme_says_is_read_into_words_without_its_secrets(operator):
    answer = operator.post(
        "/servers/read",
        {"text": f"claude mcp add gh -e GH_TOKEN={SECRET} -- npx -y gh-mcp --mode fast"},
    )
    assert (answer.status_code, SECRET in answer.content.decode()) == (200, False)
    (server,) = answer.json()["servers"]
    assert (server["slug"], server["command"]) == ("gh", ["npx", "-y", "gh-mcp", "--mode", "fast"])
    assert server["env"] == {"GH_TOKEN": "${cred:gh-gh-token}"}
    assert server["secrets"] == [
        {"credential": "gh-gh-token", "label": "GH_TOKEN", "place": "env", "filled_in": True}
    ]
    assert server["sandbox_read"] == []
    local = operator.post("/servers/read", {"text": f"python {__file__}"}).json()["servers"][0]
    assert local["sandbox_read"] == [str(Path(__file__).parent)]
    assert not Server.objects.exists()
    assert (
        operator.post("/servers/read", {"text": "io.github.example/tides"}).json()["registry_entry"]
        == "io.github.example/tides"
    )
    refused = operator.post("/servers/read", {"text": f"a && b {SECRET}"})
    assert (refused.status_code, "without a shell" in refused.content.decode()) == (422, True)
    assert SECRET not in refused.content.decode()


@pytest.mark.attack
def test_secrets_go_in_and_never_come_out(operator):
    local = {"slug": "a", "command": ["a"], "env": {"TOKEN": SECRET}}
    remote = {
        "slug": "b",
        "transport": "http",
        "url": "https://example.com/mcp",
        "headers": {"X-Key": SECRET},
    }
    answers = [operator.post("/servers", local), operator.post("/servers", remote)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["env_names"] == ["TOKEN"]
    assert answers[1].json()["header_names"] == ["X-Key"]
    answers += [
        operator.get(path)
        for path in ("/servers", "/servers/a", "/servers/b", "/audit", "/status/servers")
    ]
    answers.append(operator.get("/config/export?format=claude-code"))
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert not any(SECRET in answer.content.decode() for answer in answers)
    assert Server.objects.get(slug="a").env == {"TOKEN": SECRET}


@pytest.mark.attack
def test_a_refused_secret_is_not_quoted_back(operator):
    response = operator.post(
        "/servers", {"slug": "a", "command": ["a"], "env": {"TOKEN": [SECRET]}}
    )
    assert response.status_code == 422
    assert SECRET not in response.content.decode()


def test_the_launch_hash_is_shown_only_to_those_who_may_confirm(operator, caller):
    new_server("git", env={"PIN": "1234"})
    assert operator.get("/servers/git/launch").status_code == 403
    assert "launch_hash" not in operator.get("/servers/git").json()
    launch = caller("admin").get("/servers/git/launch").json()
    assert launch["facts"]["env"] == ["PIN"]
    assert len(launch["launch_hash"]) == 64


def test_refusals_say_what_is_wrong_and_what_to_do(operator):
    cases = [
        {"slug": "bad__slug", "command": ["x"]},
        {"slug": "x", "transport": "http", "url": "ftp://x"},
        {"slug": "x", "transport": "http", "url": "https://u:p@x/"},
        {"slug": "x", "command": ["x"], "request_timeout": -1.0},
        {"slug": "x", "command": ["x"], "unknown_key": 1},
        {"slug": "x", "command": ["x"], "max_concurrency": "8"},
    ]
    for body in cases:
        response = operator.post("/servers", body)
        problem = response.json()
        assert response.status_code == 422, body
        assert sorted(problem) == ["code", "message", "remedy"]
        assert all(problem.values()), body
    broken = operator.client.post(
        "/api/v1/servers",
        "{nope",
        content_type="application/json",
        headers={"Authorization": f"Bearer {operator.token}"},
    )
    assert (broken.status_code, broken.json()["code"]) == (400, "BAD_REQUEST")


@pytest.mark.both_databases
def test_lists_are_searched_filtered_and_paged(operator):
    for slug in ("alpha", "beta", "gamma"):
        new_server(slug, description="first" if slug == "alpha" else "")
    lifecycle.disable_server(server=Server.objects.get(slug="beta"), actor="test")

    def slugs(query: str) -> list[str]:
        return [item["slug"] for item in operator.get(f"/servers?{query}").json()["items"]]

    assert slugs("") == ["alpha", "beta", "gamma"]
    assert slugs("q=FIRST") == ["alpha"]
    assert slugs("lifecycle=disabled") == ["beta"]
    assert slugs("transport=http") == []
    first = operator.get("/servers?limit=2").json()
    assert [
        item["slug"]
        for item in operator.get(f"/servers?limit=2&cursor={first['next']}").json()["items"]
    ] == ["gamma"]
    assert operator.get("/servers?lifecycle=nope").status_code == 422


def test_enable_and_disable(operator):
    active()
    assert operator.post("/servers/echo/disable").json()["lifecycle"] == "disabled"
    assert operator.post("/servers/echo/enable").json()["lifecycle"] == "active"


def test_a_test_is_a_request_by_id_and_its_row_can_be_watched(live_db, caller, sent):
    operator = caller("operator")
    active()
    asked = operator.post("/servers/echo/tests", {})
    assert (asked.status_code, asked.json()["verdict"]) == (202, "queued")
    number = asked.json()["id"]
    assert sent.call_args.args == ("mcpregistry.tasks.test_server",)
    assert sent.call_args.kwargs["args"] == [number]
    ServerTest.objects.update(verdict="passed", timings={"connect": 12.5}, tool_count=3)
    seen = operator.get(f"/servers/echo/tests/{number}").json()
    assert (seen["verdict"], seen["timings"], seen["tool_count"]) == (
        "passed",
        {"connect": 12.5},
        3,
    )
    assert [item["id"] for item in operator.get("/servers/echo/tests").json()["items"]] == [number]


@pytest.mark.attack
def test_a_test_takes_no_configuration(operator, sent):
    active()
    for extra in (
        {"command": ["/bin/sh"]},
        {"url": "http://169.254.169.254/"},
        {"env": {"A": "b"}},
    ):
        assert operator.post("/servers/echo/tests", extra).status_code == 422
    assert operator.post("/servers/echo/tests", {"call_tool": "delete_all"}).status_code == 403
    assert not ServerTest.objects.exists()


def test_drafts_are_neither_tested_nor_refreshed_nor_reconnected(operator, sent):
    new_server("draft")
    for verb in ("tests", "refresh", "connect", "disconnect", "reconnect"):
        response = operator.post(f"/servers/draft/{verb}", {} if verb == "tests" else None)
        assert response.status_code in (409, 422), verb
        assert response.json()["remedy"]
    sent.assert_not_called()


def test_refresh_and_reconnect_are_accepted(operator, sent):
    revision = active().revision
    assert operator.post("/servers/echo/refresh").status_code == 202
    assert sent.call_args.args == ("mcpregistry.tasks.refresh_server",)
    assert operator.post("/servers/echo/reconnect").status_code == 202
    assert Server.objects.get().revision == revision + 1
    assert operator.post("/servers/echo/disconnect").status_code == 202
    left = Server.objects.get()
    assert (left.revision, left.next_check_at > timezone.now()) == (revision + 2, True), (
        "nothing connects at once again"
    )
    assert operator.post("/servers/echo/connect").status_code == 202
    assert (Server.objects.get().revision, sent.call_count) == (revision + 2, 2)
    Server.objects.update(connect_mode="eager")
    refused = operator.post("/servers/echo/disconnect")
    assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT")


@pytest.mark.attack
def test_a_test_of_another_server_is_not_found_here(operator):
    one = active("one")
    other = active("other")
    test = ServerTest.objects.create(server=one, requested_at=timezone.now())
    assert operator.get(f"/servers/{one}/tests/{test.id}").status_code == 200
    assert operator.get(f"/servers/{other}/tests/{test.id}").status_code == 404


@pytest.mark.both_databases
def test_status_tells_state_per_process_counters_and_the_last_error(operator):
    server = active()
    new_tool(server)
    now = timezone.now()
    Connection.objects.create(
        server=server, process="web@a:1", state="connected", since=now, seen_at=now, pid=7
    )
    Connection.objects.create(
        server=server, process="worker@a:2", state="error", since=now, seen_at=now
    )
    Server.objects.update(
        name="The echo",
        last_error="it fell over",
        last_error_code="CONNECTION_FAILED",
        last_error_at=now,
    )
    for number, state in enumerate(("succeeded", "succeeded", "tool_error", "not_sent", "denied")):
        new_call(number, state=state)
    for number in (7, 8):
        new_call(
            number,
            state="tool_error",
            error_code="TOOL_CALL_FAILED",
            reason=f"No row {number} in 'table{number}'",
        )
    status = operator.get("/servers/echo/status").json()
    assert status["last_used_time"] is not None
    first = status["error_patterns"][0]
    assert [first[name] for name in ("tool", "code", "shape", "count")] == [
        "say",
        "TOOL_CALL_FAILED",
        "No row # in '…'",
        2,
    ]
    assert (first["first"] <= first["last"], len(status["error_patterns"])) == (True, 2)
    facts = (
        "server_name",
        "name",
        "connected",
        "transport",
        "tools_discovered",
        "total_calls",
        "success_calls",
        "failed_calls",
    )
    assert [status[name] for name in facts] == ["echo", "The echo", True, "stdio", 1, 6, 2, 4]
    assert status["last_error"] == "it fell over"
    used = Invocation.objects.exclude(state="denied").order_by("-received_at").first()
    assert abs(datetime.fromisoformat(status["last_used_time"]) - used.received_at) < timedelta(
        milliseconds=1
    )
    assert [(p["process"], p["state"]) for p in status["processes"]] == [
        ("web@a:1", "connected"),
        ("worker@a:2", "error"),
    ]
    new_server("draft")
    everyone = operator.get("/status/servers").json()["items"]
    assert [(item["server_name"], item["lifecycle"]) for item in everyone] == [
        ("draft", "draft"),
        ("echo", "active"),
    ]


@pytest.mark.both_databases
def test_the_sites_status_counts_what_waits(operator):
    server = active()
    new_tool(server, approve=False)
    new_tool(server, "two")
    new_call(1, state="dispatched")
    status = operator.get("/status").json()
    facts = ("servers_active", "tools", "definitions_waiting", "calls_open")
    assert [status[name] for name in facts] == [1, 2, 1, 1]


@pytest.mark.both_databases
def test_events_come_newest_first_and_long_ones_are_cut(operator):
    server = active()
    for text in ("first", "x" * 100_000):
        ServerEvent.objects.create(server=server, at=timezone.now(), kind="error", message=text)
    messages = [item["message"] for item in operator.get("/servers/echo/events").json()["items"]]
    assert messages[1] == "first"
    assert len(messages[0]) == 20_000


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    "path",
    ["/servers", "/status/servers", "/tools", "/definitions?state=all", "/grants", "/agents"],
)
@pytest.mark.both_databases
def test_longer_lists_ask_no_more_questions(operator, django_assert_max_num_queries, path):
    for number in range(12):
        new_tool(new_server(f"s{number}"), approve=bool(number % 2))
    operator.get(path)
    with django_assert_max_num_queries(8):
        assert operator.get(path).status_code == 200


@pytest.mark.both_databases
def test_a_status_holds_figures_of_every_tool_that_was_called(live_db, caller):
    new_tool(new_server("echo"))
    for number, (tool, state, took) in enumerate(
        [
            ("say", "succeeded", 10.0),
            ("say", "succeeded", 30.0),
            ("say", "unknown", 20.0),
            ("say", "rejected", 5.0),
            ("gone", "tool_error", 8.0),
        ]
    ):
        new_call(number, tool_name=tool, state=state, duration_ms=took)
    new_call(99, server_slug="other")
    tools = caller("viewer").get("/servers/echo/status").json()["tools"]
    assert [
        (t["tool"], t["total_calls"], t["success_calls"], t["failed_calls"], t["refused_calls"])
        for t in tools
    ] == [
        ("say", 3, 2, 1, 1),
        ("gone", 1, 0, 1, 0),
    ]
    assert [t["mean_ms"] for t in tools] == [20.0, 8.0]
    assert all(t["last_call"] for t in tools)


@pytest.mark.attack
def test_secrets_in_words_reach_no_viewer_and_no_audit_log(operator, caller):
    words = ["x", "postgresql://app:canary@db/prod", "-H", "Authorization: Bearer canary"]
    operator.post("/servers", {"slug": "local", "command": words})
    address = "https://mcp.example/mcp?api_key=canary"
    operator.post("/servers", {"slug": "remote", "transport": "http", "url": address})
    assert operator.get("/servers/local").json()["command"] == words, (
        "whoever may change it needs all of it"
    )
    assert operator.get("/servers/remote").json()["url"] == address
    viewer = caller("viewer")
    places = (
        "/servers",
        "/servers/local",
        "/servers/remote",
        "/servers/local/launch",
        "/servers/remote/launch",
    )
    for answer in map(viewer.get, places):
        assert answer.status_code in (200, 403)
        assert "canary" not in answer.text
    assert viewer.get("/servers/local").json()["command"][1] == "postgresql://app:***@db/prod"
    assert "canary" not in " ".join(AuditEntry.objects.values_list("body", flat=True))


def test_secrets_in_the_command_and_address_are_stored_as_credentials(operator, caller):
    made = operator.post(
        "/servers",
        {"slug": "pg", "command": ["pg", "--token", "t0k3n-value", "postgresql://u:p4ss@db/x"]},
    )
    assert made.json()["open_secrets"] == ["token", "address password"]
    assert operator.post("/servers/pg/keep-secrets").status_code == 403, (
        "operators do not say where secrets may go"
    )
    kept = caller("admin").post("/servers/pg/keep-secrets").json()
    assert kept["command"] == [
        "pg",
        "--token",
        "${cred:pg-token}",
        "postgresql://u:${cred:pg-address-password}@db/x",
    ]
    assert (kept["open_secrets"], kept["lifecycle"]) == ([], "draft")
    stored = {row.name: (row.value, row.scope) for row in Credential.objects.all()}
    assert stored == {
        "pg-token": ("t0k3n-value", ["server:pg"]),
        "pg-address-password": ("p4ss", ["server:pg"]),
    }
    again = caller("admin").post("/servers/pg/keep-secrets")
    assert (again.status_code, "looks like a secret" in again.json()["message"]) == (409, True)
