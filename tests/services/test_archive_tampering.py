"""Whoever changes archived entries, their files or the records of them past the guards is found by
``audit verify``."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from django.core.management import CommandError
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from mcpregistry.models import AuditArchive, AuditEntry, AuditSeal, AuditVerification
from mcpregistry.models.audit import GENESIS
from mcpregistry.models.signing import newest_key
from mcpregistry.services.records import archive_files, archives, audit, chains, newest_seal
from tests.fakes.archived import DAY, archive, files, run
from tests.fakes.remembered import remembered
from tests.fakes.tampered import process_wrote, seal, sealed_anew, unguarded, verify

pytestmark = [pytest.mark.django_db, pytest.mark.attack]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the archives of a site are: of one year, and of the next; everything verified."""
    contents, made = remembered(archive_two_years, archive_two_years)
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with unguarded():  # a new site has a seal, so these are not among the remembered rows
        AuditSeal.objects.all().delete()
        AuditSeal.objects.bulk_create(made)
    newest_seal.keep_newest_seal(make=True)
    return tmp_path


def archive_two_years() -> tuple[dict[str, bytes], list[AuditSeal]]:
    """Write entries of two years, archive them and verify all. Return the two files by name, and
    the seals."""
    sealed_anew()
    process_wrote("configuration", 4, minutes_ago=500 * DAY)
    process_wrote("web:1", 6, minutes_ago=490 * DAY)
    process_wrote("web:2", 6, minutes_ago=100 * DAY)
    assert seal() is not None
    with tempfile.TemporaryDirectory() as name:
        archive(Path(name), "--older-than", "400d")
        archive(Path(name))
        assert verify().problems == ()
        contents = {file.name: file.read_bytes() for file in files(Path(name))}
    assert len(contents) == 2
    return contents, [*AuditSeal.objects.all()]


def told(*words: str) -> str:
    code, said = run("verify", *words)
    assert code == (0 if "The audit log is intact" in said else 1)
    return said


def written_anew(file: Path, change) -> None:
    """With other lines, and everything right that needs no key."""
    with gzip.open(file, "rt") as stream:
        lines = stream.read().splitlines()
    with gzip.open(file, "wt") as stream:
        stream.write("".join(f"{line}\n" for line in change(lines)))


CHANGES = {
    "a byte": lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\x01"),
    "an entry": lambda file: written_anew(
        file, lambda lines: [lines[0].replace("ann", "eve"), *lines[1:]]
    ),
    "an entry removed": lambda file: written_anew(file, lambda lines: [*lines[:1], *lines[2:]]),
    "its end cut off": lambda file: written_anew(file, lambda lines: lines[:-1]),
    "damaged": lambda file: file.write_bytes(file.read_bytes()[:-20]),
    "emptied": lambda file: file.write_bytes(b""),
    "replaced by an older one": lambda file: shutil.copy(
        file.parent / sorted(p.name for p in file.parent.glob("*.gz"))[0], file
    ),
}


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_was_changed_is_found(folder, how):
    file = files(folder)[1]
    CHANGES[how](file)
    assert f"{file.name} is not the file that was archived" in told("--archive", str(folder))


def test_a_file_that_is_missing_is_found(folder):
    file = files(folder)[0]
    file.unlink()
    assert f"{file.name} is missing, with 8 entries. Enter the folder" in told(
        "--archive", str(folder)
    )
    assert "The audit log is intact" in told()


def test_a_changed_file_with_its_digest_put_into_the_record_is_found(folder):
    file = files(folder)[1]
    written_anew(file, lambda lines: [*lines[:1], *lines[2:]])
    with unguarded():
        AuditArchive.objects.filter(file=file.name).update(digest=archive_files.hash_file(file))
    assert "it does not match its signature" in told()
    assert "it does not match its signature" in told("--full", "--archive", str(folder))


@pytest.mark.parametrize("full", [False, True])
def test_a_record_that_was_removed_is_found(folder, full):
    last = AuditArchive.objects.first()
    with unguarded():
        AuditArchive.objects.filter(pk=last.pk).delete()
        AuditVerification.objects.all().delete() if full else None
    said = told()
    assert "is missing or was changed since it was verified" in said or full
    assert f"{last.writer} #{last.to_seq + 1}: the entries before it are missing" in told("--full")
    assert f"contains {last.writer} #{last.to_seq}, which is missing from the log" in told(
        "--archive", str(folder)
    )


