"""``manage.py audit``: prove that the audit log is as it was written, or export it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from mcpregistry.db import database_now
from mcpregistry.domain.text.display import printable
from mcpregistry.services.records import chains, sinks, verification

_SHOWN = 100


class Command(BaseCommand):
    """Verifies the log, perhaps against an earlier export; or writes the log as JSON lines."""

    help = "Proves or exports the audit log."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verify = verbs.add_parser("verify", help="check what is new, and the seals; exit code 1 if something is wrong")
        verify.add_argument(
            "--full", action="store_true", help="read every entry, also those that were verified before"
        )
        verify.add_argument(
            "--against",
            metavar="FILE",
            help="an earlier export, or a file of seals: nothing of it may be gone or changed",
        )
        export = verbs.add_parser("export", help="write the whole log as JSON lines")
        export.add_argument("--output", metavar="FILE", help="default: standard output")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "verify":
            self._verify(options["against"], options["full"])
        else:
            self._export(options["output"])

    def _verify(self, against: str | None, full: bool) -> None:
        report = verification.verify(database_now(), full=full)
        problems = [*report.problems, *islice(_compared(against), _SHOWN)]
        for said in (*problems, *report.notes):
            self.stdout.write(printable(said, 300))
        read = f"{report.entries:,} entries of {report.chains:,} chains read in {report.seconds:.1f} s."
        if problems:
            self.stdout.write(f"The audit log is not as it was written. {read}")
            raise SystemExit(1)
        more = "" if report.full else " The older ones were verified before; --full reads them again."
        self.stdout.write(f"The audit log is as it was written. {read}{more}")

    def _export(self, output: str | None) -> None:
        if output is None:
            self.stdout.writelines(f"{line}\n" for line in chains.export())
            return
        try:
            with open(output, "x", encoding="utf-8", opener=_private) as file:
                file.writelines(f"{line}\n" for line in chains.export())
        except OSError as error:
            raise CommandError(
                f"Cannot write {output}: {error.strerror}. Name a file that does not exist yet."
            ) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _compared(path: str | None) -> Iterator[str]:
    if path is None:
        return
    try:
        with open(path, encoding="utf-8") as file:
            first = file.readline()
            file.seek(0)
            yield from sinks.missing(file) if sinks.is_seal(first) else chains.missing_from_log(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{path} is no export of an audit log, and no file of seals: {error}") from error
