"""``manage.py audit``: prove that the audit log is as it was written, export it, or move its old
entries to files."""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.display import number_of, show_invisible_characters
from mcpregistry.models.signing import explain_missing_key
from mcpregistry.services.records import (
    archive_files,
    archives,
    archiving,
    chains,
    newest_seal,
    seals,
    sinks,
    verification,
)

_SHOWN = 100
_ACTOR = "manage.py audit"


class Command(BaseCommand):
    """Verifies the log, perhaps with its archives or against an earlier export; writes it as JSON
    lines; archives it."""

    help = "Verifies, exports or archives the audit log."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verify = verbs.add_parser(
            "verify",
            help="Verify new entries and checkpoints. The exit code is 1 if something is wrong.",
        )
        verify.add_argument(
            "--full",
            action="store_true",
            help="Read all entries, including entries that were verified before.",
        )
        verify.add_argument(
            "--against",
            metavar="FILE|DIR",
            help="Compare the log with an earlier export, a file of checkpoints, or a folder with the objects of a bucket. "
            "Missing and changed entries are reported.",
        )
        verify.add_argument(
            "--archive",
            metavar="FILE|DIR",
            nargs="+",
            default=[],
            help="Read the archived entries in these files and folders too.",
        )
        archive = verbs.add_parser("archive", help="Move old entries to signed, compressed files.")
        archive.add_argument(
            "--older-than",
            metavar="DAYS",
            type=_days,
            default=timedelta(days=90),
            help="Minimum age of the entries in days, for example 30d. Default: 90d.",
        )
        archive.add_argument(
            "--to", metavar="DIR", help="Folder for the files. Default: archive in SLIPSNISSE_VAR."
        )
        archive.add_argument(
            "--dry-run",
            action="store_true",
            help="Show how many entries would be moved, and change nothing.",
        )
        accept = verbs.add_parser(
            "accept-restore",
            help="Record that the database was restored to an earlier state on purpose, so that the log continues from there.",
        )
        accept.add_argument(
            "--reason",
            required=True,
            help="Reason for the audit log, for example the name of the backup.",
        )
        accept.add_argument(
            "--confirm",
            action="store_true",
            help="Record that the database was restored. Without this option, the command only shows what is lost.",
        )
        export = verbs.add_parser("export", help="Write the whole log as JSON lines.")
        export.add_argument(
            "--output", metavar="FILE", help="File to write. Default: standard output."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["verb"] == "verify":
                self._verify(options["against"], options["archive"], options["full"])
            elif options["verb"] == "archive":
                self._archive(options["older_than"], options["to"], options["dry_run"])
            elif options["verb"] == "accept-restore":
                self._accept_restore(options["reason"], options["confirm"])
            else:
                self._export(options["output"])
        except SlipsnisseError as error:
            raise CommandError(show_invisible_characters(str(error), 1_000)) from error

    def _archive(self, older_than: timedelta, to: str | None, dry_run: bool) -> None:
        folder = Path(to) if to else settings.VAR_DIR / "archive"
        if not to and not dry_run:
            _make(folder)
        moved = archiving.archive_entries(
            read_database_now(), older_than, folder, self.stderr.write, dry_run=dry_run
        )
        what = (
            f"{number_of(moved.entries, 'entry', 'entries')} of {number_of(moved.chains, 'chain')}"
        )
        if not moved.entries:
            self.stdout.write(
                "There are no entries to archive. An entry can be archived when it is old enough, verified and covered by a "
                "checkpoint, and when the record of its call has been deleted."
            )
        elif dry_run:
            self.stdout.write(f"{what} would be moved to {folder}. Nothing was changed.")
        else:
            self.stdout.write(
                f"{what} are in {', '.join(map(str, moved.files))}. Copy these files to your archive."
            )

    def _accept_restore(self, reason: str, confirm: bool) -> None:
        if not confirm:
            lost = newest_seal.describe_acceptable_loss()
            self.stdout.write(
                show_invisible_characters(lost, 500)
                or "The database has all checkpoints that this machine knows of."
            )
            self.stdout.write(
                "Nothing was changed. To accept this, run the command again with --confirm."
            )
            return
        kept = newest_seal.accept_restored_log(actor=_ACTOR, reason=reason)
        self.stdout.write(
            f"Recorded. On this machine, the log continues from checkpoint {kept.number}. Run this command on every other "
            "machine of this site too. The next verification reads all entries."
        )

    def _verify(self, against: str | None, places: list[str], full: bool) -> None:
        known = archives.load_archives()
        read = (
            list(islice(archive_files.verify_archive_files(places, known), _SHOWN))
            if places
            else []
        )
        if read and known.is_stale():
            raise CommandError(
                "Entries were archived during this verification. Run the command again after the archiving has finished."
            )
        report = verification.verify_log(read_database_now(), full=full, known=known)
        problems = [*report.problems, *read, *islice(_compare_with_log(against, known), _SHOWN)]
        for said in (*_group_by_missing_key(problems), *report.notes):
            self.stdout.write(show_invisible_characters(said, 300))
        looked = f"{number_of(report.entries, 'entry', 'entries')} of {number_of(report.chains, 'chain')} read in {report.seconds:.1f} s."
        if problems:
            self.stdout.write(f"The audit log is not intact. {looked}")
            raise SystemExit(1)
        more = (
            "" if report.full else " Older entries were verified before; --full reads them again."
        )
        self.stdout.write(f"The audit log is intact. {looked}{more}")

    def _export(self, output: str | None) -> None:
        if output is None:
            self.stdout.writelines(f"{line}\n" for line in chains.export_log())
            return
        try:
            with open(output, "x", encoding="utf-8", opener=_open_private) as file:
                file.writelines(f"{line}\n" for line in chains.export_log())
        except OSError as error:
            raise CommandError(
                f"Cannot write {output}: {error.strerror}. Choose a file that does not exist yet."
            ) from error


def _group_by_missing_key(problems: Sequence[str]) -> Iterator[str]:
    """The problems. Those that come from one missing key become one line, with their number."""
    sentences = [explain_missing_key(key) for key in seals.list_missing_keys()]
    counts: Counter[str] = Counter()
    others = []
    for problem in problems:
        sentence = next((each for each in sentences if each in problem), None)
        if sentence is None:
            others.append(problem)
        else:
            counts[sentence] += 1
    for sentence, count in counts.items():
        yield (
            f"{number_of(count, 'part', 'parts')} of the log cannot be verified. {sentence} "
            "Run `manage.py doctor`: it names the setting to which the key must be added."
        )
    yield from others


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CommandError(
            f"Cannot create {folder}: {error.strerror}. Nothing was changed. Choose another folder with --to."
        ) from error


def _days(text: str) -> timedelta:
    if not re.fullmatch(r"[0-9]{1,5}d", text):
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a valid age. Use a number of days, for example 90d.'
        )
    return timedelta(days=int(text[:-1]))


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _compare_with_log(path: str | None, known: archives.Archives) -> Iterator[str]:
    if path is None:
        return
    try:
        if os.path.isdir(path):  # a bucket's objects, one seal each
            seals = sorted(Path(path).rglob("*.json"))
            if not seals:
                raise CommandError(
                    f"{path} contains no checkpoints (*.json). Enter the folder that contains the objects of the bucket."
                )
            yield from sinks.find_missing_seals(
                (each.read_text(encoding="utf-8") for each in seals), known
            )
            return
        with open(path, encoding="utf-8") as file:
            first = file.readline()
            file.seek(0)
            yield from (
                sinks.find_missing_seals(file, known)
                if sinks.is_seal(first)
                else chains.find_missing_from_log(file, known)
            )
    except OSError as error:
        raise CommandError(
            f"Cannot read {path}: {error.strerror}. Choose a file that this user can read."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} is neither an export of an audit log nor a file of checkpoints. Choose another file."
        ) from error
