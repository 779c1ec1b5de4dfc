"""Sessions of hosts over REST: listed with their dedicated connections, narrowed, and ended for
every process."""

from __future__ import annotations

import pytest

from mcpregistry.models import AuditEntry, HostSession
from mcpregistry.services import host_sessions
from tests.api.conftest import new_server

CLIENT = '{"capabilities": {"roots": {}}, "clientInfo": {"name": "Cursor", "version": "3"}, "protocolVersion": "2025-11-25"}'


def begun(name: str, agent: str = "robot") -> None:
    host_sessions.begin_session(
        session_id=name,
        agent=agent,
        endpoint="default",
        version="2025-11-25",
        client=CLIENT,
        name="Cursor",
        said_version="3",
    )


@pytest.mark.one_database
def test_sessions_are_listed_with_their_connections_and_ended_once(db, caller) -> None:
    begun("one")
    begun("two", "eve")
    browser = new_server("browser")
    host_sessions.note_connections(
        "web@here:1", [("one", browser.pk), ("gone", browser.pk), ("two", 10**9)]
    )
    operator = caller("operator")
    viewer = caller("viewer")
    rows = {row["id"]: row for row in viewer.get("/host-sessions").json()["items"]}
    assert {name: row["own_connections"] for name, row in rows.items()} == {
        "one": ["browser"],
        "two": [],
    }
    assert (rows["one"]["host_name"], rows["one"]["state"], rows["one"]["door"]) == (
        "Cursor",
        "open",
        "streamable HTTP",
    )
    assert [
        row["id"] for row in viewer.get("/host-sessions?agent=eve&ended=false").json()["items"]
    ] == ["two"]
    assert viewer.post("/host-sessions/one/end").status_code == 403
    over = operator.post("/host-sessions/one/end").json()
    assert (over["state"], over["own_connections"]) == ("ended", [])
    assert operator.post("/host-sessions/one/end").status_code == 409
    assert operator.post("/host-sessions/never/end").status_code == 404
    assert [row["id"] for row in viewer.get("/host-sessions?ended=true").json()["items"]] == ["one"]
    entry = AuditEntry.objects.get(kind="host_session.ended")
    assert entry.subject == "host_session:one"
    host_sessions.note_connections("web@here:1", [])
    assert not HostSession.objects.get(pk="one").connections.exists()
