"""Rows about connections: true, bounded, and gone with their process."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.utils import timezone

from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.events import ConnectionEvent
from mcpregistry.models import Connection, Server, ServerEvent, Tool
from mcpregistry.services.servers import connections
from mcpregistry.services.servers.connections import (
    ConnectionLog,
    forget_process,
    forget_stale,
    make_process_name,
)
from mcpregistry.services.servers.notes import EVENTS_KEPT
from tests.services.rows import confirmed, record_event
from tests.waiting import eventually

FOUND = Discovery(
    tools=({"name": "echo", "inputSchema": {"type": "object"}},),
    problems=("tool '' has no name",),
    instructions="Say it.",
    server_info={"name": "fake\x00", "version": "1"},
    capabilities={},
    era="modern",
    protocol_version="2026-07-28",
    timings={"connect": 1.0, "list": 1.0},
)


def event(server: Server, state: str = "connected", **changes) -> ConnectionEvent:
    plain = ConnectionEvent(server.pk, "state", state, "", "", 4711, "modern", time.time())  # type: ignore[arg-type]
    return replace(plain, **changes)


@pytest.mark.django_db
def test_an_event_becomes_the_connections_row_and_a_note():
    server = confirmed()
    record_event(event(server), "web@box:1")
    record_event(
        event(server, "error", detail="It fell\x00 over.", pid=None, era=None), "web@box:1"
    )
    (row,) = Connection.objects.all()
    assert (row.state, row.pid, row.last_error, row.process) == (
        "error",
        None,
        "It fell␀ over.",
        "web@box:1",
    )
    assert list(server.events.order_by("id").values_list("kind", flat=True)) == [
        "connected",
        "error",
    ]


@pytest.mark.django_db
def test_a_new_connection_compares_the_tools_and_ends_earlier_trouble():
    server = confirmed()
    Server.objects.filter(pk=server.pk).update(
        consecutive_failures=4, unavailable_since=timezone.now()
    )
    record_event(event(server, discovery=FOUND), "web@box:1")
    server.refresh_from_db()
    assert Tool.objects.get(server=server).status == "quarantined"
    assert (server.consecutive_failures, server.unavailable_since, server.protocol_era) == (
        0,
        None,
        "modern",
    )
    assert server.server_info == {"name": "fake␀", "version": "1"}
    assert server.events.filter(kind="tools_left_out", message__contains="has no name").exists()


@pytest.mark.django_db
def test_events_of_a_removed_server_are_dropped():
    server = confirmed()
    gone = event(server)
    server.delete()
    record_event(gone, "web@box:1")
    assert not Connection.objects.exists()


@pytest.mark.django_db
def test_stale_and_leaving_processes_lose_their_rows():
    server = confirmed()
    for process in ("dead", "leaving", "alive"):
        record_event(event(server), process)
    Connection.objects.filter(process="dead").update(seen_at=timezone.now() - timedelta(seconds=61))
    assert forget_stale(timezone.now()) == 1
    forget_process("leaving")
    assert [row.process for row in Connection.objects.all()] == ["alive"]


@pytest.mark.django_db
def test_only_the_newest_events_of_a_server_are_kept():
    server = confirmed()
    other = confirmed("slow")
    now = timezone.now()
    for one in (server, other):
        ServerEvent.objects.bulk_create(
            ServerEvent(server=one, at=now, kind="old", message=str(n)) for n in range(EVENTS_KEPT)
        )
    record_event(event(server, "error"), "web@box:1")
    assert (server.events.count(), other.events.count()) == (EVENTS_KEPT, EVENTS_KEPT)
    assert not server.events.filter(message="0").exists()
    assert server.events.filter(kind="error").exists()


def test_a_flapping_server_floods_neither_the_rows_nor_the_events(
    live_db, django_assert_num_queries
):
    server = confirmed()
    log = ConnectionLog(make_process_name("web"))
    with django_assert_num_queries(0):  # who tells of an event leaves the writing to another thread
        for round_ in range(5_000):
            log.record(
                event(server, "error" if round_ % 2 else "connecting", detail=f"try {round_}")
            )
    eventually(lambda: Connection.objects.filter(last_error="try 4999").exists())
    assert server.events.count() <= EVENTS_KEPT
    assert Connection.objects.count() == 1
    log.close()
    assert not Connection.objects.exists()


def test_the_last_error_and_log_stay_when_a_connection_comes_back(live_db):
    server = confirmed()
    log = ConnectionLog("web@box:1")
    log.record(event(server, "error", detail="boom"))
    log.record(event(server, "error", kind="stderr", detail="Traceback"))
    log.record(event(server, "connected"))
    eventually(
        lambda: Connection.objects.filter(
            state="connected", last_error="boom", stderr_tail="Traceback"
        ).exists()
    )
    log.close()


def test_a_database_that_fails_for_a_while_costs_events_but_not_the_rows(live_db, monkeypatch):
    monkeypatch.setattr(connections, "_BEAT_SECONDS", 0.3)
    server = confirmed()
    write = connections.record_events
    broken: list[object] = []

    def fail(*args: object) -> None:
        broken.append(args)
        raise DatabaseError("away")

    monkeypatch.setattr(connections, "record_events", fail)
    log = ConnectionLog("web@box:1")
    log.record(event(server))
    eventually(lambda: broken)
    monkeypatch.setattr(connections, "record_events", write)
    eventually(lambda: Connection.objects.filter(state="connected").exists())
    log.close()


def test_a_row_that_was_thought_stale_comes_back_with_the_next_beat(live_db, monkeypatch):
    monkeypatch.setattr(connections, "_BEAT_SECONDS", 0.2)
    server = confirmed()
    log = ConnectionLog("web@box:1")
    log.record(event(server))
    eventually(lambda: Connection.objects.exists())
    Connection.objects.all().delete()
    eventually(lambda: Connection.objects.exists())
    log.close()
