"""Whoever changes the record past its guards is found by ``audit verify``, which reads little of
what it has read before."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.utils import timezone

from mcpregistry.models import AuditEntry, AuditSeal, AuditVerification
from mcpregistry.models.audit import GENESIS
from mcpregistry.models.signing import newest_key, signature
from mcpregistry.services.records import audit, newest_seal, seals, verification
from mcpregistry.services.upkeep.invariants.calls import check_invariants
from tests.fakes.tampered import (
    process_wrote,
    rewrite_without_key,
    seal,
    sealed_anew,
    unguarded,
    verify,
)

pytestmark = [pytest.mark.django_db, pytest.mark.attack]
OLD = 30  # minutes: the clock has long come by


@pytest.fixture
def site() -> None:
    """A site with two processes and some configuration, all sealed."""
    sealed_anew()
    for number in range(4):
        audit.record_entry(kind="test", actor="ann", subject="x", number=number)
    process_wrote("web:1", 3, minutes_ago=OLD)
    process_wrote("web:2", 3, minutes_ago=OLD)
    assert seal(OLD - 1) is not None
    newest_seal.keep_newest_seal(make=True)


def of(writer: str) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(writer=writer).order_by("seq"))


def found(full: bool) -> list[str]:
    return list(verify(full=full).problems)


def test_what_nobody_has_touched_holds(site):
    for full in (False, False, True):
        report = verify(full=full)
        assert (report.problems, report.notes, report.entries) == ((), (), 10)
    assert verify().full is False


# Every kind of tampering is found from scratch, by going on from a verified state, and by reading
# all.


@pytest.fixture(params=["first", "incremental", "full"])
def full(request, site) -> bool:
    if request.param != "first":
        assert verify().problems == ()
    return request.param == "full"


def test_a_tail_that_was_cut_off_is_found(full):
    with unguarded():
        AuditEntry.objects.filter(writer="web:1", seq=3).delete()
    assert found(full) == ["web:1 #3: a checkpoint covers it, but it is missing"]


@pytest.mark.exhaustive(one_in=3)
def test_a_tail_that_was_cut_off_is_found_after_new_entries_and_seals(full):
    """A newer seal says that the chain is as long as before, or ends earlier."""
    for number in range(2):
        audit.record_entry(kind="test", actor="eve", subject="x", number=number)
    assert seal(3) is not None
    with unguarded():
        AuditEntry.objects.filter(actor="eve").delete()
    assert seal(2) is not None
    for number in range(3):
        audit.record_entry(kind="test", actor="ann", subject="x", number=number)
    assert seal(1) is not None
    for everything in (full, True, False):
        assert found(everything) == ["configuration #6: a checkpoint covers it, but it was changed"]


@pytest.mark.exhaustive(one_in=3)
def test_what_was_verified_and_is_not_sealed_yet_is_missed_as_well(full):
    """Also by a verification that reads everything anew, which must not forget it either."""
    audit.record_entry(kind="test", actor="ann", subject="x")
    assert verify().problems == ()
    with unguarded():
        AuditEntry.objects.filter(pk=AuditEntry.objects.order_by("-id")[0].pk).delete()
    for _ in range(2):
        assert [each.partition(":")[2] for each in found(full)] == [
            " a checkpoint covers it, but it is missing"
        ]


def test_a_writer_that_was_dropped_is_found(full):
    with unguarded():
        AuditEntry.objects.filter(writer="web:2").delete()
    assert found(full) == ["web:2 #3: a checkpoint covers it, but it is missing"]


def test_a_chain_that_was_written_anew_without_the_key_is_found(full):
    with unguarded():
        rewrite_without_key(of("web:1"))
    assert "web:1 #3: a checkpoint covers it, but it was changed" in found(full)


@pytest.mark.exhaustive(one_in=3)
def test_a_whole_log_that_was_written_anew_without_the_key_is_found(full):
    """Also with all of its seals but the first gone: it has neither keys nor seals."""
    with unguarded():
        for writer in ("configuration", "web:1", "web:2"):
            rewrite_without_key(of(writer))
        AuditSeal.objects.exclude(number=1).delete()
        AuditVerification.objects.all().delete()
    assert "web:1 #1: it is not signed with a key, so anyone could have written it" in found(full)


def test_seals_that_were_cut_off_are_found(site):
    assert verify().problems == ()
    with unguarded():
        AuditSeal.objects.exclude(number=1).delete()
    assert found(False)[1:] == ["Checkpoint 2 is missing or was changed since it was verified."]


@pytest.mark.exhaustive(one_in=3)
def test_a_log_without_any_seal_is_no_log_of_a_site(full):
    with unguarded():
        AuditSeal.objects.all().delete()
    assert "The first checkpoint is missing. Every site has one from its installation on." in found(
        full
    )


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hash": "0" * 64}, "Checkpoint 2: its text does not match its signature."),
        ({"body": "{}"}, "Checkpoint 2: its text does not match its signature."),
        ({"upto": 7_000_000}, "Checkpoint 2: a column does not match its text."),
        (
            {"at": timezone.now() + timedelta(days=1)},
            "Checkpoint 2: a column does not match its text.",
        ),
        ({"prev": GENESIS}, "Checkpoint 2: a column does not match its text."),
        (
            {"key_id": "other"},
            'Checkpoint 2: it cannot be verified. The signature was made with the key "other"',
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_seal_that_was_changed_is_found(site, change, said):
    with unguarded():
        AuditSeal.objects.filter(number=2).update(**change)
    assert any(each.startswith(said) for each in found(True))


def test_a_seal_in_the_middle_that_is_gone_is_found(site):
    audit.record_entry(kind="test", actor="ann", subject="x")
    assert seal() is not None
    with unguarded():
        AuditSeal.objects.filter(number=2).delete()
    assert any(
        "the checkpoints before it are missing, from number 2 on" in each for each in found(True)
    )


def test_a_forged_note_of_what_was_verified_is_found_and_not_believed(site):
    assert verify().problems == ()
    with unguarded():
        AuditEntry.objects.filter(writer="web:2").delete()
    state = AuditVerification.objects.get().state.replace("web:2", "web:3")
    # a signature of something else is none of this
    forged = signature(newest_key(), "entry", state)
    AuditVerification.objects.update(state=state, hash=forged)
    told = found(False)
    assert told[0].startswith("The state of the last verification was changed")
    assert "web:2 #3: a checkpoint covers it, but it is missing" in told


# What is no tampering


def test_what_no_clock_has_sealed_for_long_is_told(site):
    process_wrote("web:3", 1, minutes_ago=10)
    assert verify().problems == ()
    assert "because the scheduler has not run since then" in verify().notes[0]


def test_a_change_in_what_was_verified_is_found_by_reading_in_turns(site, monkeypatch):
    """Nothing at its chain's end has changed, so it is found when its turn comes."""
    monkeypatch.setattr(verification, "AGAIN", 4)
    assert verify().problems == ()
    with unguarded():
        AuditEntry.objects.filter(writer="web:2", seq=2).update(actor="eve")
    assert [len(found(False)) for _ in range(3)] == [0, 0, 1]
    assert found(True) == ["web:2 #2: a column does not match its text"]


