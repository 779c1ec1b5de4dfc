"""``manage.py importconfig [PATH|-]``: import a configuration file, once or at every change."""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections

from mcpregistry.domain import formats
from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.formats.notes import FileInvalid, Note
from mcpregistry.domain.text.display import number_of
from mcpregistry.services.exchange import large_files
from mcpregistry.services.exchange.files import FileWatch, locate, map_folder_variables, read_file
from mcpregistry.services.exchange.followed_file import FollowedFile
from mcpregistry.services.exchange.importing import ImportOutcome, import_file, read_document
from mcpregistry.services.exchange.sections import CONFLICT
from mcpregistry.services.exchange.workspaces import EVERY, KIND, WorkspaceChoice

ACTOR = "importconfig"
_MOST_LISTED = 20


class Command(BaseCommand):
    """Reads a file and prints a note for each key that is not taken as it stands (``-v 2``: for
    every key); saves nothing if anything is refused.
    """

    help = "Imports MCP servers from the configuration file of a known program. New servers are drafts and do not start."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "path",
            nargs="?",
            default="",
            help="File to read, or - for standard input. Default: mcp-servers.json in this directory, or the usual file of --format or --workspace.",
        )
        parser.add_argument(
            "--format",
            default="",
            choices=["", *formats.READABLE],
            help="Format of the file. Default: detected.",
        )
        parser.add_argument(
            "--extended", action="store_true", help="Read a Slipsnisse file in the extended format."
        )
        parser.add_argument(
            "--check", action="store_true", help="Only check whether the file is valid."
        )
        parser.add_argument(
            "--on-conflict",
            choices=["error", "skip", "replace", "rename"],
            help="What to do if a server already exists with other values. Default: error. With --watch: replace.",
        )
        parser.add_argument(
            "--credentials",
            action="store_true",
            help="Store values that look like secrets as credentials of their servers.",
        )
        parser.add_argument(
            "--no-expand",
            action="store_true",
            help="Keep ${VAR} in commands and addresses instead of replacing it.",
        )
        parser.add_argument(
            "--workspace", default="", metavar="DIR", help="Directory that replaces ${workspace}."
        )
        parser.add_argument(
            "--project",
            action="append",
            default=[],
            metavar="FOLDER",
            help=f"Create a workspace for this project of the file. Can be repeated. Use {EVERY} for all projects.",
        )
        parser.add_argument(
            "--agent",
            default="local",
            help="Agent that hosts act as in these workspaces. Default: local.",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Show what would change, and save nothing."
        )
        parser.add_argument(
            "--watch",
            action="store_true",
            help="Keep running, and import the file again after each change.",
        )
        parser.add_argument(
            "--interval",
            type=float,
            default=1.0,
            metavar="SECONDS",
            help="With --watch: seconds between two checks for changes. Default: 1.",
        )

    def handle(self, **options: Any) -> None:
        self.options = options
        if options["extended"]:
            options["format"] = "slipsnisse-extended"
        path = self._find_path()
        if options["watch"]:
            if path is None or (path.exists() and not path.is_file()):
                raise CommandError("--watch requires a file. Enter the path of the file.")
            self._watch(path)
        elif not self._import_once(
            sys.stdin.buffer.read(large_files.MAX_BYTES + 1) if path is None else self._read(path),
            path,
        ):
            sys.exit(1)

    def _find_path(self) -> Path | None:
        """The file to read; None for standard input."""
        name = self.options["path"]
        workspace = self._workspace()
        if name == "-":
            return None
        if name:
            return Path(name)
        try:
            found = locate(
                format_name=self.options["format"],
                workspace=workspace,
                environ=os.environ,
                here=Path.cwd(),
            )
        except NotFound as error:
            raise CommandError(str(error)) from None
        if found.warning:
            self.stderr.write(found.warning)
        return found.path

    def _workspace(self) -> Path | None:
        name = self.options["workspace"]
        if name and not Path(name).is_dir():
            raise CommandError(
                f"{name} is not a directory. Enter the directory that the servers work in."
            )
        return Path(name) if name else None

    def _read(self, path: Path) -> bytes:
        try:
            return read_file(path)
        except OSError as error:
            raise CommandError(
                f"{path} cannot be read: {error.strerror}. Check its name and permissions."
            ) from None

    def _import_once(self, raw: bytes, path: Path | None) -> bool:
        """Import what was read; whether all of it was taken."""
        name = str(path) if path else "-"
        if self.options["check"]:
            return self._check(raw, name)
        outcome = import_file(
            raw=raw,
            path=name,
            actor=ACTOR,
            format_name=self.options["format"],
            on_conflict=self.options["on_conflict"]
            or ("replace" if self.options["watch"] else "error"),
            variables=None if self.options["no_expand"] else os.environ,
            folders=map_folder_variables(path, self._workspace()),
            save=not self.options["dry_run"],
            may_rule=True,  # whoever has a shell here may do anything
            may_grant=True,
            rights=grant_all_rights,
            may_be_empty=self.options["watch"],
            secrets_apart=self.options["credentials"],
            workspaces=WorkspaceChoice(
                frozenset(_directory(name) for name in self.options["project"]),
                self.options["agent"],
                may_be_missing=self.options["watch"],
            ),
        )
        self._print_notes(outcome.notes)
        if self.options["dry_run"]:
            self.stdout.write(outcome.format_diff() or "Nothing would change.", ending="")
        self._print_summary(outcome)
        if self.options["watch"]:
            for sentence in self.followed.follow_import(outcome):
                self.stdout.write(f"{name}: {sentence}")
        return not outcome.refused

    def _check(self, raw: bytes, name: str) -> bool:
        try:
            found, document = read_document(raw, name, self.options["format"])
        except FileInvalid as error:
            self._print_notes([error.note])
            return False
        self._print_notes(found.spell_notes(document.notes))
        if not document.refused:
            self.stdout.write(
                f"{name}: valid {found.title} file with {number_of(len(document.servers), 'server')}."
            )
        return not document.refused

    def _print_notes(self, notes: Sequence[Note]) -> None:
        """What is taken as it stands comes first, and as a count unless it is asked for: it shall
        not hide the rest."""
        plain = [note for note in notes if note.plain]
        level = self.options["verbosity"]
        if plain and level == 1:
            self.stdout.write(
                f"{plain[0].file}: {number_of(len(plain), 'value was', 'values were')} taken unchanged. To list these values, use -v 2."
            )
        for note in [*(plain if level > 1 else ()), *(note for note in notes if not note.plain)]:
            (self.stderr if note.action in ("refused", "left out") else self.stdout).write(
                str(note)
            )

    def _print_summary(self, outcome: ImportOutcome) -> None:
        if outcome.refused:
            self.stderr.write(
                f"{outcome.path}: nothing was saved. {number_of(len(outcome.refused), 'problem is', 'problems are')} listed above."
            )
            if any(note.remedy == CONFLICT for note in outcome.refused):
                self.stderr.write(
                    "Use --on-conflict skip, replace or rename to choose what happens to existing servers."
                )
            return
        counts: dict[str, int] = {}
        for change in outcome.changes:
            counts[change.action] = counts.get(change.action, 0) + 1
        if outcome.left_out:
            counts["left out"] = len(outcome.left_out)
        said = ", ".join(f"{count} {action}" for action, count in counts.items()) or "no servers"
        self.stdout.write(
            f"{outcome.path}: {outcome.format}: {said}{'' if outcome.saved else ' (not saved)'}."
        )
        self._offer_workspaces(outcome)

    def _offer_workspaces(self, outcome: ImportOutcome) -> None:
        made = {change.slug for change in outcome.changes if change.kind == KIND}
        left = [
            each.directory
            for each in outcome.projects
            if not each.exists and each.directory not in made
        ]
        if left:
            listed = ", ".join(left[:_MOST_LISTED]) + (", …" if len(left) > _MOST_LISTED else "")
            self.stdout.write(f"{outcome.path}: projects without a workspace: {listed}.")
            self.stdout.write(
                f"To create workspaces for them, use --project FOLDER, or --project {EVERY}."
            )

    def _watch(self, path: Path) -> None:
        """Import at every change until interrupted; a broken file leaves the last good state as it
        is."""
        # explicitly: whoever started us may have had them ignored
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        watch = FileWatch(path)
        missing = False
        self.followed = FollowedFile(ACTOR)
        self.stdout.write(f"{path} is imported after each change. Press Ctrl-C to stop.")
        try:
            while True:
                content = watch.read_if_changed()
                if content is not None:
                    close_old_connections()
                    if not self._import_once(content, path):
                        self.stderr.write(
                            f"{path}: the last imported state is kept. Correct the file and save it again."
                        )
                    self.stdout.flush()
                    self.stderr.flush()
                if missing != (not path.exists()):
                    missing = not missing
                    self.stderr.write(
                        f"{path} no longer exists. Its servers are kept."
                        if missing
                        else f"{path} exists again."
                    )
                time.sleep(self.options["interval"])
        except KeyboardInterrupt:
            self.stdout.write(f"{path} is no longer watched.")


def _directory(name: str) -> str:
    """A folder as the file names it: absolute, as the shell's user means it."""
    return name if name == EVERY else os.path.abspath(name)