def test_a_record_that_was_removed_in_the_middle_is_found(folder):
    with unguarded():
        AuditArchive.objects.filter(number=2).delete()
    assert "Archive record 3: the records before it are missing, from number 2 on" in told()


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    "column", ["at", "writer", "from_seq", "to_seq", "head", "head_key", "file", "prev", "hash"]
)
def test_a_record_that_was_changed_is_found(folder, column):
    record = AuditArchive.objects.get(number=2)
    value = {"at": timezone.now(), "from_seq": 2, "to_seq": 7}.get(column, "f" * 64)
    with unguarded():
        AuditArchive.objects.filter(pk=2).update(**{column: value})
    assert "Archive record 2: it " in told()
    assert record.pk == 2


def test_a_record_by_hand_lets_entries_be_removed_and_is_found(folder):
    """The guard believes it; the verification does not."""
    process_wrote("web:3", 5)
    assert seal() is not None
    assert verify().problems == ()
    last = AuditArchive.objects.first()
    made = AuditArchive(
        number=last.number + 1,
        at=timezone.now(),
        writer="web:3",
        from_seq=1,
        to_seq=4,
        file=last.file,
        digest=last.digest,
        head=AuditEntry.objects.get(writer="web:3", seq=4).hash,
        head_key=newest_key(),
        prev=last.hash,
        hash="a" * 64,
        key_id=newest_key(),
    )
    made.save(force_insert=True)
    assert AuditEntry.objects.filter(writer="web:3", seq__lte=4).delete()[0] == 4
    assert f"Archive record {made.number}: it does not match its signature" in told()
    assert "web:3 #5: the entries before it are missing, from number 1 on" in told("--full")


def test_a_signature_of_something_else_is_none_of_a_record(folder):
    record = AuditArchive(
        number=9,
        at=timezone.now(),
        writer="w",
        from_seq=1,
        to_seq=1,
        prev=GENESIS,
        key_id=newest_key(),
    )
    entry = AuditEntry.objects.first()
    record.hash = entry.hash
    assert archives.Archives([record]).problems == [
        "Archive record 9: it does not match its signature."
    ]


@pytest.mark.parametrize("full", [False, True])
def test_entries_that_were_removed_by_hand_after_what_is_archived_are_found(folder, full):
    with unguarded():
        AuditEntry.objects.filter(writer="web:1").delete()
    assert "web:1 #6: it must follow the archived entries, but it is missing" in told(
        *(["--full"] if full else [])
    )


def test_entries_that_were_removed_without_an_archive_are_found(folder):
    for _ in range(3):
        audit.record_entry(kind="test", actor="ann", subject="x")
    assert seal() is not None
    assert verify().problems == ()
    first = AuditEntry.objects.filter(writer="configuration").order_by("seq").first()
    with unguarded():
        AuditEntry.objects.filter(pk=first.pk).delete()
    assert (
        f"configuration #{first.seq}: it must follow the archived entries, but it is missing"
        in told()
    )


def test_an_archived_entry_that_is_put_back_is_found(folder):
    with gzip.open(files(folder)[0], "rt") as stream:
        entry = archive_files._parse_entry(json.loads(stream.readline()))
    entry.save()
    assert "it was archived, but it is in the database again" in told("--full")


def test_an_entry_after_the_archive_that_was_changed_is_found(folder):
    with unguarded():
        AuditEntry.objects.filter(writer="web:1", seq=6).update(prev="f" * 64)
    assert "web:1 #6: it does not follow the entry before it" in told("--full")


def test_an_export_and_seals_of_before_are_compared_with_the_archives(folder, tmp_path, settings):
    with gzip.open(files(folder)[1], "rt") as stream:
        lines = stream.read().splitlines()[:-1]
    kept = tmp_path / "kept.jsonl"
    kept.write_text("".join(f"{line}\n" for line in [*lines, *chains.export_log()]))
    assert "The audit log is intact" in told("--against", str(kept), "--archive", str(folder))
    kept.write_text(kept.read_text().replace(json.loads(lines[1])["hash"], "f" * 64))
    assert "it was exported, and is missing" in told(
        "--against", str(kept), "--archive", str(folder)
    )
    # which says that the archives were not read
    assert "The audit log is intact" in told("--against", str(kept))


