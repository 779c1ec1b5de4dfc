"""A site of half a year whose audit log is archived, by the command, and looked at in every way."""

from __future__ import annotations

import io
from pathlib import Path

from django.core.management import call_command
from django.utils import timezone

from mcpregistry.models import AuditEntry
from mcpregistry.services.records import archive_files
from mcpregistry.services.upkeep.invariants import calls
from tests.fakes.tampered import process_wrote, seal, sealed_anew

DAY = 24 * 60  # minutes


def half_a_year() -> None:
    """Two processes that have ended, one that lives, and configuration; 22 entries."""
    sealed_anew()
    process_wrote("configuration", 5, minutes_ago=200 * DAY)
    process_wrote("web:1", 7, minutes_ago=190 * DAY)
    process_wrote("web:2", 7, minutes_ago=180 * DAY)
    process_wrote("web:3", 3, minutes_ago=1)
    assert seal() is not None


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
    for words in (
        [],
        ["--full"],
        ["--archive", str(folder)],
        ["--full", "--archive", str(folder)],
        [],
    ):
        code, said = run("verify", *words)
        assert code == 0, said
    assert [each for each in calls.check_invariants(timezone.now()) if each.violations] == []
