"""A worker for one ``runmcp`` where none runs: a child process, told what to do through its
standard input.

No broker is needed: the pipe carries the messages, and its end tells the child that we are gone,
however we went.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from django.conf import settings

from mcpregistry.services.configuration import dispatch

log = structlog.get_logger(__name__)

_PING_SECONDS = 1.0
_STOP_SECONDS = 12.0
_PAUSE = 0.5  # seconds before a child that died is started again


def is_worker_running() -> bool:
    """Whether a worker of the site answers over the broker; takes at most about a second."""
    return bool(_ask_workers("ping", limit=1))


def list_unseen_variables(names: Collection[str]) -> list[str]:
    """Those of our variables that a worker of the site does not get; none where no worker answers.

    Takes a second where the site has a broker, unless there are no names.
    """
    if not names:
        return []
    answers = _ask_workers("unseen_variables", arguments={"names": sorted(names)})
    unseen: set[str] = set()
    for answer in answers:
        unseen.update(*answer.values())
    return sorted(unseen)


def _ask_workers(command: str, **options: Any) -> list[dict[str, Any]]:
    """What each worker of the site says, by its name."""
    control = dispatch.get_celery_app().control
    try:
        return control.broadcast(command, reply=True, timeout=_PING_SECONDS, **options) or []
    except Exception as error:  # noqa: BLE001 - whatever the broker's driver raises, nobody answers
        log.debug("no_worker", cause=type(error).__name__)
        return []


class OwnWorker:
    """The child process and the thread that looks after it."""

    def __init__(self, variables: frozenset[str]) -> None:
        self._env = _build_environment(os.environ, variables)
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="own-worker", daemon=True)

    def start(self) -> None:
        """Look for a worker, in a thread, and start ``manage.py soloworker`` if none answers."""
        self._thread.start()

    def stop(self) -> None:
        """Close the child's input and wait for its end."""
        self._stopping.set()
        dispatch.set_local_carrier(None)
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
        if is_worker_running():
            return
        while not self._stopping.is_set():
            child = self._spawn()
            if child is None:
                return
            dispatch.set_local_carrier(self._send_task)
            code = child.wait()
            self._env["SLIPSNISSE_PREDECESSOR"] = str(child.pid)
            if not self._stopping.is_set():
                log.warning("own_worker_ended", code=code)
            self._stopping.wait(_PAUSE)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            self._child = subprocess.Popen(  # noqa: S603 (our own command line)
                [sys.executable, str(settings.BASE_DIR / "manage.py"), "soloworker"],
                stdin=subprocess.PIPE,
                stdout=2,
                stderr=2,
                env=self._env,
                cwd=settings.BASE_DIR,
                # a host that signals our whole group leaves it to us to end it
                start_new_session=True,
            )
            return self._child

    def _send_task(self, task: str, ids: Sequence[int | str]) -> bool:
        with self._lock:
            child = self._child
            if child is None or child.stdin is None:
                return False
            try:
                child.stdin.write(json.dumps([task, list(ids)]).encode() + b"\n")
                child.stdin.flush()
            except (OSError, ValueError):
                # it died, or was closed: the rows wait for the next clock tick
                return False
        return True


def _build_environment(environ: Mapping[str, str], variables: frozenset[str]) -> dict[str, str]:
    passed = ",".join(sorted({*settings.PASS_ENV, *variables}))
    own = {
        "SLIPSNISSE_PROCESS": "worker",
        "CELERY_BROKER_URL": "memory://",
        "SLIPSNISSE_PASS_ENV": passed,
    }
    return {**environ, **own, "SLIPSNISSE_VAR": str(settings.VAR_DIR)}
