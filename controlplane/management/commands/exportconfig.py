"""``manage.py exportconfig``, and with ``--all`` the whole configuration of the site as one
document."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.backups import passphrase
from controlplane.configuration import document_export
from controlplane.configuration.document_values import Secrets
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.management.commands import exportconfig
from mcpregistry.services.exchange.files import write_file
from mcpregistry.services.records import audit


class Command(exportconfig.Command):
    """As the registry's own; the whole site needs what only the project knows."""

    help = f"{exportconfig.Command.help} With --all, writes the whole configuration of the site, for example for git."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        self.what.add_argument(
            "--all",
            action="store_true",
            help="Write the whole configuration of the site, with the names of secrets but not their values.",
        )
        parser.add_argument(
            "--secrets",
            default="",
            metavar="PATH",
            help="With --all: write the secrets to this file, encrypted with a passphrase.",
        )

    def handle(self, **options: Any) -> None:
        if not options["all"]:
            if options["secrets"]:
                raise CommandError("--secrets requires --all.")
            super().handle(**options)
            return
        secrets = Secrets()
        try:
            data = document_export.document(secrets)
            sealed = (
                document_export.encrypt_secrets(secrets, passphrase.ask("secrets file", new=True))
                if options["secrets"]
                else None
            )
        except SlipsnisseError as error:
            raise CommandError(str(error)) from error
        if sealed is not None:
            self._keep(Path(options["secrets"]), sealed)
            audit.record_entry(
                kind="secrets.exported",
                actor=exportconfig.ACTOR,
                subject="site",
                count=len(secrets.found),
            )
        elif secrets.found:
            self.stderr.write(
                f"The file contains only the names of the secrets ({len(secrets.found)}). To write them to an encrypted file, use "
                "--secrets PATH."
            )
        self._put(data, options["output"], as_yaml=not options["output"].endswith(".json"))

    def _keep(self, path: Path, sealed: dict[str, Any]) -> None:
        try:
            write_file(path, json.dumps(sealed, indent=2) + "\n")
            path.chmod(0o600)
        except OSError as error:
            raise CommandError(
                f"{path} cannot be written: {error.strerror}. Choose another path."
            ) from None
        self.stderr.write(
            f"{path} was written. It contains the secrets, encrypted with the passphrase."
        )
