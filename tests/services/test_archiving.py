"""Old entries of the audit log move into files, and nothing of them can be lost or changed unnoticed."""

from __future__ import annotations

import gzip
import io
import json
import stat
import threading
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone

from mcpregistry.models import AuditArchive, AuditEntry, Invocation
from mcpregistry.services.records import archive_files, archiving, audit, bound, chains
from mcpregistry.services.upkeep import reaping
from mcpregistry.services.upkeep.invariants import calls
from tests import forkserver
from tests.conftest import child_env
from tests.fakes.tampered import process_wrote, seal, sealed_anew, unguarded, verify
from tests.services.rows import ended

pytestmark = pytest.mark.django_db
DAY = 24 * 60  # minutes


@pytest.fixture
def site() -> None:
    """A site of half a year: two processes that have ended, one that lives, and configuration; 22 entries."""
    sealed_anew()
    process_wrote("configuration", 5, minutes_ago=200 * DAY)
    process_wrote("web:1", 7, minutes_ago=190 * DAY)
    process_wrote("web:2", 7, minutes_ago=180 * DAY)
    process_wrote("web:3", 3, minutes_ago=1)
    assert seal() is not None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files, of several transactions each."""
    monkeypatch.setattr(archiving, "FILE", 6)
    monkeypatch.setattr(archiving, "BATCH", 3)


def run(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("audit", *words, stdout=out, stderr=io.StringIO())
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


def archive(folder: Path, *words: str) -> str:
    code, said = run("archive", "--to", str(folder), *words)
    assert code == 0
    return said


def left() -> dict[str, list[int]]:
    """The numbers of each chain's entries that are still there."""
    found: dict[str, list[int]] = {}
    for writer, seq in AuditEntry.objects.order_by("writer", "seq").values_list("writer", "seq"):
        found.setdefault(writer, []).append(seq)
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(archive_files.PATTERN))


def holds(folder: Path) -> None:
    """By every way of verifying, in every order."""
    for words in ([], ["--full"], ["--archive", str(folder)], ["--full", "--archive", str(folder)], []):
        code, said = run("verify", *words)
        assert code == 0, said
    assert [each for each in calls.check(timezone.now()) if each.violations] == []


@pytest.mark.usefixtures("site")
def test_old_entries_move_into_a_file_and_the_log_holds_without_and_with_it(tmp_path):
    before = {(each.writer, each.seq): chains.line_of(each) for each in AuditEntry.objects.all()}
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
    assert f"16 entries of 3 chains are in archives ({file.name}), not read; give --archive" in said
    assert "read as well" in run("verify", "--archive", str(file))[1]
    assert archive(tmp_path).startswith("1 entries of 1 chains")  # it was the last of its chain, and is so no more
    assert archive(tmp_path).startswith("Nothing is old enough")
    assert len(files(tmp_path)) == 2


@pytest.mark.usefixtures("site", "small")
def test_it_goes_on_where_it_was_in_many_files_and_transactions(tmp_path):
    """Months later, with entries that came meanwhile."""
    archive(tmp_path)
    assert len(files(tmp_path)) == 3
    assert AuditEntry.objects.filter(kind="audit.archived").count() == 6
    holds(tmp_path)
    later = timezone.now() + timedelta(days=100)
    audit.record(kind="test", actor="ann", subject="x")
    assert seal() is not None
    moved = archiving.archive(later, timedelta(days=90), tmp_path, str)
    assert (
        moved.entries == 9
    )  # of the configuration, six of the archive itself among them, and of the process that lived
    holds(tmp_path)
    assert AuditArchive.objects.filter(writer="web:3").get().to_seq == 2


@pytest.mark.usefixtures("site")
def test_only_what_is_verified_sealed_and_old_is_taken(tmp_path):
    process_wrote("web:4", 3, minutes_ago=100 * DAY)
    assert {each.writer for each in archiving.plan(timezone.now(), timedelta(days=90))} == {
        "configuration",
        "web:1",
        "web:2",
    }
    assert [each.writer for each in archiving.plan(timezone.now(), timedelta(days=195))] == ["configuration"]
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
    assert archiving.plan(later, timedelta(days=90)) == []
    Invocation.objects.filter(pk=f"{0:032x}").delete()
    assert archiving.archive(later, timedelta(days=90), tmp_path, str).entries == 2
    holds(tmp_path)


