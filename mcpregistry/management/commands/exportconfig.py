"""``manage.py exportconfig``: write the servers as a configuration file, or print the entry that
points a host at us."""

from __future__ import annotations

import signal
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, close_old_connections

from mcpregistry.domain import formats
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.formats import slipsnisse, text
from mcpregistry.domain.formats.document import JsonObject
from mcpregistry.domain.formats.verdicts import load_schema
from mcpregistry.domain.hosts.connection import make_entry_name
from mcpregistry.domain.hosts.entry_file import build_new_file
from mcpregistry.domain.hosts.table import HOSTS
from mcpregistry.domain.text.display import number_of
from mcpregistry.services.exchange.exporting import export_config
from mcpregistry.services.exchange.files import write_file
from mcpregistry.services.exchange.kept_file import KeptFile
from mcpregistry.services.hosts.host_connections import build_connection, check_names

ACTOR = "exportconfig"


class Command(BaseCommand):
    """Writes a file, a JSON Schema or a snippet; notes go to standard error."""

    help = "Writes the servers as a configuration file for another program, or the entry that connects a host to this site."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        self.what = what  # the project has one more
        what.add_argument("--format", choices=list(formats.FORMATS), help="Format of the file.")
        what.add_argument(
            "--schema", action="store_true", help="Print the JSON Schema of the Slipsnisse format."
        )
        what.add_argument(
            "--client",
            choices=list(HOSTS),
            help="Print the entry for this host. `manage.py connect` writes it to the host's file.",
        )
        parser.add_argument(
            "--include-secrets",
            action="store_true",
            help="Write the values of secrets too. This is recorded in the audit log.",
        )
        parser.add_argument(
            "--extended",
            action="store_true",
            help="With --format slipsnisse: use the extended format, which allows remote servers and all providers.",
        )
        parser.add_argument("--only", choices=["enabled"], help="Leave out disabled servers.")
        parser.add_argument(
            "--endpoint",
            default="default",
            metavar="SLUG",
            help="With --client: endpoint that the host uses. Default: default.",
        )
        parser.add_argument(
            "--agent",
            default="local",
            metavar="SLUG",
            help="With --client: agent that the host acts as. Default: local.",
        )
        parser.add_argument(
            "--http", action="store_true", help="With --client: connect over HTTP instead of stdio."
        )
        parser.add_argument(
            "-o",
            "--output",
            default="",
            metavar="PATH",
            help="File to write. Default: standard output.",
        )

        parser.add_argument(
            "--watch",
            action="store_true",
            help="Keep the file up to date: write it again after each change, until you press Ctrl-C.",
        )
        parser.add_argument(
            "--interval",
            type=float,
            default=1.0,
            metavar="SECONDS",
            help="With --watch: seconds between two checks for changes. Default: 1.",
        )

    def handle(self, **options: Any) -> None:
        if options["watch"]:
            self._keep_in_step(options)
            return
        if options["schema"]:
            variant: slipsnisse.Variant = (
                "slipsnisse-extended" if options["extended"] else "slipsnisse"
            )
            self._put(load_schema(variant), options["output"], as_yaml=False)
            return
        if options["client"]:
            self._write(self._entry(options), options["output"])
            return
        name = options["format"]
        if options["extended"]:
            if name != "slipsnisse":
                raise CommandError("--extended requires --format slipsnisse.")
            name = "slipsnisse-extended"
        written = export_config(
            format_name=name,
            actor=ACTOR,
            include_secrets=options["include_secrets"],
            only_enabled=options["only"] == "enabled",
        )
        for note in written.notes:
            self.stderr.write(str(note))
        if written.refused:
            self.stderr.write(
                f"Nothing was written. {number_of(len(written.refused), 'problem is', 'problems are')} listed above."
            )
            sys.exit(1)
        as_yaml = name.startswith("slipsnisse") and not options["output"].endswith(".json")
        self._put(written.data, options["output"], as_yaml=as_yaml)

    def _keep_in_step(self, options: dict[str, Any]) -> None:
        """Write the file after each change until interrupted; a database or disk that is away is
        waited for."""
        if (
            not options["format"]
            or not options["output"]
            or options["include_secrets"]
            or options["extended"]
        ):
            raise CommandError(
                "--watch requires --format and --output, and cannot be combined with --include-secrets or --extended."
            )
        # explicitly: whoever started us may have had them ignored
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        file = KeptFile(
            Path(options["output"]), options["format"], ACTOR, options["only"] == "enabled"
        )
        self.stderr.write(f"{file.path} is updated after each change. Press Ctrl-C to stop.")
        trouble = ""
        try:
            while True:
                before = trouble
                trouble = self._look(file)
                if trouble and trouble != before:
                    self.stderr.write(trouble)
                time.sleep(options["interval"])
        except KeyboardInterrupt:
            self.stderr.write(f"{file.path} is no longer updated.")

    def _look(self, file: KeptFile) -> str:
        """Why the file could not be looked after; empty where it was."""
        close_old_connections()
        try:
            for sentence in file.look():
                self.stderr.write(sentence)
        except OSError as error:
            return f"{file.path} cannot be written: {error.strerror}. The command keeps trying."
        except DatabaseError:
            return f"{file.path} cannot be updated: the database is unavailable. The command keeps trying."
        return ""

    def _entry(self, options: dict[str, Any]) -> str:
        """A whole file of the host with this entry alone. Over HTTP no token stands in it."""
        host = HOSTS[options["client"]]
        endpoint = options["endpoint"]
        agent = options["agent"]
        try:
            check_names(endpoint=endpoint, agent=agent)
            entry = host.entry(
                build_connection(endpoint=endpoint, agent=agent, http=options["http"])
            )
        except SlipsnisseError as error:
            raise CommandError(str(error)) from None
        return build_new_file(host, make_entry_name(endpoint), entry)

    def _put(self, data: JsonObject, output: str, *, as_yaml: bool) -> None:
        self._write(text.dump(data, as_yaml=as_yaml), output)

    def _write(self, content: str, output: str) -> None:
        if not output:
            self.stdout.write(content, ending="")
            return
        try:
            write_file(Path(output), content)
        except OSError as error:
            raise CommandError(
                f"{output} cannot be written: {error.strerror}. Choose another path."
            ) from None
        self.stderr.write(f"{output} was written.")