def test_changed_old_seal_is_found_by_reading_in_turns(site, monkeypatch):
    """Seal by seal: the first of three was changed after it had been verified."""
    monkeypatch.setattr(verification, "SEALS_AGAIN", 1)
    audit.record_entry(kind="test", actor="ann", subject="x")
    assert seal() is not None
    for _ in range(2):
        assert verify().problems == ()
    with unguarded():
        AuditSeal.objects.filter(number=1).update(hash="0" * 64)
    rounds = [found(False) for _ in range(4)]
    assert [len(each) for each in rounds] == [0, 0, 1, 1]
    assert rounds[-1] == ["Checkpoint 1: its text does not match its signature."]


def test_old_seal_that_is_gone_is_found_by_reading_in_turns(site):
    audit.record_entry(kind="test", actor="ann", subject="x")
    assert seal() is not None
    for _ in range(2):
        assert verify().problems == ()
    with unguarded():
        AuditSeal.objects.filter(number=2).delete()
    assert found(False) == [
        "Checkpoint 3: the checkpoints before it are missing, from number 2 on."
    ]


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "UPDATE mcpregistry_auditentry SET body = '[[' WHERE seq = 4",
            "its text does not match its hash",
        ),
        (
            "UPDATE mcpregistry_auditseal SET body = '[[' WHERE number = 2",
            "does not match its signature",
        ),
    ],
)
def test_broken_json_is_a_fault_and_stops_no_check(site, change, said):
    assert_change_is_found(change, said)


