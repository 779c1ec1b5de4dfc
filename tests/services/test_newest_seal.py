"""A log that was cut back together with the note of what was verified is found by the file of the
machine."""

from __future__ import annotations

import io
import json
import os
import stat
import threading
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from structlog.testing import capture_logs

from mcpregistry import tasks
from mcpregistry.domain.errors import Conflict
from mcpregistry.models import AuditEntry, AuditSeal, AuditVerification
from mcpregistry.services.records import audit, newest_seal
from tests.fakes.tampered import process_wrote, seal, sealed_anew, unguarded, verify

pytestmark = [pytest.mark.django_db, pytest.mark.attack]


@pytest.fixture
def site() -> None:
    """A site whose log has three seals and was verified twice."""
    sealed_anew()
    for minutes in (30, 20):
        process_wrote(f"web:{minutes}", 3, minutes_ago=minutes)
        assert seal(minutes - 1) is not None
    for _ in range(2):
        assert verify().problems == ()


def cut_back() -> None:
    """What somebody does who can write to the database, and has no key: the log as it was after its
    second seal."""
    with unguarded():
        AuditEntry.objects.filter(writer="web:20").delete()
        AuditSeal.objects.filter(number__gt=2).delete()
    AuditVerification.objects.all().delete()


def kept() -> newest_seal.KeptSeal:
    found = newest_seal.read_newest_seal()
    assert found is not None
    return found


def run(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("audit", *words, stdout=out)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("full", [False, True], ids=["usual", "full"])
def test_log_cut_back_together_with_the_note_is_found(site, full):
    cut_back()
    assert any(found.startswith("Checkpoint 3 of ") for found in verify(full=full).problems)
    code, said = run("verify")
    assert code == 1
    assert "audit accept-restore" in said


def test_cut_log_stays_a_fault_after_new_seals(site):
    cut_back()
    for number in range(3):
        audit.record_entry(kind="test", actor="ann", subject="x", number=number)
        tasks.seal_audit()
    assert AuditSeal.objects.count() > 3
    assert kept().number == 3
    assert any(found.startswith("Checkpoint 3 of ") for found in verify().problems)


def test_sealing_logs_that_the_log_was_cut(site):
    cut_back()
    with capture_logs() as said:
        tasks.seal_audit()
    assert [each["event"] for each in said if each["log_level"] == "error"] == ["audit.cut_back"]


def test_missing_note_is_a_fault_until_everything_was_read(site):
    AuditVerification.objects.all().delete()
    for _ in range(2):
        (problem,) = verify().problems
        assert problem.startswith("The state of the last verification is missing")
    assert verify(full=True).problems == ()
    assert verify().problems == ()


def test_note_with_an_unknown_key_is_a_fault(site):
    AuditVerification.objects.update(key_id="other")
    (problem,) = verify().problems
    assert problem.startswith("The state of the last verification cannot be verified")


def test_machine_without_the_file_says_so_once(site):
    newest_seal.get_seal_path().unlink()
    report = verify()
    assert report.problems == ()
    assert any("did not exist on this machine" in note for note in report.notes)
    assert verify().notes == ()
    assert kept().number == 3


def test_file_is_made_by_a_verification_and_not_by_sealing():
    sealed_anew()
    tasks.seal_audit()
    assert newest_seal.read_newest_seal() is None
    verify()
    audit.record_entry(kind="test", actor="ann", subject="x")
    tasks.seal_audit()
    assert kept().number == AuditSeal.objects.count() == 3
    assert stat.S_IMODE(newest_seal.get_seal_path().stat().st_mode) == 0o600


def test_file_older_than_the_database_is_no_fault(site):
    """Another machine has made the newer seals."""
    for number in range(2):
        audit.record_entry(kind="test", actor="ann", subject="x", number=number)
        assert seal() is not None
    assert verify().problems == ()
    assert kept().number == 5


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"newest_seal": "{}", "key_id": "other", "hash": ""}', "cannot be verified"),
    ],
)
def test_damaged_file_is_a_fault_and_is_not_written_over(site, content, said):
    newest_seal.get_seal_path().write_bytes(content)
    (problem,) = verify().problems
    assert said in problem
    tasks.seal_audit()
    assert newest_seal.get_seal_path().read_bytes() == content


def test_forged_file_does_not_fit_its_signature(site):
    said = json.loads(newest_seal.get_seal_path().read_text())
    newest_seal.get_seal_path().write_text(
        json.dumps(said | {"newest_seal": said["newest_seal"].replace("3", "2")})
    )
    (problem,) = verify().problems
    assert "does not match its signature" in problem


def test_folder_that_cannot_be_written_is_noted(site, monkeypatch, tmp_path):
    monkeypatch.setattr(newest_seal.settings, "VAR_DIR", tmp_path / "missing")
    report = verify()
    assert report.problems == ()
    assert any("was not written" in note for note in report.notes)
    with capture_logs() as said:
        tasks.seal_audit()
    assert "audit.newest_seal_not_kept" in [each["event"] for each in said]


def test_accepted_restore_is_recorded_and_the_log_goes_on(site):
    cut_back()
    code, said = run("accept-restore", "--reason", "restored from Monday's backup")
    assert code == 0
    assert "Nothing was changed" in said
    assert kept().number == 3
    assert run("accept-restore", "--reason", "restored from Monday's backup", "--confirm")[0] == 0
    entry = AuditEntry.objects.get(kind="audit.restored")
    facts = json.loads(entry.body)
    assert (facts["lost_seal"], facts["newest_seal"]) == (3, 2)
    assert facts["reason"] == "restored from Monday's backup"
    assert verify().problems == ()
    assert verify().problems == ()


def test_nothing_lost_is_nothing_to_accept(site):
    with pytest.raises(Conflict):
        newest_seal.accept_restored_log(actor="x", reason="y")
    with pytest.raises(CommandError, match="nothing to accept"):
        run("accept-restore", "--reason", "x", "--confirm")
    assert not AuditEntry.objects.filter(kind="audit.restored").exists()


@pytest.mark.django_db(transaction=True)
def test_processes_that_write_at_once_leave_the_newest_seal(live_db):
    sealed_anew()
    verify()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                seal()
                newest_seal.keep_newest_seal(make=True)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    for number in range(4):
        audit.record_entry(kind="test", actor="ann", subject="x", number=number)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert kept().number == AuditSeal.objects.order_by("-number")[0].number
    assert [
        name
        for name in os.listdir(Path(newest_seal.get_seal_path()).parent)
        if name.startswith(".audit-newest-seal.json")
    ] == []
