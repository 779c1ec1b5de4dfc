"""``manage.py moveto DATABASE_URL``: the whole site into another database, SQLite or PostgreSQL."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.backups import dumping, passphrase
from controlplane.embedded_site import StartError, hold_site_lock
from mcpregistry.domain.errors import SlipsnisseError


class Command(BaseCommand):
    """A backup that is restored as it is made, by a process whose database is the other one."""

    help = (
        "Copies the whole site to another database, which must be empty. Compares every row, and verifies the records there. "
        "Stop the site first. The current database is not changed."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "url",
            metavar="DATABASE_URL",
            help="postgres://… or sqlite:///…, or - to read it from standard input.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        url = sys.stdin.readline().strip() if options["url"] == "-" else options["url"]
        if not url.startswith(("postgres://", "postgresql://", "sqlite:///")):
            raise CommandError(
                "The address is not valid: it must start with postgres:// or sqlite:///."
            )
        self._refuse_while_it_runs()
        once = secrets.token_urlsafe(32)
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "restore", "-"]
        env = os.environ | {"DATABASE_URL": url, passphrase.VARIABLE: once}
        with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as other:  # noqa: S603  ourselves
            self._send(other, once)
        if other.returncode:
            raise CommandError(
                "Nothing was moved. The reason is shown above. The current database was not changed."
            )
        self.stdout.write(
            "The database was moved. Set DATABASE_URL to the new database, then start the site. The old database was not changed."
        )

    def _refuse_while_it_runs(self) -> None:
        """Before anything is started. The other process takes the lock and keeps it, or says the
        same."""
        try:
            with hold_site_lock(settings.VAR_DIR):
                pass
        except StartError as error:
            raise CommandError(str(error)) from error

    def _send(self, other: subprocess.Popen[bytes], once: str) -> None:
        assert other.stdin is not None
        try:
            dumping.dump(other.stdin, once, lambda _: None, alone=True, work=passphrase.NO_WORK)
        except BrokenPipeError:
            pass  # it has said why, and its exit code says so once more
        except SlipsnisseError as error:
            other.kill()
            raise CommandError(str(error)) from error
        finally:
            with suppress(BrokenPipeError):
                other.stdin.close()
