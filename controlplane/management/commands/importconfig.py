"""``manage.py importconfig``, and of a document that ``exportconfig --all`` made the whole
configuration of the site."""

from __future__ import annotations

import difflib
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.backups import passphrase
from controlplane.configuration import document_export, document_import
from controlplane.configuration.document_values import Secrets
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.formats import text
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.management.commands import importconfig

# of a site with many thousand tools; whoever names it has a shell
_LARGEST = 256 * 1024 * 1024
_MOST_VALUES = 5_000_000
_SHOWN = 20


class Command(importconfig.Command):
    """As the registry's own, for files of servers; one of a whole site is known by its first
    line."""

    help = f"{importconfig.Command.help} A file of `exportconfig --all` configures the whole site."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--secrets",
            default="",
            metavar="PATH",
            help="For a whole site: file that `exportconfig --secrets` wrote.",
        )
        parser.add_argument(
            "--confirm",
            action="store_true",
            help="For a whole site: launches, destinations and definitions that are confirmed in the file become confirmed "
            "on this site too. Read the file first.",
        )

    def _import_once(self, raw: bytes, path: Path | None) -> bool:
        """Import what was read; whether all of it was taken."""
        if not _is_whole(raw):
            if self.options["secrets"] or self.options["confirm"]:
                raise CommandError(
                    "--secrets and --confirm require a file that was written by `exportconfig --all`."
                )
            return super()._import_once(raw, path)
        if self.options["watch"] or self.options["check"] or self.options["on_conflict"]:
            raise CommandError(
                "--watch, --check and --on-conflict cannot be used for the file of a whole site. Leave them out."
            )
        name = str(path) if path else "-"
        try:
            with text.allow_larger_files(_LARGEST, _MOST_VALUES):
                self._take(text.load(raw, name), name)
        except FileInvalid as error:
            self._print_notes([error.note])
            return False
        except SlipsnisseError as error:
            self.stderr.write(f"{name}: {error}\nNothing was saved.")
            return False
        return True

    def _take(self, document: Mapping[str, Any], name: str) -> None:
        trial = self.options["dry_run"]
        before = _dump_configuration() if trial else ""
        after: list[str] = []
        report = document_import.take(
            document,
            self._secrets(),
            confirm=self.options["confirm"],
            save=not trial,
            after=(lambda: after.append(_dump_configuration())) if trial else (lambda: None),
        )
        if trial:
            lines = difflib.unified_diff(
                before.splitlines(True), after[0].splitlines(True), "this site", name
            )
            self.stdout.write("".join(lines) or "Nothing would change.\n", ending="")
        for note in report.notes:
            self.stderr.write(note)
        if report.kept:
            more = ", …" if len(report.kept) > _SHOWN else ""
            self.stdout.write(
                f"Not in the file, and kept unchanged: {', '.join(report.kept[:_SHOWN])}{more}."
            )
        self.stdout.write(
            f"{name}: {len(report.made)} added, {len(report.changed)} changed{' (not saved)' if trial else ''}."
        )

    def _secrets(self) -> dict[str, Any]:
        path = self.options["secrets"]
        if not path:
            return {}
        return document_export.decrypt_secrets(
            text.load(self._read(Path(path)), path), passphrase.ask("secrets file", new=False)
        )


def _is_whole(raw: bytes) -> bool:
    """Without reading all of it: our own files say so at their beginning."""
    head = raw[:200].decode(errors="replace").replace('"', "").replace(" ", "")
    return f"slipsnisse:{document_export.WHOLE}" in head


def _dump_configuration() -> str:
    return text.dump(document_export.document(Secrets()), as_yaml=True)
