"""``manage.py confirmworkspace [DIR]``: confirm the project file of a directory without a
browser."""

from __future__ import annotations

import getpass
import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import ProjectFile
from mcpregistry.models.project_file import SHORT
from mcpregistry.services.exchange.project_files import resolve_directory
from mcpregistry.services.exchange.projects import (
    confirm_project,
    list_full_environments,
    list_full_launches,
    note_project,
    take_back_project,
)


class Command(BaseCommand):
    """Shows what the file of a directory declares, and confirms it once the person has typed its
    hash."""

    help = "Confirms the MCP servers that the project file of a directory declares (see runmcp --workspace)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "directory",
            nargs="?",
            default="",
            help="Directory of the project. Default: the current directory.",
        )
        parser.add_argument(
            "--list",
            action="store_true",
            help="List the directories whose project files are known, and their states.",
        )
        parser.add_argument("--show", action="store_true", help="Only show what the file declares.")
        parser.add_argument(
            "--hash",
            default="",
            metavar="HASH",
            help="Confirm the content with this hash, without a prompt.",
        )
        parser.add_argument(
            "--take-back",
            action="store_true",
            help="Revoke the confirmation. The servers of the file stop.",
        )

    def handle(self, **options: Any) -> None:
        if options["list"]:
            self._list()
            return
        try:
            row = self._find(options["directory"])
            if options["take_back"]:
                take_back_project(project=row, actor=_find_actor())
                self.stdout.write(f"{row.directory}: the confirmation was revoked.")
                return
            self._show(row)
            if not options["show"]:
                self._confirm(row, options["hash"])
        except SlipsnisseError as error:
            raise CommandError(str(error)) from None

    def _find(self, name: str) -> ProjectFile:
        """The row of the directory as its file is now. A host that has noted it decides on
        variables and agent."""
        directory = resolve_directory(name or os.getcwd())
        known = ProjectFile.objects.filter(directory=str(directory)).first()
        environ = known.variables if known else os.environ
        agent = known.agent_slug if known else ""
        row = note_project(directory=directory, agent=agent, environ=environ, actor=_find_actor())
        if row is None:
            raise CommandError(
                f"{directory} does not contain a configuration file with MCP servers. Enter another directory."
            )
        return row

    def _show(self, row: ProjectFile) -> None:
        if not row.content:
            raise CommandError(row.problem)
        self.stdout.write(f"{show_invisible_characters(row.path)} declares:")
        for line in row.summary:
            self.stdout.write(f"  {line}")
        for line in list_full_launches(row):
            self.stdout.write(f"  full command, with the words that look like secrets: {line}")
        for line in list_full_environments(row):
            self.stdout.write(f"  environment values that look like secrets: {line}")
        for name, value in row.variables.items():
            self.stdout.write(
                f"  {name}={show_invisible_characters(value, 200)} (from the environment, used above)"
            )
        self.stdout.write(f"Content hash {row.content}, state: {row.state}.")

    def _confirm(self, row: ProjectFile, given: str) -> None:
        if row.content == row.confirmed:
            self.stdout.write("This content is already confirmed.")
            return
        if not given:
            try:
                given = input(f"To start these servers, type {row.content[:SHORT]}: ").strip()
            except EOFError:
                raise CommandError(
                    f"Nothing was confirmed. Run the command again with --hash {row.content}."
                ) from None
            given = row.content if given == row.content[:SHORT] else given
        confirm_project(project=row, shown=given, actor=_find_actor())
        self.stdout.write(
            "Confirmed. Hosts that already run in this directory get the tools in a moment. Other hosts get them when they start."
        )

    def _list(self) -> None:
        found = list(ProjectFile.objects.all())
        if not found:
            self.stdout.write("No project files are known.")
        for row in found:
            self.stdout.write(
                f"{row.directory}: {row.state}, content hash {row.content[:SHORT] or 'none'}"
            )


def _find_actor() -> str:
    """The user of the machine who runs the command, for the audit log."""
    return f"shell:{getpass.getuser()}"
