"""An archive that goes wrong, is broken off, or has something beside it, loses nothing and calls
nothing wrong that is right."""

from __future__ import annotations

import gzip
import json
import stat
import threading
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError
from django.db import connections
from django.utils import timezone

from mcpregistry.models import AuditArchive, AuditEntry
from mcpregistry.services.records import archive_files, archiving, chains
from tests import forkserver
from tests.conftest import child_env
from tests.fakes.archived import DAY, archive, files, half_a_year, holds, left, run
from tests.fakes.tampered import process_wrote, seal, sealed_anew, unguarded, verify
from tests.waiting import HANG_LIMIT

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
def test_a_log_that_does_not_hold_is_not_archived(tmp_path):
    with unguarded():
        AuditEntry.objects.filter(writer="web:1", seq=3).update(actor="eve")
    with pytest.raises(CommandError, match=r"has been changed: web:1 #3.*No entries were moved"):
        archive(tmp_path)
    AuditEntry.objects.get(writer="web:1", seq=3)
    assert files(tmp_path) == []


@pytest.mark.usefixtures("site")
def test_a_change_that_verifying_has_not_come_to_is_found_ahead_of_the_move(tmp_path, monkeypatch):
    assert verify().problems == ()
    monkeypatch.setattr(archiving.verification, "AGAIN", 1)
    with unguarded():
        AuditEntry.objects.filter(writer="web:2", seq=3).update(actor="eve")
    with pytest.raises(CommandError, match="web:2 #3: a column does not match"):
        archive(tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / ".archiving"]
    assert len(left()["web:2"]) == 7


@pytest.mark.usefixtures("site")
def test_a_folder_that_takes_no_file_is_told_of_with_the_remedy(tmp_path, monkeypatch):
    with pytest.raises(
        CommandError, match=r"No file can be written to .*No such file.*Create the folder, "
    ):
        archive(tmp_path / "absent")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive_files.os, "fsync", full)
    with pytest.raises(
        CommandError, match=r"No space left on device.*Free disk space, or choose another folder"
    ):
        archive(tmp_path)
    monkeypatch.undo()
    assert [*tmp_path.iterdir()] == [tmp_path / ".archiving"]
    assert not AuditArchive.objects.exists()
    archive(tmp_path)
    holds(tmp_path)


@pytest.mark.usefixtures("site")
def test_a_file_that_is_read_otherwise_than_it_was_written_counts_for_nothing(
    tmp_path, monkeypatch
):
    write = archive_files.write_archive_file

    def rotten(*given):
        part = write(*given)
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)
        return part

    monkeypatch.setattr(archive_files, "write_archive_file", rotten)
    with pytest.raises(CommandError, match="Check the disk"):
        archive(tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / ".archiving"]
    assert not AuditArchive.objects.exists()


@pytest.mark.usefixtures("site")
def test_of_two_at_once_one_is_refused(tmp_path):
    with (
        archiving._hold_archive_lock(tmp_path),
        pytest.raises(CommandError, match="Another process is writing an archive to"),
    ):
        archive(tmp_path)


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("taken", ["16", "3"])
def test_what_another_run_has_moved_meanwhile_is_not_moved_again(tmp_path, monkeypatch, taken):
    """All of it, or the first three entries, and then it was broken off."""
    other = tmp_path / "other"
    keep = archive_files.publish_archive_file
    move = archiving._move
    other.mkdir()

    def broken_off(*given):
        move(*given)
        raise KeyboardInterrupt

    def overtaken(part: Path) -> Path:
        monkeypatch.undo()
        with (
            monkeypatch.context() as inner,
            pytest.raises(KeyboardInterrupt) if taken == "3" else nullcontext(),
        ):
            if taken == "3":
                inner.setattr(archiving, "BATCH", 3)
                inner.setattr(archiving, "_move", broken_off)
            assert archive(other).startswith(f"{taken} entries")
        return keep(part)

    monkeypatch.setattr(archive_files, "publish_archive_file", overtaken)
    with pytest.raises(CommandError, match="Another process archived entries at the same time"):
        archive(tmp_path)
    assert len(files(tmp_path)) == 1  # no record names it, and what it holds is in the other
    code, said = run("verify", "--full", "--archive", str(tmp_path), str(other))
    assert code == 0, said