def test_entries_of_before_the_keys_are_archived_as_they_are(tmp_path):
    process_wrote("web:old", 4, minutes_ago=300 * DAY, keyed=0)
    process_wrote("configuration", 4, minutes_ago=300 * DAY, keyed=0)
    sealed_anew()
    assert archive(tmp_path).startswith("6 entries of 2 chains")
    assert set(AuditArchive.objects.values_list("head_key", flat=True)) == {""}
    holds(tmp_path)


@pytest.mark.usefixtures("site")
def test_what_retention_has_said_is_said_again_ahead_of_it(tmp_path):
    moment = (timezone.now() - timedelta(days=400)).isoformat()
    audit.record(kind="x", actor="x", subject=bound.FORGOTTEN, calls_before=moment, payloads_before=moment)
    audit.record(kind="x", actor="x", subject="last")
    assert seal() is not None
    archiving.archive(timezone.now() + timedelta(days=100), timedelta(days=90), tmp_path, str)
    assert not AuditEntry.objects.filter(kind="x", subject=bound.FORGOTTEN).exists()
    assert bound.Forgotten().calls.isoformat() == moment


def wrote(writer: str, *facts: audit.Fact, days_ago: int) -> None:
    _, made = audit.Chain(writer).extended(facts, timezone.now() - timedelta(days=days_ago))
    AuditEntry.objects.bulk_create(AuditEntry(**each._asdict()) for each in made)


def test_what_is_left_of_a_call_whose_beginning_is_archived_is_no_fault(tmp_path):
    """Its vote stands in another chain, where an entry of a call that is still recorded keeps it."""
    gone, kept = f"call:{1:032x}", f"call:{2:032x}"
    sealed_anew()
    asked, vote = {"row": "a", "arguments": "b", "reason": "c"}, {"vote": "d", "voter": 7}
    moment = timezone.now() - timedelta(days=199)
    until = {"calls_before": moment.isoformat(), "payloads_before": moment.isoformat()}
    ended(kept[5:])
    wrote("web:1", audit.Fact("call.dispatched", "x", gone, asked), audit.Fact("x", "x", "x", {}), days_ago=200)
    wrote(
        "worker:1", audit.Fact("x", "x", "x", {}), audit.Fact("call.succeeded", "x", kept, {}),
        audit.Fact("approval.vote", "ann", gone, vote), audit.Fact("x", "x", "x", {}), days_ago=190,
    )  # fmt: skip
    audit.record(kind="calls.forgotten", actor="retention", subject=bound.FORGOTTEN, **until)
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
        audit.Fact("call.dispatched", "x", f"call:{1:032x}", asked),
        audit.Fact("x", "x", "x", {}),
        days_ago=200,
    )
    assert seal() is not None
    with pytest.raises(CommandError, match="its record is gone, and retention has not taken it away"):
        archive(tmp_path)
    monkeypatch.setattr(bound, "misfits", lambda *_: ())
    assert verify().problems == ()
    monkeypatch.undo()
    monkeypatch.setattr(archiving.verification, "AGAIN", 0)  # it has not come to it again
    with pytest.raises(CommandError, match=r"retention has not taken it away\. Find out why"):
        archive(tmp_path)
    assert left()["web:1"] == [1, 2]


def test_a_correction_whose_supposed_end_is_archived_is_no_fault(tmp_path):
    gone = f"call:{1:032x}"
    sealed_anew()
    wrote(
        "configuration",
        audit.Fact("call.unknown", reaping.ACTOR, gone, {}),
        audit.Fact("x", "x", "x", {}),
        days_ago=200,
    )
    wrote("web:1", audit.Fact("call.corrected", "x", gone, {"state": "succeeded"}), days_ago=200)
    assert seal() is not None
    archive(tmp_path)
    assert not AuditEntry.objects.filter(kind="call.unknown").exists()
    holds(tmp_path)


# What goes wrong on the way


@pytest.mark.usefixtures("site")
def test_a_log_that_does_not_hold_is_not_archived(tmp_path):
    with unguarded():
        AuditEntry.objects.filter(writer="web:1", seq=3).update(actor="eve")
    with pytest.raises(CommandError, match=r"not as it was written: web:1 #3.*Nothing was moved"):
        archive(tmp_path)
    AuditEntry.objects.get(writer="web:1", seq=3)
    assert files(tmp_path) == []


@pytest.mark.usefixtures("site")
def test_a_change_that_verifying_has_not_come_to_is_found_ahead_of_the_move(tmp_path, monkeypatch):
    assert verify().problems == ()
    monkeypatch.setattr(archiving.verification, "AGAIN", 1)
    with unguarded():
        AuditEntry.objects.filter(writer="web:2", seq=3).update(actor="eve")
    with pytest.raises(CommandError, match="web:2 #3: a column says something else"):
        archive(tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / ".archiving"]
    assert len(left()["web:2"]) == 7


