"""The processes of one embedded site: what they are, in which order they start, who may start
them."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

from controlplane import embedded_broker
from controlplane.supervisor import Child

_MOST_WEB = 4


class StartError(RuntimeError):
    """The site cannot start here; the text says why and what to do."""


@contextmanager
def hold_site_lock(var: Path) -> Iterator[None]:
    """Holds ``var/up.lock``; the kernel frees it when we end, however we end. Raises StartError
    when taken."""
    var.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (var / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise StartError(
                f"This site is already running (process {lock.read().strip() or 'unknown'}, folder {var}). "
                "Stop it first, or set SLIPSNISSE_VAR to another folder to run a second site."
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def web_processes() -> int:
    """How many are worth their memory (some 200 MB each) if nobody says. SQLite has one writer at a
    time: more wait for it."""
    return min(os.cpu_count() or 1, _MOST_WEB) if connection.vendor == "postgresql" else 1


def listen(host: str, port: int) -> socket.socket:
    """The listening socket that all web processes share. Raises StartError when the address is not
    to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise StartError(
            f"Cannot listen on {host} port {port}: {os.strerror(error.errno or 0).lower()}. "
            f"Choose another port, for example with `manage.py up --port {port + 1 if port else 8001}`."
        ) from error


class Probe:
    """Asks the site for one answer without ever waiting for it: our socket queues who comes before
    it is ready."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connection: socket.socket | None = None

    def check_answer(self) -> bool:
        """True once the site has sent the start of a good answer; asks anew when a process died
        over it."""
        if self._connection is None:
            self._connection = self._ask()
        try:
            start = self._connection.recv(16)
        except BlockingIOError:
            return False
        except ConnectionError:
            start = b""
        self._connection.close()
        self._connection = None
        return start.startswith(b"HTTP/1.1 200")

    def _ask(self) -> socket.socket:
        host, port = self._listener.getsockname()[:2]
        own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (compared, not bound)
        connection = socket.create_connection((own, port), timeout=5)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        connection.setblocking(False)
        return connection


def broker(var: Path) -> Child:
    """The embedded broker. Stopped last, since the others need it."""
    log = var / "valkey" / "valkey.log"
    return Child(
        "valkey", [*embedded_broker.command(var), "--logfile", str(log)], last=True, log=str(log)
    )


def web(number: int, listener: int, gate: int | None = None) -> Child:
    """A web process; with ``gate`` it loads at once but serves only when that pipe is closed."""
    waiting = [] if gate is None else ["--gate", str(gate)]
    argv = [sys.executable, "-m", "controlplane.web", "--fd", str(listener), *waiting]
    inherited = (listener,) if gate is None else (listener, gate)
    return Child(f"web-{number}", argv, {"SLIPSNISSE_PROCESS": "web"}, inherited)


def worker() -> Child:
    """The Celery worker."""
    return Child(
        "worker", [sys.executable, "-m", "controlplane.worker"], {"SLIPSNISSE_PROCESS": "worker"}
    )


def beat() -> Child:
    """Celery's clock, without a pid file: ``hold_site_lock`` guards against a second one."""
    argv = [
        sys.executable,
        "-m",
        "celery",
        "--quiet",
        "--app",
        "controlplane",
        "beat",
        "--pidfile=",
    ]
    return Child("beat", argv, {"SLIPSNISSE_PROCESS": "beat"})