# Broken off anywhere, nothing is lost and the next run goes on


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.usefixtures("site", "small")
@pytest.mark.parametrize("times", range(6))
def test_broken_off_between_two_transactions(tmp_path, monkeypatch, times):
    """Also in the middle of a file, of which only a part is out of the database then."""
    before = set(AuditEntry.objects.values_list("hash", flat=True))
    move = archiving._move
    moved = []

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


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.fault
@pytest.mark.parametrize("point", ["archive_written", "archive_recorded"])
def test_a_process_that_is_killed_loses_nothing(live_db, tmp_path, point):
    sealed_anew()
    process_wrote("web:1", 7, minutes_ago=190 * DAY)
    assert seal() is not None
    code = f"from django.core.management import call_command; call_command('audit', 'archive', '--to', {str(tmp_path)!r})"
    child = forkserver.popen(
        ["-c", f"import django; django.setup(); {code}"],
        env=child_env() | {"SLIPSNISSE_FAILPOINT": f"{point}:crash"},
    )
    assert child.wait(HANG_LIMIT) == -9
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
    other = tmp_path / "other"
    again = archiving._repeat_retention_entry
    other.mkdir()

    def overtaken() -> None:
        monkeypatch.setattr(archiving, "_repeat_retention_entry", again)
        archive(other)

    monkeypatch.setattr(archiving, "_repeat_retention_entry", overtaken)
    with pytest.raises(CommandError, match="Another process archived entries at the same time"):
        archive(tmp_path)
    assert [*tmp_path.glob("audit-*")] == []
    holds(other)


@pytest.mark.exhaustive
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
    with pytest.raises(CommandError, match=r"Cannot create .*Choose another folder with --to"):
        run("archive")


def test_what_a_killed_run_was_writing_is_taken_away(tmp_path):
    sealed_anew()
    part = tmp_path / f"audit-000001-20260101T000000.000000Z.jsonl.gz{archive_files.PART}"
    part.write_bytes(b"half")
    other = tmp_path / "notes.part"
    other.write_bytes(b"mine")
    assert archive(tmp_path).startswith("There are no entries to archive")
    assert not part.exists()
    assert other.exists()


@pytest.mark.fault
def test_of_two_that_remove_at_the_very_same_time_one_does(live_db, tmp_path, monkeypatch):
    """Of different folders, as on two machines: both have written their files when the first
    removes anything."""
    sealed_anew()
    process_wrote("web:1", 9, minutes_ago=190 * DAY)
    assert seal() is not None
    both = threading.Barrier(2)
    keep = archive_files.publish_archive_file
    ends = list[object]()

    def kept(part: Path) -> Path:
        both.wait(HANG_LIMIT)
        return keep(part)

    def one(folder: Path) -> None:
        folder.mkdir()
        try:
            ends.append(archiving.archive_entries(timezone.now(), timedelta(days=90), folder, str))
        except Exception as error:
            ends.append(error)
        finally:
            connections.close_all()

    monkeypatch.setattr(archive_files, "publish_archive_file", kept)
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


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.usefixtures("site", "small")
@pytest.mark.parametrize(
    "look",
    [
        lambda: verify().problems,
        lambda: verify(full=True).problems,
        lambda: tuple(chains.verify_chains()),
    ],
    ids=["what is new", "full", "invariants"],
)
def test_a_verification_beside_an_archive_finds_nothing_wrong(tmp_path, monkeypatch, look):
    """Entries go away after it has read until where each chain is archived."""
    assert verify().problems == ()
    cut = chains.find_cut_chains

    def overtaken(known):
        monkeypatch.setattr(chains, "find_cut_chains", cut)
        archive(tmp_path)
        return cut(known)

    monkeypatch.setattr(chains, "find_cut_chains", overtaken)
    assert look() == ()
    assert AuditArchive.objects.exists()


@pytest.mark.usefixtures("site")
def test_files_that_were_read_beside_an_archive_are_not_called_wrong(tmp_path, monkeypatch):
    read = archive_files.verify_archive_files

    def overtaken(places, known):
        archive(tmp_path)
        return read(places, known)

    monkeypatch.setattr(archive_files, "verify_archive_files", overtaken)
    with pytest.raises(
        CommandError, match="Run the command again after the archiving has finished"
    ):
        run("verify", "--archive", str(tmp_path))
