"""Fields of the records that programs rely on, and the values they begin with."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from mcpregistry.models import Connection, Endpoint, Server
from mcpregistry.services.definitions import observe
from mcpregistry.services.servers.checks import mark_ok
from tests.api.conftest import new_server, new_tool
from tests.services.rows import confirmed
from tests.services.test_connections import FOUND

pytestmark = pytest.mark.django_db


def test_a_server_begins_local_lazy_and_limited_and_an_endpoint_with_two_underscores():
    server = Server(slug="new")
    assert (server.transport, server.lifecycle, server.connect_mode, server.resend) == (
        "stdio",
        "draft",
        "lazy",
        "safe",
    )
    assert (server.connect_timeout, server.request_timeout, server.max_concurrency) == (
        30.0,
        30.0,
        8,
    )
    endpoint = Endpoint(slug="new")
    assert (endpoint.naming_style, endpoint.description_style, endpoint.hide_unavailable) == (
        "double",
        "none",
        True,
    )


def test_what_a_server_says_of_itself_is_kept():
    server = confirmed()
    found = replace(
        FOUND, server_info={"name": "git", "version": "2"}, instructions="Ask for the branch first."
    )
    mark_ok(server_id=server.pk, discovery=found)
    server.refresh_from_db()
    assert server.server_info == {"name": "git", "version": "2"}
    assert (server.server_instructions, server.protocol_era) == (
        "Ask for the branch first.",
        "modern",
    )


def test_a_server_says_when_it_was_added(caller):
    before = timezone.now()
    new_server("git")
    said = caller("viewer").get("/servers/git").json()["created_at"]
    assert before <= datetime.fromisoformat(said) <= timezone.now()


def test_a_status_tells_times_and_errors(caller):
    server = new_server("git", name="Git")
    now = timezone.now().replace(microsecond=0)
    Server.objects.update(
        last_ok_at=now - timedelta(hours=1),
        last_error="It fell over.",
        last_error_code="TIMEOUT",
        last_error_at=now,
    )
    Connection.objects.create(
        server=server, process="web@a:1", state="connected", since=now, seen_at=now
    )
    status = caller("viewer").get("/servers/git/status").json()
    assert (status["server_name"], status["transport"], status["connected"]) == (
        "git",
        "stdio",
        True,
    )
    assert (status["last_error"], status["last_error_code"]) == ("It fell over.", "TIMEOUT")
    written = now.strftime("%Y-%m-%dT%H:%M:%S")
    assert status["last_error_time"].startswith(written)
    assert status["processes"][0]["since"].startswith(written)
    assert status["last_ok_time"] < status["last_error_time"]


def test_a_tools_record_names_its_server_and_its_schema(caller):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    new_tool(
        new_server("git", name="Git of the house"), "push", description="Sends.", inputSchema=schema
    )
    record = caller("viewer").get("/tools/git__push").json()
    assert (record["original_name"], record["description"]) == ("push", "Sends.")
    assert (record["server_id"], record["server_name"]) == ("git", "Git of the house")
    assert record["input_schema"] == schema


def test_changes_of_a_servers_tools_are_told_as_events():
    server = new_server("git")
    one = {"name": "one", "description": "1"}
    two = {"name": "two", "description": "2"}
    for listed in ([one, two], [one | {"description": "other"}], [one, two]):
        observe.observe(server=server, listed=listed)
    told = server.events.filter(kind="tools").order_by("id").values_list("message", flat=True)
    assert list(told) == [
        "Tools: 2 added.",
        "Tools: 1 changed, 1 removed.",
        "Tools: 1 changed, 1 returned.",
    ]
