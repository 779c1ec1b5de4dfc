"""A real Celery worker on the test's database and broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import redis
from django.conf import settings

from controlplane import embedded_broker
from controlplane.child_processes import stop
from mcpregistry.services.configuration import dispatch
from tests import forkserver
from tests.waiting import HANG_LIMIT, eventually


@contextmanager
def running(env: Mapping[str, str], name: str = "worker") -> Iterator[Path]:
    """Yields the file of its output, once it takes work. Several at once need names of their
    own."""
    command = ["-m", "celery", "--quiet", "--app", "controlplane", "worker", "--pool", "threads"]
    command += [
        "--concurrency",
        "4",
        "--without-mingle",
        "--without-gossip",
        "--hostname",
        f"{name}@test",
    ]
    output = settings.VAR_DIR / f"{name}.log"
    with output.open("wb") as log:
        worker = forkserver.popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: b"ready." in output.read_bytes() or worker.poll() is not None)
        assert worker.poll() is None, output.read_text()
        yield output
    finally:
        children = (
            [] if worker.poll() is not None else psutil.Process(worker.pid).children(recursive=True)
        )
        stop(worker, HANG_LIMIT)  # type: ignore[arg-type]  # it has the face of a Popen
        assert not psutil.wait_procs(children, HANG_LIMIT)[1], "the worker left processes behind"


@contextmanager
def ticking(task: str) -> Iterator[None]:
    """Sends the task as the site's clock does, which alone finds again what a busy worker has given
    back."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(settings.TICKS[task]):
            dispatch.send_task(task)

    clock = threading.Thread(target=tick, name="clock")
    clock.start()
    try:
        yield
    finally:
        ended.set()
        clock.join()


def queued_messages() -> list[bytes]:
    """What waits in the broker, as it is written there."""
    with redis.Redis(unix_socket_path=str(embedded_broker.socket_path(settings.VAR_DIR))) as client:
        return list(client.lrange("celery", 0, -1))  # type: ignore[arg-type]


def empty_broker() -> None:
    with redis.Redis(unix_socket_path=str(embedded_broker.socket_path(settings.VAR_DIR))) as client:
        client.flushall()
