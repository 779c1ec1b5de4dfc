"""The embedded broker for one test run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane import embedded
from controlplane.children import die_with_parent, stop
from tests.waiting import HANG_LIMIT


@contextmanager
def running(var: Path) -> Iterator[str]:
    """Yields the broker's address for Celery."""
    with (var / "valkey.log").open("wb") as log:
        server = subprocess.Popen(
            embedded.command(var),
            preexec_fn=die_with_parent(),
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
    try:
        if not embedded.wait_until_it_answers(embedded.socket_path(var), HANG_LIMIT):
            raise RuntimeError(f"Valkey did not start:\n{(var / 'valkey.log').read_text()}")
        yield embedded.broker_url(var)
    finally:
        stop(server, HANG_LIMIT)
