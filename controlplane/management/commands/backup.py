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
        "Writes the whole site into a new file in DIR, as it is at one moment, while it runs; and reads the file again. "
        f"Its keys are sealed with a passphrase: from {passphrase.VARIABLE} (or its _FILE), else asked for."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("directory", metavar="DIR", help="folder for the file; made when it is not there")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            path, rows = dumping.save(Path(options["directory"]), passphrase.ask(new=True), self.stderr.write)
        except SlipsnisseError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{path}: {rows:,} rows, {path.stat().st_size / 1e6:,.1f} MB, read again and whole.")
