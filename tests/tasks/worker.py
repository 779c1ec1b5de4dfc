"""A real Celery worker on the test's database and broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import redis

from controlplane import embedded
from controlplane.children import die_with_parent, stop
from tests.conftest import VAR
from tests.externals import ROOT
from tests.waiting import eventually


@contextmanager
def running(env: Mapping[str, str], name: str = "worker") -> Iterator[Path]:
    """Yields the file of its output, once it takes work. Several at once need names of their own."""
    command = [sys.executable, "-m", "celery", "--quiet", "--app", "controlplane", "worker", "--pool", "threads"]
    command += ["--concurrency", "4", "--without-mingle", "--without-gossip", "--hostname", f"{name}@test"]
    output = VAR / f"{name}.log"
    with output.open("wb") as log:
        worker = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(),
            start_new_session=True,
        )
    try:
        eventually(lambda: b"ready." in output.read_bytes() or worker.poll() is not None, 60)
        assert worker.poll() is None, output.read_text()
        yield output
    finally:
        children = [] if worker.poll() is not None else psutil.Process(worker.pid).children(recursive=True)
        stop(worker, 20)
        assert not psutil.wait_procs(children, 10)[1], "the worker left processes behind"


def queued_messages() -> list[bytes]:
    """What waits in the broker, as it is written there."""
    with redis.Redis(unix_socket_path=str(embedded.socket_path(VAR))) as client:
        return list(client.lrange("celery", 0, -1))  # type: ignore[arg-type]


def empty_broker() -> None:
    with redis.Redis(unix_socket_path=str(embedded.socket_path(VAR))) as client:
        client.flushall()
