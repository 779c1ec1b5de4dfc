"""``manage.py connect``: write the entry of an endpoint into a host's own file, take it out, list,
repair."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.hosts.connection import BEARER_VARIABLE, make_entry_name
from mcpregistry.domain.hosts.table import HOSTS, HostProgram
from mcpregistry.domain.text.display import number_of
from mcpregistry.management.site_check import must_be_a_site
from mcpregistry.services.hosts.connecting import ConnectOutcome, Signing, connect, disconnect
from mcpregistry.services.hosts.files import HostFile, open_project_file, open_user_file
from mcpregistry.services.hosts.host_connections import list_withheld_variables
from mcpregistry.services.hosts.listing import EntryStanding, list_standing, rewrite_entry

ACTOR = "connect"


class Command(BaseCommand):
    """Changes a host's file and keeps all else in it; what it held before lies beside it."""

    help = "Connects a host (Claude Code, Cursor, Codex …) to an endpoint: adds an entry to the host's configuration file."

    requires_system_checks: list[str] = []  # they are about the site; `manage.py doctor` shows them

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "host",
            nargs="?",
            choices=list(HOSTS),
            metavar="HOST",
            help=f"One of: {', '.join(HOSTS)}.",
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--remove",
            action="store_true",
            help="Remove the entry, and revoke a token that was created for it.",
        )
        what.add_argument(
            "--list",
            action="store_true",
            help="List the connected hosts, and whether their entries still lead to this site.",
        )
        what.add_argument(
            "--repair", action="store_true", help="Rewrite the entries that --list shows as stale."
        )
        endpoint = parser.add_mutually_exclusive_group()
        endpoint.add_argument(
            "--endpoint",
            default="default",
            metavar="E",
            help="Endpoint to connect. Default: default.",
        )
        endpoint.add_argument(
            "--workspace",
            action="store_true",
            help="Instead of an endpoint, connect the MCP servers of the project file in the directory in which the host runs.",
        )
        parser.add_argument(
            "--agent",
            metavar="A",
            help="Agent that the host acts as. Default: local. With --workspace: the agent of the directory.",
        )
        parser.add_argument(
            "--http",
            action="store_true",
            help="Connect over HTTP instead of stdio. A token is created for the file.",
        )
        token = parser.add_mutually_exclusive_group()
        token.add_argument(
            "--token-stdin",
            action="store_true",
            help="With --http: read the token from standard input.",
        )
        token.add_argument(
            "--in-environment",
            action="store_true",
            help=f"With --http: write no token to the file. The host reads the variable {BEARER_VARIABLE}.",
        )
        parser.add_argument(
            "--project",
            nargs="?",
            const=".",
            metavar="FOLDER",
            help="Change the host's file in this project folder instead of your own file. Default: the current directory.",
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="Print the new content of the file, and change nothing.",
        )

    def handle(self, **options: Any) -> None:
        if (options["token_stdin"] or options["in_environment"]) and not options["http"]:
            raise CommandError(
                "--token-stdin and --in-environment require --http. Connections over stdio need no token."
            )
        if options["workspace"]:
            if options["http"]:
                raise CommandError(
                    "--workspace cannot be combined with --http: over HTTP, the site does not see the host's directory. "
                    "Leave out one of the two options."
                )
            options["endpoint"] = ""
        options["agent"] = options["agent"] or ("" if options["workspace"] else "local")
        must_be_a_site()
        try:
            if options["list"] or options["repair"]:
                self._look(options)
            elif not options["host"]:
                raise CommandError(
                    f"Enter the name of a host: {', '.join(HOSTS)}. To see the connected hosts, use --list."
                )
            elif options["remove"]:
                self._remove(options)
            else:
                self._connect(options)
        except SlipsnisseError as error:
            raise CommandError(str(error)) from None
        except DatabaseError:
            raise CommandError(
                "The database cannot be read. Check DATABASE_URL, and run `manage.py migrate` (or `make run`) once."
            ) from None

    def _connect(self, options: dict[str, Any]) -> None:
        host = HOSTS[options["host"]]
        given = sys.stdin.readline().strip() if options["token_stdin"] else ""
        if options["token_stdin"] and not given:
            raise CommandError(
                "Standard input does not contain a token. Write the token and a line break to standard input."
            )
        outcome = connect(
            file=_file(host, options["project"]),
            endpoint=options["endpoint"],
            agent=options["agent"],
            http=options["http"],
            actor=ACTOR,
            signing=Signing(given, options["in_environment"]),
            dry=options["dry_run"],
        )
        self._tell(outcome, options, "added to", "already has this entry; nothing was changed")
        if not options["dry_run"]:
            self._print_hint(host, options)

    def _remove(self, options: dict[str, Any]) -> None:
        file = _file(HOSTS[options["host"]], options["project"])
        outcome = disconnect(
            file=file, key=make_entry_name(options["endpoint"]), actor=ACTOR, dry=options["dry_run"]
        )
        self._tell(
            outcome, options, "removed from", "does not have this entry; nothing was changed"
        )

    def _tell(
        self, outcome: ConnectOutcome, options: dict[str, Any], done: str, nothing: str
    ) -> None:
        if options["dry_run"]:
            self.stderr.write(
                f"New content of {outcome.file.path}:"
                if outcome.changed
                else f"{outcome.file.path}: {nothing}."
            )
            self.stdout.write(outcome.text if outcome.changed else "", ending="")
            return
        title = outcome.file.host.title
        if not outcome.changed:
            self.stdout.write(f"{title}: {outcome.file.path} {nothing}.")
            return
        self.stdout.write(f"{title}: “{outcome.key}” was {done} {outcome.file.path}.")
        if outcome.kept:
            self.stdout.write(f"The previous content is in {outcome.kept}.")

    def _print_hint(self, host: HostProgram, options: dict[str, Any]) -> None:
        self.stdout.write(host.after)
        if options["http"] and (options["in_environment"] or options["project"] is not None):
            self.stdout.write(
                f"Start {host.title} with the variable {BEARER_VARIABLE} set to a token. Create the token on the agent's page."
            )
        if not options["http"] and (names := list_withheld_variables()):
            self.stdout.write(
                f"Secrets are not written to the host's file. Start {host.title} with the same values of {', '.join(names)} as here. "
                f"Or store them in files, set the variables for files (for example {names[0]}_FILE), and connect again."
            )

    def _look(self, options: dict[str, Any]) -> None:
        hosts = [HOSTS[options["host"]]] if options["host"] else list(HOSTS.values())
        found = list_standing(_files(hosts, options["project"]))
        if not found:
            self.stdout.write("No hosts are connected. Connect one with `manage.py connect HOST`.")
        self._kept: set[Path] = set()
        refused = [
            entry
            for entry in found
            if not self._show(entry, repair=options["repair"], dry=options["dry_run"])
        ]
        if not options["repair"] and any(entry.mendable for entry in found):
            self.stdout.write("Repair the stale entries with `manage.py connect --repair`.")
        if refused:
            raise CommandError(
                f"{number_of(len(refused), 'entry', 'entries')} could not be repaired. The reasons are shown above."
            )

    def _show(self, entry: EntryStanding, *, repair: bool, dry: bool) -> bool:
        """False if it was to be mended and could not be."""
        place = f"{entry.file.host.title}  {entry.file.path}"
        if not entry.key:
            self.stdout.write(f"{place}\n  cannot be read: {entry.problem}")
            return True
        nobody = (
            f"the agent of the token in {BEARER_VARIABLE}"
            if entry.http
            else "the agent of its workspace"
        )
        whom = entry.agent or nobody
        way = "HTTP" if entry.http else "stdio"
        if entry.elsewhere:
            state = "leads to another site"
        else:
            state = f"stale: {entry.problem}" if entry.problem else "connected"
        served = (
            f"endpoint {entry.endpoint}" if entry.endpoint else "the project file of the directory"
        )
        self.stdout.write(f"{place}\n  {entry.key}: {served} as {whom}, {way}: {state}")
        return self._repair_entry(entry) if repair and entry.mendable and not dry else True

    def _repair_entry(self, entry: EntryStanding) -> bool:
        try:
            # What a file held before the first of its entries was mended is what people may want
            # back.
            outcome = rewrite_entry(
                entry=entry, actor=ACTOR, keep=entry.file.path not in self._kept
            )
        except SlipsnisseError as error:  # the others are mended all the same
            self.stdout.write(f"  could not be written: {error}")
            return False
        self._kept.add(entry.file.path)
        self.stdout.write(
            f"  rewritten{f'; the previous content is in {outcome.kept}' if outcome.kept else ''}."
        )
        return True


def _file(host: HostProgram, project: str | None) -> HostFile:
    return (
        open_user_file(host, os.environ)
        if project is None
        else open_project_file(host, Path(project))
    )


def _files(hosts: list[HostProgram], project: str | None) -> list[HostFile]:
    """Each file once: some hosts read the same one in a project."""
    folder = Path(project or ".")
    files = [open_user_file(host, os.environ) for host in hosts]
    files += [open_project_file(host, folder) for host in hosts if host.project]
    return list({file.path: file for file in reversed(files)}.values())[::-1]
