"""The embedded broker for one test run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane import embedded_broker
from controlplane.child_processes import die_with_parent, stop
from tests.waiting import HANG_LIMIT


@contextmanager
def running(var: Path) -> Iterator[str]:
    """Yields the broker's address for Celery."""
    with (var / "valkey.log").open("wb") as log:
        server = subprocess.Popen(
            embedded_broker.command(var),
            preexec_fn=die_with_parent(),
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
    try:
        if not embedded_broker.wait_until_it_answers(embedded_broker.socket_path(var), HANG_LIMIT):
            raise RuntimeError(f"Valkey did not start:\n{(var / 'valkey.log').read_text()}")
        yield embedded_broker.broker_url(var)
    finally:
        stop(server, HANG_LIMIT)
