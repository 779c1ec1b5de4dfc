"""A worker for one runmcp where none runs: a child process, told what to do through its standard input.

No broker is needed: the pipe carries the messages, and its end tells the child that we are gone, however we went.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog
from django.conf import settings

from mcpregistry.services import wakeups

log = structlog.get_logger(__name__)

_PING_SECONDS = 1.0
_STOP_SECONDS = 12.0
_PAUSE = 2.0  # seconds before a child that died is started again


def somebody_works() -> bool:
    """Whether a worker of the site answers over the broker; takes at most about a second."""
    try:
        return bool(wakeups.celery_app().control.ping(timeout=_PING_SECONDS, limit=1))
    except Exception as error:  # noqa: BLE001 - whatever the broker's driver raises, nobody answers
        log.debug("no_worker", cause=type(error).__name__)
        return False


class OwnWorker:
    """``start`` looks for a worker and starts one if there is none, in a thread; ``stop`` takes it along."""

    def __init__(self, variables: frozenset[str]) -> None:
        self._env = _environment(os.environ, variables)
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="own-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        wakeups.carry_by(None)
        with self._lock:
            child = self._child
        if child is None:
            return
        assert child.stdin is not None
        with suppress(OSError):
            child.stdin.close()
        try:
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _run(self) -> None:
        if somebody_works():
            return
        while not self._stopping.is_set():
            child = self._spawn()
            if child is None:
                return
            wakeups.carry_by(self._carry)
            code = child.wait()
            if not self._stopping.is_set():
                log.warning("own_worker_ended", code=code)
            self._stopping.wait(_PAUSE)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            self._child = subprocess.Popen(  # noqa: S603 (our own command line)
                [sys.executable, str(settings.BASE_DIR / "manage.py"), "soloworker"],
                stdin=subprocess.PIPE, stdout=2, stderr=2, env=self._env, cwd=settings.BASE_DIR,
                start_new_session=True,  # a host that signals our whole group leaves it to us to end it
            )  # fmt: skip
            return self._child

    def _carry(self, task: str, ids: Sequence[int | str]) -> bool:
        with self._lock:
            child = self._child
            if child is None or child.stdin is None:
                return False
            try:
                child.stdin.write(json.dumps([task, list(ids)]).encode() + b"\n")
                child.stdin.flush()
            except (OSError, ValueError):  # it died, or was closed: the rows wait for the next clock tick
                return False
        return True


def _environment(environ: Mapping[str, str], variables: frozenset[str]) -> dict[str, str]:
    passed = ",".join(sorted({*settings.PASS_ENV, *variables}))
    own = {"SLIPSNISSE_PROCESS": "worker", "CELERY_BROKER_URL": "memory://", "SLIPSNISSE_PASS_ENV": passed}
    return {**environ, **own, "SLIPSNISSE_VAR": str(settings.VAR_DIR)}
