"""Old entries of the audit log move into files, and the log holds without and with them."""

from __future__ import annotations

import gzip
import json
import stat
from datetime import timedelta

import pytest
from django.core.management import CommandError
from django.utils import timezone

from mcpregistry.models import AuditArchive, AuditEntry, Invocation
from mcpregistry.services.records import archiving, audit, chains, signed_calls
from mcpregistry.services.upkeep import reaping
from tests.fakes.archived import DAY, archive, files, half_a_year, holds, left, run
from tests.fakes.tampered import process_wrote, seal, sealed_anew, verify
from tests.services.rows import ended

pytestmark = pytest.mark.django_db


@pytest.fixture
def site() -> None:
    """A site of half a year."""
    half_a_year()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files, of several transactions each."""
    monkeypatch.setattr(archiving, "FILE", 6)
    monkeypatch.setattr(archiving, "BATCH", 3)


@pytest.mark.usefixtures("site")
def test_old_entries_move_into_a_file_and_the_log_holds_without_and_with_it(tmp_path):
    before = {
        (each.writer, each.seq): chains.format_entry_line(each) for each in AuditEntry.objects.all()
    }
    said = archive(tmp_path)
    assert said.startswith("16 entries of 3 chains are in ")
    assert left() == {"configuration": [5, 6], "web:1": [7], "web:2": [7], "web:3": [1, 2, 3]}
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with gzip.open(file, "rt") as stream:
        *lines, last = stream.read().splitlines()
    assert sorted(lines) == sorted(line for (w, s), line in before.items() if s not in left()[w])
    assert json.loads(json.loads(last)["archive"])["entries"] == 16
    told = AuditEntry.objects.get(kind="audit.archived")
    assert (told.subject, json.loads(told.body)["entries"]) == (f"file:{file.name}", 16)
    holds(tmp_path)
    _, said = run("verify")
    assert (
        f"16 entries of 3 chains are in archives ({file.name}). The archives were not read. To read them, add --archive"
        in said
    )
    assert "read as well" in run("verify", "--archive", str(file))[1]
    # it was the last of its chain, and is so no more
    assert archive(tmp_path).startswith("1 entry of 1 chain")
    assert archive(tmp_path).startswith("There are no entries to archive")
    assert len(files(tmp_path)) == 2


@pytest.mark.exhaustive
@pytest.mark.usefixtures("site", "small")
def test_it_goes_on_where_it_was_in_many_files_and_transactions(tmp_path):
    """Months later, with entries that came meanwhile."""
    archive(tmp_path)
    assert len(files(tmp_path)) == 3
    assert AuditEntry.objects.filter(kind="audit.archived").count() == 6
    holds(tmp_path)
    later = timezone.now() + timedelta(days=100)
    audit.record_entry(kind="test", actor="ann", subject="x")
    assert seal() is not None
    moved = archiving.archive_entries(later, timedelta(days=90), tmp_path, str)
    assert (
        moved.entries == 9
    )  # of the configuration, six of the archive itself among them, and of the process that lived
    holds(tmp_path)
    assert AuditArchive.objects.filter(writer="web:3").get().to_seq == 2


@pytest.mark.usefixtures("site")
def test_only_what_is_verified_sealed_and_old_is_taken(tmp_path):
    process_wrote("web:4", 3, minutes_ago=100 * DAY)
    assert {each.writer for each in archiving.plan_runs(timezone.now(), timedelta(days=90))} == {
        "configuration",
        "web:1",
        "web:2",
    }
    assert [each.writer for each in archiving.plan_runs(timezone.now(), timedelta(days=195))] == [
        "configuration"
    ]
    with pytest.raises(CommandError, match="younger than 7 days"):
        archive(tmp_path, "--older-than", "6d")
    with pytest.raises(CommandError, match="number of days"):
        archive(tmp_path, "--older-than", "soon")
    said = archive(tmp_path, "--dry-run")
    assert said == f"16 entries of 3 chains would be moved to {tmp_path}. Nothing was changed.\n"
    assert not AuditArchive.objects.exists()
    assert [*tmp_path.iterdir()] == []


def test_entries_of_a_call_stay_as_long_as_its_record(tmp_path):
    sealed_anew()
    for number in range(3):
        ended(f"{number:032x}")
    assert seal() is not None
    later = timezone.now() + timedelta(days=100)
    assert archiving.plan_runs(later, timedelta(days=90)) == []
    Invocation.objects.filter(pk=f"{0:032x}").delete()
    assert archiving.archive_entries(later, timedelta(days=90), tmp_path, str).entries == 2
    holds(tmp_path)


@pytest.mark.usefixtures("site")
def test_what_retention_has_said_is_said_again_ahead_of_it(tmp_path):
    moment = (timezone.now() - timedelta(days=400)).isoformat()
    audit.record_entry(
        kind="x",
        actor="x",
        subject=signed_calls.FORGOTTEN,
        calls_before=moment,
        payloads_before=moment,
    )
    audit.record_entry(kind="x", actor="x", subject="last")
    assert seal() is not None
    archiving.archive_entries(
        timezone.now() + timedelta(days=100), timedelta(days=90), tmp_path, str
    )
    assert not AuditEntry.objects.filter(kind="x", subject=signed_calls.FORGOTTEN).exists()
    assert signed_calls.Forgotten().calls.isoformat() == moment


def wrote(writer: str, *facts: audit.AuditFact, days_ago: int) -> None:
    _, made = audit.Chain(writer).extend_chain(facts, timezone.now() - timedelta(days=days_ago))
    AuditEntry.objects.bulk_create(AuditEntry(**each._asdict()) for each in made)


def test_what_is_left_of_a_call_whose_beginning_is_archived_is_no_fault(tmp_path):
    """Its vote stands in another chain, where an entry of a call that is still recorded keeps
    it."""
    gone = f"call:{1:032x}"
    kept = f"call:{2:032x}"
    sealed_anew()
    asked = {"row": "a", "arguments": "b", "reason": "c"}
    vote = {"vote": "d", "voter": 7}
    moment = timezone.now() - timedelta(days=199)
    until = {"calls_before": moment.isoformat(), "payloads_before": moment.isoformat()}
    ended(kept[5:])
    wrote(
        "web:1",
        audit.AuditFact("call.dispatched", "x", gone, asked),
        audit.AuditFact("x", "x", "x", {}),
        days_ago=200,
    )
    wrote(
        "worker:1",
        audit.AuditFact("x", "x", "x", {}),
        audit.AuditFact("call.succeeded", "x", kept, {}),
        audit.AuditFact("approval.vote", "ann", gone, vote),
        audit.AuditFact("x", "x", "x", {}),
        days_ago=190,
    )
    audit.record_entry(
        kind="calls.forgotten", actor="retention", subject=signed_calls.FORGOTTEN, **until
    )
    assert seal() is not None
    archive(tmp_path)
    assert (left()["web:1"], left()["worker:1"]) == ([2], [2, 3, 4])
    assert run("verify", "--full", "--archive", str(tmp_path))[0] == 0


def test_a_call_that_was_taken_by_hand_is_not_archived(tmp_path, monkeypatch):
    """Its entries are what shows that it was there."""
    sealed_anew()
    asked = {"row": "a", "arguments": "b", "reason": "c"}
    wrote(
        "web:1",
        audit.AuditFact("call.dispatched", "x", f"call:{1:032x}", asked),
        audit.AuditFact("x", "x", "x", {}),
        days_ago=200,
    )
    assert seal() is not None
    with pytest.raises(
        CommandError, match="its record is missing, and retention has not deleted it"
    ):
        archive(tmp_path)
    monkeypatch.setattr(signed_calls, "find_misfits", lambda *_: ())
    assert verify().problems == ()
    monkeypatch.undo()
    monkeypatch.setattr(archiving.verification, "AGAIN", 0)  # it has not come to it again
    with pytest.raises(
        CommandError, match=r"retention has not deleted it\. Run `manage.py audit verify --full`"
    ):
        archive(tmp_path)
    assert left()["web:1"] == [1, 2]


def test_a_correction_whose_supposed_end_is_archived_is_no_fault(tmp_path):
    gone = f"call:{1:032x}"
    sealed_anew()
    wrote(
        "configuration",
        audit.AuditFact("call.unknown", reaping.ACTOR, gone, {}),
        audit.AuditFact("x", "x", "x", {}),
        days_ago=200,
    )
    wrote(
        "web:1", audit.AuditFact("call.corrected", "x", gone, {"state": "succeeded"}), days_ago=200
    )
    assert seal() is not None
    archive(tmp_path)
    assert not AuditEntry.objects.filter(kind="call.unknown").exists()
    holds(tmp_path)
