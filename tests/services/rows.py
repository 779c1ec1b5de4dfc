"""Rows that tests of services start from, made through the ordinary verbs."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.events import ConnectionEvent
from mcpregistry.models import Invocation, Server
from mcpregistry.services.records import audit
from mcpregistry.services.servers.checks import compare_definitions
from mcpregistry.services.servers.connections import ConnectionHistory, record_events
from mcpregistry.services.servers.lifecycle import confirm_launch, save_server
from tests.fakes.targets import SERVERS


def draft(slug: str = "echo", **changes: Any) -> Server:
    """A stdio server that starts the fake of that name, not confirmed yet."""
    values: dict[str, Any] = {
        "slug": slug,
        "command": [sys.executable, "-S", str(SERVERS / f"{slug}.py")],
    }
    return save_server(server=Server(**(values | changes)), actor="test")


def confirmed(slug: str = "echo", **changes: Any) -> Server:
    server = draft(slug, **changes)
    return confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())


def dispatched(
    call_id: str = "c1", *, lease: timedelta = timedelta(seconds=-1), **changes: Any
) -> Invocation:
    """A call as the recorder leaves it when its process dies: dispatched, with its audit entry."""
    now = timezone.now()
    values: dict[str, Any] = {
        "id": call_id,
        "state": InvocationState.DISPATCHED,
        "agent_slug": "local",
        "tool_name": "echo",
        "exposed_name": "echo__echo",
        "arguments": '{"text":"hello"}',
        "outcome": "allow",
        "origin": "http",
        "writer": "web:box:1:a",
        "received_at": now,
        "dispatched_at": now,
        "lease_until": now + lease,
    }
    audit.record_entry(kind="call.dispatched", actor="local", subject=f"call:{call_id}")
    return Invocation.objects.create(**(values | changes))


def ended(call_id: str, **changes: Any) -> Invocation:
    """A call that succeeded, with both audit entries."""
    values = {
        "state": InvocationState.SUCCEEDED,
        "lease_until": None,
        "finished_at": timezone.now(),
        "result": "{}",
    }
    call = dispatched(call_id, **(values | {"result_bytes": 2} | changes))
    audit.record_entry(kind=f"call.{call.state}", actor="local", subject=f"call:{call_id}")
    return call


def record_event(event: ConnectionEvent, process: str) -> None:
    """One event of a connection, written now."""

    def compare_now(server_id: int, discovery: Discovery) -> None:
        compare_definitions(
            server=Server.objects.get(pk=server_id), discovery=discovery, process=process
        )

    record_events(
        [event], {event.server_id: ConnectionHistory.make_from_event(event)}, process, compare_now
    )
