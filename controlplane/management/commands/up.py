"""``manage.py up``: a whole site from one command: web, worker, clock and broker.

The order is what makes the start quick: the web processes load while this one migrates, and serve as soon
as it is done; worker and clock follow once the first page can be seen. Children are started from the main
thread only (see ``children``).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from threading import Thread
from typing import Any

from django.conf import settings
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from controlplane import address, checks, embedded, env, first_run, health, site
from controlplane.supervisor import Supervisor

PATIENCE = 15  # seconds that children get to finish what they do


class Stop(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived."""


class Command(BaseCommand):
    help = "Runs the whole site: web, worker, clock and (unless CELERY_BROKER_URL is set) the embedded broker."
    requires_system_checks: list[str] = []  # only ours, below: Django's own take longer than the start

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--workers", type=int, default=1, metavar="N", help="number of web processes (default: 1)")

    def handle(self, *args: Any, **options: Any) -> None:
        os.umask(0o077)
        try:
            with site.only_one(settings.VAR_DIR), site.listen(options["host"], options["port"]) as listener:
                self._check(options["host"])
                self._run(listener, max(1, options["workers"]))
        except (site.StartError, embedded.BrokerError) as error:
            raise CommandError(str(error)) from error

    def _run(self, listener: socket.socket, workers: int) -> None:
        began = time.monotonic()
        supervisor = Supervisor(self._say)
        with _Signals() as signals:
            try:
                url = self._prepare_environment(listener)
                password = self._open(supervisor, listener, workers)
                self._say("up", f"the site answers at {url}/ after {time.monotonic() - began:.1f} s")
                self._finish(supervisor, url, password)
                while True:
                    supervisor.tend()
            except Stop:
                self._say("up", "stopping (once more: at once)")
            finally:
                supervisor.stop(PATIENCE, lambda: signals.hurry)
        self._say("up", "stopped; nothing is left running")

    def _check(self, host: str) -> None:
        problems = run_checks(tags=[checks.TAG])
        for problem in problems:
            self._say("up", f"{problem.msg} {problem.hint or ''}")
        if any(problem.is_serious() for problem in problems):
            raise site.StartError("Not started: see above.")
        if host not in {"127.0.0.1", "localhost", "::1"}:
            self._say("up", f"listening on {host}: other machines may connect, under the names in SLIPSNISSE_HOSTS")

    def _prepare_environment(self, listener: socket.socket) -> str:
        """Children inherit what only we know: the address, and that a person reads their lines. Returns the address."""
        own = f"http://127.0.0.1:{listener.getsockname()[1]}"
        address.remember(settings.VAR_DIR, own)
        os.environ["SLIPSNISSE_URL"] = env.text("SLIPSNISSE_URL") or own
        os.environ["PYTHONUNBUFFERED"] = "1"
        if sys.stdout.isatty():
            os.environ.setdefault("SLIPSNISSE_LOG_FORMAT", "text")
        return env.text("SLIPSNISSE_URL").rstrip("/")

    def _open(self, supervisor: Supervisor, listener: socket.socket, workers: int) -> str | None:
        """Until the first page can be seen. Returns the new administrator's password, if there is one."""
        if not env.text("CELERY_BROKER_URL"):
            self._say("up", "starting the broker (Valkey)")
            supervisor.start(site.broker(settings.VAR_DIR))
        self._say("up", f"loading the web site ({workers} process{'es' if workers > 1 else ''})")
        gate, opener = os.pipe()
        for number in range(1, workers + 1):
            supervisor.start(site.web(number, listener.fileno(), gate))
        password = self._prepare_database()
        os.close(opener)
        os.close(gate)
        for number in range(1, workers + 1):
            supervisor.start(site.web(number, listener.fileno()))  # from now on a restart waits for nothing
        probe = site.Probe(listener)
        while not probe.answered():
            supervisor.tend(0.02)
        return password

    def _prepare_database(self) -> str | None:
        missing = health.unapplied_migrations()
        if missing:
            self._say("up", f"bringing the database up to date ({len(missing)} migrations)")
            call_command("migrate", verbosity=0, interactive=False, skip_checks=True)
        password = first_run.create_admin()
        connections.close_all()
        return password

    def _finish(self, supervisor: Supervisor, url: str, password: str | None) -> None:
        """Worker and clock; on a first run also what makes an empty site useful."""
        self._say("up", "starting worker and clock")
        supervisor.start(site.worker())
        supervisor.start(site.beat())
        token = self._fill(supervisor) if password else None
        if password:
            self.stdout.write(f"\nThe administrator:  {first_run.ADMIN}\nPassword, shown this once:  {password}\n")
        self.stdout.write(f"\n{first_run.next_steps(url, token)}\n\n")
        self.stdout.flush()

    def _fill(self, supervisor: Supervisor) -> str | None:
        """In a thread, so that the worker it waits for is tended meanwhile; a stop does not wait for it."""
        tokens: list[str | None] = []
        filling = Thread(target=lambda: tokens.append(first_run.fill(self._progress)), daemon=True)
        filling.start()
        while filling.is_alive():
            supervisor.tend(0.05)
        return tokens[0]

    def _progress(self, line: str) -> None:
        self._say("up", line)

    def _say(self, name: str, line: str) -> None:
        """One line of a child, or our own. A record in JSON names its process itself and stays parsable."""
        bare = line.startswith("{") and not sys.stdout.isatty()
        self.stdout.write(line if bare else f"{name:<7}| {line}")
        self.stdout.flush()


class _Signals:
    """The first signal raises Stop in the main thread, later ones ask to hurry."""

    def __init__(self) -> None:
        self.hurry = False
        self._stopping = False

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True

    def _arrived(self, *_: object) -> None:
        if self._stopping:
            self.hurry = True
            return
        self._stopping = True
        raise Stop