@pytest.mark.exhaustive(one_in=5)
@pytest.mark.one_database
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "UPDATE mcpregistry_auditentry SET seq = 'x' WHERE seq = 4",
            "could not be read completely",
        ),
        (
            "UPDATE mcpregistry_auditentry SET hash = x'ff' WHERE seq = 4",
            "a checkpoint covers it, but it was changed",
        ),
        (
            "UPDATE mcpregistry_auditentry SET body = CAST(x'ff' AS TEXT) WHERE seq = 4",
            "could not be read",
        ),
        (
            "UPDATE mcpregistry_auditseal SET body = x'ff' WHERE number = 2",
            "does not match its signature",
        ),
        ("UPDATE mcpregistry_auditverification SET state = x'ff'", "was changed"),
    ],
)
def test_value_of_another_type_is_a_fault_and_stops_no_check(site, change, said):
    """SQLite takes a value of any type in any column; PostgreSQL refuses it."""
    assert_change_is_found(change, said)


def assert_change_is_found(change: str, said: str) -> None:
    """Assert that verifying reports the change, and that sealing and the invariants still work."""
    assert verify().problems == ()
    with unguarded(), connection.cursor() as cursor:
        cursor.execute(change)
    assert any(said in each for each in found(False))
    assert check_invariants(timezone.now())
    process_wrote("web:3", 1)
    assert seal() is not None


# Sealing


def test_a_seal_is_made_only_when_there_is_something_new_or_an_hour_has_passed(site):
    assert seal(OLD - 2) is None
    audit.record_entry(kind="test", actor="ann", subject="x")
    made = seal(OLD - 3)
    assert made is not None
    assert seals.read_chain_heads(made) == {"configuration": (5, of("configuration")[-1].hash)}
    assert seals.seal_new_entries(timezone.now() + seals.QUIET) is not None
    assert verify(full=True).problems == ()


def test_an_entry_that_is_seen_late_is_sealed_late(site):
    """Its number is lower than that of one which was sealed: its transaction was slower."""
    last = process_wrote("web:3", 1)
    entry = AuditEntry.objects.get(writer="web:3")
    with unguarded():
        entry_id = entry.pk
        fields = {f.attname: getattr(entry, f.attname) for f in AuditEntry._meta.concrete_fields}
        AuditEntry.objects.filter(pk=entry_id).delete()
    process_wrote("web:4", 1)
    assert seal(0.5) is not None
    AuditEntry.objects.bulk_create([AuditEntry(**fields)])
    made = seal()
    assert made is not None
    assert seals.read_chain_heads(made)["web:3"] == (1, last.head)


@pytest.mark.django_db(transaction=True)
def test_of_clocks_that_seal_at_once_one_does(live_db):
    sealed_anew()
    audit.record_entry(kind="test", actor="ann", subject="x")
    made: list[AuditSeal | None] = []
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def tick() -> None:
        try:
            start.wait()
            made.append(seal())
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [*AuditSeal.objects.order_by("number").values_list("number", flat=True)] == [1, 2]
    assert len([each for each in made if each]) == 1
    assert verify().problems == ()