def test_rotated_keys_leave_archives_readable_and_a_lost_one_is_named(folder, settings):
    old = settings.SLIPSNISSE_AUDIT_KEYS
    settings.SLIPSNISSE_AUDIT_KEYS = {"new": b"n" * 32, **old}
    assert "The audit log is intact" in told("--full", "--archive", str(folder))
    settings.SLIPSNISSE_AUDIT_KEYS = {"new": b"n" * 32}
    assert f'The signature was made with the key "{next(iter(old))}"' in told(
        "--archive", str(folder)
    )


def test_a_file_of_something_else_is_told_of(folder):
    (folder / "audit-notes.jsonl.gz").write_bytes(b"hello")
    assert "audit-notes.jsonl.gz is not a complete archive of an audit log" in told(
        "--archive", str(folder)
    )


BODY = '{"at":"2026-01-01T00:00:00Z","kind":"k","actor":"a","subject":"s"}'
ENTRY = {"writer": "w", "seq": 1, "prev": GENESIS, "hash": "a" * 64, "key_id": "", "body": BODY}
ODD = [
    b"",
    b"5\n",
    b"[]\n",
    b"null\n",
    b"{}\n",
    b"{",
    b"\xff\n",
    b"[" * 100_000,
    b'{"archive":1}\n',
    b'{"archive":"{}"}\n',
    b'{"archive":"{}","key_id":[],"hash":""}\n',
    b'{"archive":"","key_id":"x","hash":"x"}\n',
    *(
        json.dumps(ENTRY | change).encode() + b"\n"
        for change in (
            {},
            {"seq": "x"},
            {"seq": 1e400},
            {"seq": None},
            {"seq": 10**30},
            {"writer": "\0"},
            {"prev": 7},
            {"prev": "", "seq": 9},
            {"hash": None},
            {"key_id": {}},
            {"key_id": "ring.k1"},
            {"body": 5},
            {"body": "[]"},
            {"body": "[" * 100_000},
            {"body": '{"at":5}'},
            {"writer": None},
            {"body": BODY.replace('"a"', "5")},
            {"body": '{"at":"2026-01-01T00:00:00Z"}'},
        )
    ),
]


@pytest.mark.exhaustive(one_in=12)
@pytest.mark.parametrize("lines", ODD, ids=lambda lines: str(lines[:60]))
def test_a_file_that_somebody_wrote_to_be_odd_is_told_of_and_breaks_nothing(folder, lines):
    odd = folder / "audit-odd.jsonl.gz"
    odd.write_bytes(gzip.compress(lines))
    said = told("--archive", str(folder))
    assert "The audit log is not intact" in said
    assert {line.partition(" ")[0].rstrip(":") for line in said.splitlines()[:-2]} == {odd.name}


def test_files_under_other_names_and_copies_of_them_are_known_by_their_digests(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, file in enumerate(files(folder)):
        shutil.copy(file, elsewhere / f"audit-{number}.jsonl.gz")
    assert "The audit log is intact" in told("--archive", str(elsewhere))
    assert "The audit log is intact" in told(
        "--archive", str(elsewhere), str(folder), str(files(folder)[0])
    )


def test_a_place_that_is_not_there_is_said(folder):
    with pytest.raises(CommandError, match=r"absent does not exist\. Enter an archive file"):
        run("verify", "--archive", str(folder / "absent"))


# The database's own guard


@pytest.mark.parametrize(
    "statement", ["UPDATE {} SET file = 'x'", "DELETE FROM {}", "DELETE FROM {} WHERE number = 2"]
)
def test_records_of_archives_cannot_be_changed_or_removed(folder, statement):
    before = [*AuditArchive.objects.values()]
    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement.format(AuditArchive._meta.db_table))
    assert [*AuditArchive.objects.values()] == before


def test_an_entry_that_is_in_no_archive_cannot_be_removed(folder):
    for writer, seq in AuditEntry.objects.values_list("writer", "seq"):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            AuditEntry.objects.filter(writer=writer, seq=seq).delete()
