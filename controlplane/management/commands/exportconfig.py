"""``manage.py exportconfig``, and with ``--all`` the whole configuration of the site as one document."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.backups import passphrase
from controlplane.configuration import writing
from controlplane.configuration.values import Secrets
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.management.commands import exportconfig
from mcpregistry.services.exchange.files import write_file
from mcpregistry.services.records import audit


class Command(exportconfig.Command):
    """As the registry's own; the whole site needs what only the project knows."""

    help = f"{exportconfig.Command.help} With --all everything that configures the site, to be kept in git."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        self.what.add_argument(
            "--all", action="store_true", help="write all that configures the site; secrets as names"
        )
        parser.add_argument(
            "--secrets", default="", metavar="PATH", help="--all: write the secrets too, sealed with a passphrase"
        )

    def handle(self, **options: Any) -> None:
        if not options["all"]:
            if options["secrets"]:
                raise CommandError("--secrets belongs to --all.")
            super().handle(**options)
            return
        secrets = Secrets()
        try:
            data = writing.document(secrets)
            sealed = writing.sealed_secrets(secrets, passphrase.ask(new=True)) if options["secrets"] else None
        except SlipsnisseError as error:
            raise CommandError(str(error)) from error
        if sealed is not None:
            self._keep(Path(options["secrets"]), sealed)
            audit.record(kind="secrets.exported", actor=exportconfig.ACTOR, subject="site", count=len(secrets.found))
        elif secrets.found:
            self.stderr.write(f"{len(secrets.found)} secrets are named only; --secrets PATH writes them, sealed.")
        self._put(data, options["output"], as_yaml=not options["output"].endswith(".json"))

    def _keep(self, path: Path, sealed: dict[str, Any]) -> None:
        try:
            write_file(path, json.dumps(sealed, indent=2) + "\n")
            path.chmod(0o600)
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}. Choose another place.") from None
        self.stderr.write(f"{path}: the secrets, sealed with the passphrase.")
