"""``manage.py exportconfig``: write the servers as a configuration file, or print the entry that points a host at us."""

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
from mcpregistry.domain.formats.verdicts import schema
from mcpregistry.domain.hosts.connection import key_for
from mcpregistry.domain.hosts.entry_file import new_file
from mcpregistry.domain.hosts.table import HOSTS
from mcpregistry.services.exchange.exporting import export_config
from mcpregistry.services.exchange.files import write_file
from mcpregistry.services.exchange.keeping import KeptFile
from mcpregistry.services.hosts.ways import check_names, way

ACTOR = "exportconfig"


class Command(BaseCommand):
    """Writes a file, a JSON Schema or a snippet; notes go to standard error."""

    help = "Write the servers as a configuration file of another program, or the entry that points a program at us."

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.what = what = parser.add_mutually_exclusive_group(required=True)  # the project has one more
        what.add_argument("--format", choices=list(formats.FORMATS), help="format of the file")
        what.add_argument("--schema", action="store_true", help="print the JSON Schema of the Slipsnisse format")
        what.add_argument("--client", choices=list(HOSTS), help="print the entry for this host; `connect` writes it")
        parser.add_argument("--include-secrets", action="store_true", help="write secret values too (audited)")
        parser.add_argument("--extended", action="store_true", help="Slipsnisse: also remote servers, any provider")
        parser.add_argument("--only", choices=["enabled"], help="leave disabled servers out")
        parser.add_argument("--endpoint", default="default", metavar="SLUG", help="endpoint that --client points at")
        parser.add_argument("--agent", default="local", metavar="SLUG", help="agent that --client acts as")
        parser.add_argument("--http", action="store_true", help="--client: over HTTP instead of stdio")
        parser.add_argument(
            "-o", "--output", default="", metavar="PATH", help="file to write; default: standard output"
        )

        parser.add_argument(
            "--watch", action="store_true", help="keep the file in step: write it after each change, until interrupted"
        )
        parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="--watch: between two looks")

    def handle(self, **options: Any) -> None:
        if options["watch"]:
            self._keep_in_step(options)
            return
        if options["schema"]:
            variant: slipsnisse.Variant = "slipsnisse-extended" if options["extended"] else "slipsnisse"
            self._put(schema(variant), options["output"], as_yaml=False)
            return
        if options["client"]:
            self._write(self._entry(options), options["output"])
            return
        name = options["format"]
        if options["extended"]:
            if name != "slipsnisse":
                raise CommandError("--extended belongs to --format slipsnisse.")
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
            self.stderr.write(f"Nothing was written; {len(written.refused)} problems stand above.")
            sys.exit(1)
        as_yaml = name.startswith("slipsnisse") and not options["output"].endswith(".json")
        self._put(written.data, options["output"], as_yaml=as_yaml)

    def _keep_in_step(self, options: dict[str, Any]) -> None:
        """Write the file after each change until interrupted; a database or disk that is away is waited for."""
        if not options["format"] or not options["output"] or options["include_secrets"] or options["extended"]:
            raise CommandError("--watch needs --format and --output, and writes no secrets and no --extended.")
        for number in (signal.SIGINT, signal.SIGTERM):  # explicitly: whoever started us may have had them ignored
            signal.signal(number, signal.default_int_handler)
        file = KeptFile(Path(options["output"]), options["format"], ACTOR, options["only"] == "enabled")
        self.stderr.write(f"{file.path}: kept in step; Ctrl-C ends.")
        trouble = ""
        try:
            while True:
                before, trouble = trouble, self._look(file)
                if trouble and trouble != before:
                    self.stderr.write(trouble)
                time.sleep(options["interval"])
        except KeyboardInterrupt:
            self.stderr.write(f"{file.path}: no longer kept in step.")

    def _look(self, file: KeptFile) -> str:
        """Why the file could not be looked after; empty where it was."""
        close_old_connections()
        try:
            for sentence in file.look():
                self.stderr.write(sentence)
        except OSError as error:
            return f"{file.path} cannot be written: {error.strerror}. It is tried again."
        except DatabaseError:
            return f"{file.path}: the database does not answer. It is asked again."
        return ""

    def _entry(self, options: dict[str, Any]) -> str:
        """A whole file of the host with this entry alone. Over HTTP no token stands in it."""
        host, endpoint, agent = HOSTS[options["client"]], options["endpoint"], options["agent"]
        try:
            check_names(endpoint=endpoint, agent=agent)
            entry = host.entry(way(endpoint=endpoint, agent=agent, http=options["http"]))
        except SlipsnisseError as error:
            raise CommandError(str(error)) from None
        return new_file(host, key_for(endpoint), entry)

    def _put(self, data: JsonObject, output: str, *, as_yaml: bool) -> None:
        self._write(text.dump(data, as_yaml=as_yaml), output)

    def _write(self, content: str, output: str) -> None:
        if not output:
            self.stdout.write(content, ending="")
            return
        try:
            write_file(Path(output), content)
        except OSError as error:
            raise CommandError(f"{output} cannot be written: {error.strerror}. Choose another place.") from None
        self.stderr.write(f"{output}: written.")
