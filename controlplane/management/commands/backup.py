"""``manage.py backup DIR``: the whole site as one file, while it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.backups import dumping, passphrase
from mcpregistry.domain.errors import SlipsnisseError


class Command(BaseCommand):
    """Writes a file, reads it again, and says where it is."""

    help = (
        "Writes the whole site to a new file in DIR while the site runs, and then checks the file. The backup shows the "
        "site at one moment. Its keys are encrypted with a passphrase, which is read from "
        f"{passphrase.VARIABLE} (or {passphrase.VARIABLE}_FILE) or from the terminal."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "directory",
            metavar="DIR",
            help="Folder for the file. It is created if it does not exist.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            path, rows = dumping.save(
                Path(options["directory"]), passphrase.ask("backup", new=True), self.stderr.write
            )
        except SlipsnisseError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{path}: {rows:,} rows, {path.stat().st_size / 1e6:,.1f} MB. The file was checked and is complete."
        )
