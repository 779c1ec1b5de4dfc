"""Processes whose lease has expired: who may declare them dead, and what ends with them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from mcpregistry import tasks
from mcpregistry.db import read_database_now
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, AuditEntry, Invocation, ServerTest, SiteProcess
from mcpregistry.services.records import idempotency
from mcpregistry.services.servers import checks, trials
from mcpregistry.services.upkeep import dead_processes, process_lease, processes, reaping
from mcpregistry.services.upkeep.process_lease import Judge, ProcessLease
from tests.services.rows import confirmed, dispatched
from tests.waiting import eventually

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = timedelta(hours=1)


def judged(*seconds: float) -> list[bool]:
    """Whether a process that renews its lease at these times may then declare others dead."""
    judge = Judge()

    def renewed(at: datetime) -> bool:
        judge.note_renewal(at)
        return judge.can_judge(at)

    return [renewed(START + timedelta(seconds=each)) for each in seconds]


def test_process_declares_nobody_dead_before_it_has_lived_for_a_lease():
    assert judged(0, 2.5, 5, 7.5, 9.9, 10, 12.5) == [False] * 5 + [True] * 2


def test_after_an_outage_every_process_has_a_whole_lease_to_renew():
    """The database was unavailable for 20 s, or the machine was suspended: all leases have
    expired."""
    assert judged(0, 2.5, 5, 7.5, 10, 30, 32.5, 35, 37.5, 39.9, 40) == [False] * 4 + [True] + [
        False
    ] * 5 + [True]


def test_clock_that_was_set_back_starts_again():
    assert judged(0, 5, 10, 7, 12, 17) == [False, False, True, False, False, True]


def process(key: str, *, dead: bool = True) -> SiteProcess:
    until = read_database_now() + (-timedelta(seconds=1) if dead else LATER)
    kind, host, pid, _ = key.split(":")
    return SiteProcess.objects.create(pk=key, name=f"{kind}@{host}:{pid}", lease_until=until)


@pytest.mark.django_db
@pytest.mark.both_databases
def test_calls_of_a_dead_process_end_and_those_of_its_namesake_do_not():
    """Containers often have the same host name and process id."""
    dispatched("c1", writer="web:box:7:aaaa.1", lease=LATER)
    dispatched("c2", writer="web:box:7:aaaa.2f", lease=LATER)
    dispatched("c3", writer="web:box:7:bbbb.1", lease=LATER)
    dead_processes.clean_up_dead_process(process("web:box:7:aaaa"), read_database_now())
    states = dict(Invocation.objects.values_list("id", "state"))
    assert states == {
        "c1": InvocationState.UNKNOWN,
        "c2": InvocationState.UNKNOWN,
        "c3": InvocationState.DISPATCHED,
    }
    assert AuditEntry.objects.filter(kind="call.unknown").count() == 2


@pytest.mark.django_db
def test_calls_of_a_process_that_returned_in_the_meantime_stay_open():
    dispatched("c1", writer="web:box:7:aaaa.1", lease=LATER)
    dead = process("web:box:7:aaaa")
    processes.renew_process_lease(dead.pk, dead.name)
    dead_processes.clean_up_dead_process(dead, read_database_now())
    assert Invocation.objects.get().state == InvocationState.DISPATCHED


@pytest.mark.django_db
@pytest.mark.both_databases
def test_request_with_the_same_key_gets_the_recorded_end_at_once():
    dispatched("c1", writer="web:box:7:aaaa.1", lease=LATER)
    idempotency.claim(caller="ann", key="k", fingerprint="f", call_id="c1")
    with pytest.raises(Exception, match="still in progress"):
        idempotency.claim(caller="ann", key="k", fingerprint="f", call_id="c2")
    dead_processes.clean_up_dead_process(process("web:box:7:aaaa"), read_database_now())
    use = idempotency.claim(caller="ann", key="k", fingerprint="f", call_id="c2")
    assert use.ended is not None
    assert (use.ended.pk, use.ended.state) == ("c1", InvocationState.UNKNOWN)


@pytest.mark.django_db
def test_work_of_a_dead_worker_is_taken_back_and_that_of_its_namesake_is_not():
    """A container that is started again has the same host name and process id as before."""
    assert tasks.reap, "workers load it, and by it what they take back"
    server = confirmed()
    tests = [
        checks.queue_test(server=server, actor="test", call_tool="", call_arguments={})
        for _ in range(2)
    ]
    workers = [process("worker:box:7:aaaa"), process("worker:box:7:bbbb", dead=False)]
    for test, worker in zip(tests, workers, strict=True):
        assert trials.claim_tests(1, worker=worker.pk) == [test.pk]
    dead_processes.clean_up_dead_process(workers[0], read_database_now())
    assert [ServerTest.objects.get(pk=test.pk).error_code for test in tests] == ["WORKER_LOST", ""]


@pytest.fixture
def quick(live_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of a process expires after a moment, and is renewed all the time."""
    monkeypatch.setattr(processes, "LEASE", timedelta(seconds=0.5))
    monkeypatch.setattr(process_lease, "RENEW_EVERY", 0.02)
    monkeypatch.setattr(process_lease, "RETRY_EVERY", 0.02)