@pytest.mark.usefixtures("site")
def test_a_folder_that_takes_no_file_is_told_of_with_the_remedy(tmp_path, monkeypatch):
    with pytest.raises(CommandError, match=r"takes no file: No such file.*Make it, or"):
        archive(tmp_path / "absent")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive_files.os, "fsync", full)
    with pytest.raises(CommandError, match=r"No space left on device.*Make room, or name another folder"):
        archive(tmp_path)
    monkeypatch.undo()
    assert [*tmp_path.iterdir()] == [tmp_path / ".archiving"]
    assert not AuditArchive.objects.exists()
    archive(tmp_path)
    holds(tmp_path)


@pytest.mark.usefixtures("site")
def test_a_file_that_is_read_otherwise_than_it_was_written_counts_for_nothing(tmp_path, monkeypatch):
    write = archive_files.write

    def rotten(*given):
        part = write(*given)
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)
        return part

    monkeypatch.setattr(archive_files, "write", rotten)
    with pytest.raises(CommandError, match="The disk is not sound"):
        archive(tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / ".archiving"]
    assert not AuditArchive.objects.exists()


@pytest.mark.usefixtures("site")
def test_of_two_at_once_one_is_refused(tmp_path):
    with archiving._alone(tmp_path), pytest.raises(CommandError, match="Another process archives into"):
        archive(tmp_path)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("taken", ["16", "3"])
def test_what_another_run_has_moved_meanwhile_is_not_moved_again(tmp_path, monkeypatch, taken):
    """All of it, or the first three entries, and then it was broken off."""
    other, keep, move = tmp_path / "other", archive_files.keep, archiving._move
    other.mkdir()

    def broken_off(*given):
        move(*given)
        raise KeyboardInterrupt

    def overtaken(part: Path) -> Path:
        monkeypatch.undo()
        with monkeypatch.context() as inner, pytest.raises(KeyboardInterrupt) if taken == "3" else nullcontext():
            if taken == "3":
                inner.setattr(archiving, "BATCH", 3)
                inner.setattr(archiving, "_move", broken_off)
            assert archive(other).startswith(f"{taken} entries")
        return keep(part)

    monkeypatch.setattr(archive_files, "keep", overtaken)
    with pytest.raises(CommandError, match="Somebody else has archived entries meanwhile"):
        archive(tmp_path)
    assert len(files(tmp_path)) == 1  # no record names it, and what it holds is in the other
    code, said = run("verify", "--full", "--archive", str(tmp_path), str(other))
    assert code == 0, said


# Broken off anywhere, nothing is lost and the next run goes on


@pytest.mark.usefixtures("site", "small")
@pytest.mark.parametrize("times", range(6))
def test_broken_off_between_two_transactions(tmp_path, monkeypatch, times):
    """Also in the middle of a file, of which only a part is out of the database then."""
    before = set(AuditEntry.objects.values_list("hash", flat=True))
    move, moved = archiving._move, []

    def breaks(*given):
        if len(moved) == times:
            raise KeyboardInterrupt
        moved.append(move(*given))

    monkeypatch.setattr(archiving, "_move", breaks)
    with pytest.raises(KeyboardInterrupt):
        archive(tmp_path)
    monkeypatch.setattr(archiving, "_move", move)
    assert len(AuditEntry.objects.filter(hash__in=before)) == 22 - min(3 * times, 16)
    holds(tmp_path)
    archive(tmp_path)
    holds(tmp_path)
    assert before <= {*AuditEntry.objects.values_list("hash", flat=True), *hashes(tmp_path)}


def hashes(folder: Path) -> set[str]:
    found = set()
    for file in files(folder):
        with gzip.open(file, "rt") as stream:
            found |= {json.loads(line).get("hash") for line in stream}
    return found


@pytest.mark.fault
@pytest.mark.parametrize("point", ["archive_written", "archive_recorded"])
def test_a_process_that_is_killed_loses_nothing(live_db, tmp_path, point):
    sealed_anew()
    process_wrote("web:1", 7, minutes_ago=190 * DAY)
    assert seal() is not None
    code = (
        f"from django.core.management import call_command; call_command('audit', 'archive', '--to', {str(tmp_path)!r})"
    )
    child = forkserver.popen(
        ["-c", f"import django; django.setup(); {code}"], env=child_env() | {"SLIPSNISSE_FAILPOINT": f"{point}:crash"}
    )
    assert child.wait(timeout=60) == -9
    connections.close_all()
    assert not AuditArchive.objects.exists()
    assert left()["web:1"] == [1, 2, 3, 4, 5, 6, 7]
    assert len(files(tmp_path)) == 1
    holds(tmp_path)
    archive(tmp_path)
    assert left()["web:1"] == [7]
    holds(tmp_path)


