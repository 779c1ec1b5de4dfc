"""``manage.py restore FILE``: a site from a backup, into an empty database of either kind."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.backups import loading, passphrase
from controlplane.embedded_site import StartError, hold_site_lock
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.domain.text.display import show_invisible_characters

_SHOWN = 20


class Command(BaseCommand):
    """Loads the file, brings it to this release, and proves the records; exit code 1 if they do not
    hold together."""

    help = (
        "Restores a site from a backup to the database of DATABASE_URL (or in SLIPSNISSE_VAR), which must be empty. "
        "Then upgrades the site to this release, and verifies the audit log and the invariants."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "file",
            metavar="FILE",
            help="File that `manage.py backup` created, or - for standard input.",
        )
        parser.add_argument(
            "--accept-older-log",
            action="store_true",
            help="Restore the backup even if this machine knows a newer checkpoint of the audit log. The log records this.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with hold_site_lock(settings.VAR_DIR), _open_backup(options["file"]) as stream:
                rows = loading.load(
                    stream,
                    passphrase.ask("backup", new=False),
                    self.stderr.write,
                    accept_older_log=options["accept_older_log"],
                )
        except (SlipsnisseError, StartError) as error:
            raise CommandError(str(error)) from error
        found = [*islice(loading.find_problems(), _SHOWN)]
        for problem in found:
            self.stderr.write(show_invisible_characters(problem, 300))
        if found:
            raise CommandError(
                "All rows were restored, but the records in the backup are not consistent. The problems are listed above."
            )
        self.stdout.write(
            f"Restored {rows:,} rows. The audit log and all invariants are intact. All users must log in again."
        )


@contextmanager
def _open_backup(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as stream:
            yield stream
    except OSError as error:
        raise ConfigInvalid(
            f"{name} cannot be read: {error.strerror}.", remedy="Check its name and permissions."
        ) from error
