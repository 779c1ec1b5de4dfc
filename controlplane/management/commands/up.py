"""``manage.py up``: a whole site from one command: web, worker, clock and broker.

The order is what makes the start quick: the web processes load while this one migrates, and serve
as soon as it is done. The worker follows then, since the first question to an expert tool waits for
nothing longer than for it; the clock when that has had the processor for itself for a while.
Children are started from the main thread only (see ``children``).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

from django.conf import settings
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from controlplane import (
    checks,
    embedded_broker,
    embedded_site,
    env,
    first_run,
    health,
    site_address,
)
from controlplane.supervisor import Supervisor
from mcpregistry.domain.text.display import number_of
from mcpregistry.services.upkeep import completeness

PATIENCE = 15  # seconds that children get to finish what they do
# Seconds for the children, and then for the broker, of a site that is stopped while it starts: what
# it does then, such as the tests of the demo's servers, the next start does anew. Together within
# ten, however busy the machine is.
WHILE_STARTING = (6.0, 3.0)
# Seconds after the first page: its first tick comes later anyway, and loading it would take as long
# from the worker.
CLOCK_AFTER = 4.0

Result = TypeVar("Result")


class Stop(Exception):
    """Somebody wants the site to end: raised where this command waits, never out of a signal
    handler."""


class Command(BaseCommand):
    """Starts the processes of ``controlplane.embedded_site`` in order and tends them until a signal
    arrives."""

    help = "Runs the whole site: web, worker, scheduler and (unless CELERY_BROKER_URL is set) the embedded broker."
    # only ours, below: Django's own take longer than the start
    requires_system_checks: list[str] = []
    _new_password = False
    _worker: Thread | None = None
    _started = False
    _clock = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--host",
            default="127.0.0.1",
            help="Address to listen on. Default: 127.0.0.1, which only this machine can reach.",
        )
        parser.add_argument(
            "--port", type=int, default=8000, help="Port to listen on. Default: 8000."
        )
        parser.add_argument(
            "--workers",
            type=int,
            metavar="N",
            help="Number of web processes. Default: one for each core, up to 4, on PostgreSQL; 1 on SQLite.",
        )
        parser.add_argument(
            "--new-password",
            action="store_true",
            help=f'Set a new password for the administrator "{first_run.ADMIN}" and show it.',
        )

    def handle(self, *args: Any, **options: Any) -> None:
        os.umask(0o077)
        try:
            with (
                embedded_site.hold_site_lock(settings.VAR_DIR),
                embedded_site.listen(options["host"], options["port"]) as listener,
            ):
                self._check(options["host"])
                self._new_password = options["new_password"]
                self._run(listener, max(1, options["workers"] or embedded_site.web_processes()))
        except (
            first_run.NoAdministrator,
            embedded_site.StartError,
            embedded_broker.BrokerError,
        ) as error:
            raise CommandError(str(error)) from error

    def _run(self, listener: socket.socket, workers: int) -> None:
        began = time.monotonic()
        supervisor = Supervisor(self._say)
        self._supervisor = supervisor
        self._signals = _Signals()
        self._unshown = first_run.Unshown(settings.VAR_DIR)
        try:
            url = self._prepare_environment(listener)
            password = self._open(listener, workers)
            began_serving = time.monotonic()
            self._say("up", f"the site answers at {url}/ after {began_serving - began:.1f} s")
            self._finish(url, password)
            self._started = True
            self._start_clock(began_serving + CLOCK_AFTER)
            while True:
                self._tend(0.2)
        except Stop:
            self._say("up", "stopping (press Ctrl-C again to stop immediately)")
        finally:
            children, broker = self.patience()
            supervisor.stop(children, lambda: self._signals.hurry, for_last=broker)
        self._say("up", "stopped; all processes have ended")
        self._leave()

    def patience(self) -> tuple[float, float]:
        """Seconds that a stop gives the children, and then the broker: a site that has started may
        have calls in hand."""
        whole = settings.GRACE_SECONDS + PATIENCE
        return (whole, whole) if self._started else WHILE_STARTING

    def _check(self, host: str) -> None:
        problems = run_checks(tags=[checks.TAG])
        for problem in problems:
            self._say("up", f"{problem.msg} {problem.hint or ''}")
        if any(problem.is_serious() for problem in problems):
            raise embedded_site.StartError(
                "The site was not started. The reasons are listed above."
            )
        if host not in {"127.0.0.1", "localhost", "::1"}:
            self._say(
                "up",
                f"listening on {host}: other machines can connect, using the names in SLIPSNISSE_HOSTS",
            )

    def _prepare_environment(self, listener: socket.socket) -> str:
        """Children inherit what only we know: the address, and that a person reads their lines.
        Returns the address."""
        own = f"http://127.0.0.1:{listener.getsockname()[1]}"
        site_address.remember(settings.VAR_DIR, own)
        os.environ["SLIPSNISSE_URL"] = env.text("SLIPSNISSE_URL") or own
        os.environ["PYTHONUNBUFFERED"] = "1"
        if sys.stdout.isatty():
            os.environ.setdefault("SLIPSNISSE_LOG_FORMAT", "text")
        return env.text("SLIPSNISSE_URL").rstrip("/")

    def _tend(self, wait: float) -> None:
        """Look after the children for at most ``wait`` seconds. Raises Stop once a signal has
        come."""
        self._supervisor.tend(wait)
        if self._signals.stop:
            raise Stop

    def _run_while_tending(self, work: Callable[[], Result]) -> Result:
        """What ``work`` returns or raises, done in a thread so that children are tended and a stop
        is heard."""
        done: Future[Result] = Future()
        self._worker = Thread(target=lambda: _settle(done, work), daemon=True)
        self._worker.start()
        while not done.done():
            self._tend(0.02)
        return done.result()

    def _leave(self) -> None:
        """End this process though a thread may still be at the database: what it has not committed
        is rolled back.

        The interpreter's own end would wait for nobody, and may crash over a thread that just
        prints.
        """
        if self._worker is not None and self._worker.is_alive():
            self.stdout.flush()
            os._exit(0)

    def _open(self, listener: socket.socket, workers: int) -> str | None:
        """Until the first page can be seen. Returns the new administrator's password, if there is
        one."""
        supervisor = self._supervisor
        if not env.text("CELERY_BROKER_URL"):
            self._say("up", "starting the broker (Valkey)")
            supervisor.start(embedded_site.broker(settings.VAR_DIR))
        self._say("up", f"loading the web site ({workers} process{'es' if workers > 1 else ''})")
        gate, opener = os.pipe()
        for number in range(1, workers + 1):
            supervisor.start(embedded_site.web(number, listener.fileno(), gate))
        password = self._run_while_tending(self._prepare_database)
        os.close(opener)
        os.close(gate)
        for number in range(1, workers + 1):
            # from now on a restart waits for nothing
            supervisor.start(embedded_site.web(number, listener.fileno()))
        self._say("up", "starting the worker")
        supervisor.start(embedded_site.worker())
        probe = embedded_site.Probe(listener)
        while not probe.check_answer():
            self._tend(0.02)
        return password

    def _prepare_database(self) -> str | None:
        """Migrate and see to it that there is an administrator; the password, if it is to be
        shown."""
        missing = health.list_unapplied_migrations()
        if missing or completeness.explain_interrupted_migration():
            self._say(
                "up",
                f"bringing the database up to date ({number_of(len(missing), 'migration')}, triggers, roles)",
            )
            call_command("migrate", verbosity=0, interactive=False, skip_checks=True)
        password = first_run.create_admin(self._unshown)
        if password is None and self._new_password:
            password = first_run.reset_password()
        connections.close_all()  # this thread's own
        return password

    def _finish(self, url: str, password: str | None) -> None:
        """What to do next; on a first run also what makes an empty site useful.

        What is noted as unshown is struck off only after it was printed: a start that is stopped
        before that has shown it to nobody, and the next one makes it anew.
        """
        if self._unshown.demo:
            # at once: it sends messages of the demo's tests again that a stopped start has lost
            self._start_clock()
        filled = self._run_while_tending(self._fill) if self._unshown.demo else None
        if password:
            self.stdout.write(
                f"\nUser name:  {first_run.ADMIN}\nPassword, shown only once:  {password}\n"
            )
        self.stdout.write(f"\n{first_run.next_steps(url, filled.token if filled else None)}\n\n")
        self.stdout.flush()
        self._unshown.mark_shown(demo=filled is not None)

    def _start_clock(self, at: float = 0) -> None:
        """At that time of the steady clock, if it does not run yet."""
        while not self._clock and time.monotonic() < at:
            self._tend(0.2)
        if not self._clock:
            self._clock = True
            self._say("up", "starting the scheduler")
            self._supervisor.start(embedded_site.beat())

    def _fill(self) -> first_run.Filled | None:
        return first_run.fill(lambda line: self._say("up", line))

    def _say(self, name: str, line: str) -> None:
        """One line of a child, or our own. A record in JSON names its process itself and stays
        parsable."""
        bare = line.startswith("{") and not sys.stdout.isatty()
        self.stdout.write(line if bare else f"{name:<7}| {line}")
        self.stdout.flush()


def _settle(done: Future[Result], work: Callable[[], Result]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 (raised again where the result is waited for)
        done.set_exception(error)


class _Signals:
    """Notes SIGINT, SIGTERM and SIGHUP: the first asks for a stop, the second for a hurried one.

    A handler must not raise: the exception comes out of whatever the main thread is doing, and
    where that is a callback whose errors Python ignores (logging's hook at fork, a finaliser), the
    stop would be lost.
    """

    def __init__(self) -> None:
        self.stop = False
        self.hurry = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note_signal)

    def _note_signal(self, *_: object) -> None:
        self.hurry = self.stop
        self.stop = True