@pytest.mark.usefixtures("site")
def test_what_was_moved_before_the_file_was_begun_is_not_written_again(tmp_path, monkeypatch):
    other, again = tmp_path / "other", archiving._forgotten_said_again
    other.mkdir()

    def overtaken() -> None:
        monkeypatch.setattr(archiving, "_forgotten_said_again", again)
        archive(other)

    monkeypatch.setattr(archiving, "_forgotten_said_again", overtaken)
    with pytest.raises(CommandError, match="Somebody else has archived entries meanwhile"):
        archive(tmp_path)
    assert [*tmp_path.glob("audit-*")] == []
    holds(other)


@pytest.mark.usefixtures("site")
def test_without_a_folder_it_makes_one_for_the_owner_alone(tmp_path, settings):
    settings.VAR_DIR = tmp_path / "var"
    assert run("archive", "--dry-run")[1].startswith("16 entries of 3 chains would be moved to ")
    assert not settings.VAR_DIR.exists()
    assert run("archive")[0] == 0
    folder = settings.VAR_DIR / "archive"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    holds(folder)
    settings.VAR_DIR = files(folder)[0]
    with pytest.raises(CommandError, match=r"Cannot make .*Name another folder with --to"):
        run("archive")


def test_what_a_killed_run_was_writing_is_taken_away(tmp_path):
    sealed_anew()
    part = tmp_path / f"audit-000001-20260101T000000.000000Z.jsonl.gz{archive_files.PART}"
    part.write_bytes(b"half")
    other = tmp_path / "notes.part"
    other.write_bytes(b"mine")
    assert archive(tmp_path).startswith("Nothing is old enough")
    assert not part.exists()
    assert other.exists()


@pytest.mark.fault
def test_of_two_that_remove_at_the_very_same_time_one_does(live_db, tmp_path, monkeypatch):
    """Of different folders, as on two machines: both have written their files when the first removes anything."""
    sealed_anew()
    process_wrote("web:1", 9, minutes_ago=190 * DAY)
    assert seal() is not None
    both, keep, ends = threading.Barrier(2), archive_files.keep, list[object]()

    def kept(part: Path) -> Path:
        both.wait(timeout=30)
        return keep(part)

    def one(folder: Path) -> None:
        folder.mkdir()
        try:
            ends.append(archiving.archive(timezone.now(), timedelta(days=90), folder, str))
        except Exception as error:
            ends.append(error)
        finally:
            connections.close_all()

    monkeypatch.setattr(archive_files, "keep", kept)
    folders = [tmp_path / name for name in "ab"]
    threads = [threading.Thread(target=one, args=[folder]) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(end).__name__ for end in ends) == ["Conflict", "Moved"], ends
    assert left()["web:1"] == [9]
    code, said = run("verify", "--full", "--archive", *map(str, folders))
    assert code == 0, said


# Beside it


@pytest.mark.usefixtures("site", "small")
@pytest.mark.parametrize(
    "look",
    [lambda: verify().problems, lambda: verify(full=True).problems, lambda: tuple(chains.verify())],
    ids=["what is new", "full", "invariants"],
)
def test_a_verification_beside_an_archive_finds_nothing_wrong(tmp_path, monkeypatch, look):
    """Entries go away after it has read until where each chain is archived."""
    assert verify().problems == ()
    cut = chains.cut_after_archives

    def overtaken(known):
        monkeypatch.setattr(chains, "cut_after_archives", cut)
        archive(tmp_path)
        return cut(known)

    monkeypatch.setattr(chains, "cut_after_archives", overtaken)
    assert look() == ()
    assert AuditArchive.objects.exists()


@pytest.mark.usefixtures("site")
def test_files_that_were_read_beside_an_archive_are_not_called_wrong(tmp_path, monkeypatch):
    read = archive_files.verify

    def overtaken(places, known):
        archive(tmp_path)
        return read(places, known)

    monkeypatch.setattr(archive_files, "verify", overtaken)
    with pytest.raises(CommandError, match="Run it again when that has ended"):
        run("verify", "--archive", str(tmp_path))
