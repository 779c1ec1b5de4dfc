"""Calls of dead processes end, each once, by the table of states, and nothing is repeated."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Barrier

import pytest
from django.db import connection, connections
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import AuditEntry, Invocation
from mcpregistry.services.upkeep import reaping
from mcpregistry.services.upkeep.reaping import reap_calls
from tests.services.rows import dispatched, ended


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "end"),
    [
        (InvocationState.DISPATCHED, InvocationState.UNKNOWN),
        (InvocationState.READY, InvocationState.CANCELLED),
        (InvocationState.PENDING, InvocationState.EXPIRED),
    ],
)
def test_a_call_whose_lease_ran_out_ends_and_the_audit_log_says_how(state, end):
    call = dispatched(state=state)
    assert reap_calls(timezone.now()) == 1
    call.refresh_from_db()
    assert (call.state, call.error_code, call.lease_until) == (end, "LEASE_EXPIRED", None)
    assert call.reason
    assert call.finished_at
    assert (
        AuditEntry.objects.filter(kind=f"call.{end}", subject="call:c1", actor="reaper").count()
        == 1
    )
    assert reap_calls(timezone.now()) == 0


@pytest.mark.django_db
def test_calls_that_are_held_or_ended_are_left_alone():
    dispatched("held", lease=timedelta(seconds=60))
    ended("done")
    assert reap_calls(timezone.now()) == 0
    assert set(Invocation.objects.values_list("state", flat=True)) == {"dispatched", "succeeded"}


@pytest.mark.django_db
def test_a_lease_that_is_renewed_while_the_clock_looks_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = dispatched()
    end = reaping._end_if_due

    def renewed_just_before(call_id: str, now: datetime) -> bool:
        Invocation.objects.update(lease_until=now + timedelta(seconds=60))
        return end(call_id, now)

    monkeypatch.setattr(reaping, "_end_if_due", renewed_just_before)
    assert reap_calls(timezone.now()) == 0
    call.refresh_from_db()
    assert call.state == InvocationState.DISPATCHED


def test_many_reapers_end_each_call_once(live_db):
    for number in range(20):
        dispatched(f"c{number}")
    start = Barrier(4)
    now = timezone.now()

    def reap(_: int) -> int:
        start.wait()
        try:
            return reap_calls(now)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(reap, range(4))) == 20
    assert AuditEntry.objects.filter(kind="call.unknown").count() == 20


@pytest.mark.django_db
def test_looking_for_dead_calls_reads_the_index_of_open_calls_only():
    with connection.cursor() as cursor:
        # a table of a few rows is read whole unless told not to
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
        is_open = "state IN ('pending', 'ready', 'dispatched')"
        rows = (
            Invocation.objects.extra(where=[is_open])
            .filter(lease_until__lt=timezone.now())
            .order_by("lease_until")
        )
        assert "call_open" in rows.explain()