@pytest.fixture
def lease(quick: None) -> Iterator[ProcessLease]:
    held = ProcessLease.hold("web")
    yield held
    held.release()


def test_any_living_process_ends_the_calls_of_a_dead_one(lease: ProcessLease):
    dispatched("c1", writer="web:elsewhere:7:aaaa.1", lease=LATER)
    dispatched("c2", writer=f"{lease.key}.1", lease=LATER)
    process("web:elsewhere:7:aaaa")
    eventually(lambda: Invocation.objects.get(pk="c1").state == InvocationState.UNKNOWN)
    assert Invocation.objects.get(pk="c2").state == InvocationState.DISPATCHED


def test_row_of_a_dead_process_is_deleted_after_a_while(
    lease: ProcessLease, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "KEPT", timedelta())
    process("web:elsewhere:7:aaaa")
    eventually(lambda: list(SiteProcess.objects.values_list("pk", flat=True)) == [lease.key])


def test_process_that_comes_back_has_its_row_again(lease: ProcessLease):
    SiteProcess.objects.all().delete()
    eventually(SiteProcess.objects.filter(pk=lease.key).exists)


def test_process_that_stops_leaves_no_row_once_nobody_holds_its_lease(quick: None):
    first = ProcessLease.hold("web")
    second = ProcessLease.hold("web")
    assert first is second
    assert SiteProcess.objects.count() == 1, "it is there before anything is sent"
    first.release()
    assert SiteProcess.objects.count() == 1
    second.release()
    assert not SiteProcess.objects.exists()


def test_lease_is_renewed_again_after_any_error(
    lease: ProcessLease, monkeypatch: pytest.MonkeyPatch
):
    renew = processes.renew_process_lease
    failed = threading.Event()
    errors = iter([OperationalError("gone"), RuntimeError("a fault of ours")])

    def renewed(*facts: str) -> datetime:
        if (error := next(errors, None)) is not None:
            raise error
        failed.set()
        return renew(*facts)

    monkeypatch.setattr(processes, "renew_process_lease", renewed)
    eventually(failed.is_set)
    until = SiteProcess.objects.get(pk=lease.key).lease_until
    eventually(lambda: SiteProcess.objects.get(pk=lease.key).lease_until > until)


@pytest.mark.django_db
def test_approved_call_of_a_living_process_is_not_given_up_with_its_run():
    """Any process may have sent it. If that dies, the call ends with it."""
    call = dispatched("c1", writer="web:box:7:aaaa.1", lease=LATER, outcome="ask")
    ApprovalRequest.objects.create(
        id=call.pk, call=call, rule_name="r", rule_fingerprint="f", asked_at=START, decide_by=START
    )
    assert not reaping.give_up("c1", "worker:box:8:bbbb.1")
    dead_processes.clean_up_dead_process(process("web:box:7:aaaa"), read_database_now())
    assert Invocation.objects.get().state == InvocationState.UNKNOWN


@pytest.mark.django_db
def test_work_that_was_lost_by_a_slow_worker_ends_its_call_as_unknown():
    """Its process is alive, so the record is corrected when it knows the end
    (tests/fault/test_late_ends.py)."""
    dispatched("c1", writer="worker:box:7:aaaa.1", lease=LATER)
    process("worker:box:7:aaaa", dead=False)
    assert not reaping.give_up("c1", "worker:box:7:aaaa.2"), "a worker keeps its own calls"
    assert reaping.give_up("c1", "worker:box:8:bbbb.1")
    found = Invocation.objects.get()
    assert (found.state, found.error_code) == (InvocationState.UNKNOWN, "LEASE_EXPIRED")
    assert found.finished_at is not None
    assert found.finished_at <= timezone.now()
