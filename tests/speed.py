"""How much slower this machine is than an idle one with two cores, measured once per run.

The factor is stored in the environment, so that the workers and child processes of a run share it.
The reference values below were measured with ``python -m tests.speed``.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

ENVIRONMENT = "TESTS_SLOWDOWN"
# seconds for a fork that does a little work, on an idle machine with two cores
FORK_REFERENCE = 0.030
COMMITS_REFERENCE = 0.020  # seconds for a hundred commits that reach the disk, likewise
_AT_LEAST = 1.0
_AT_MOST = 5.0


def slowdown() -> float:
    """Return the factor for time limits, from 1 (as fast as the reference or faster) to 5. The
    first call measures it."""
    if ENVIRONMENT not in os.environ:
        slowest = max(time_fork() / FORK_REFERENCE, time_commits() / COMMITS_REFERENCE)
        os.environ[ENVIRONMENT] = f"{min(max(slowest, _AT_LEAST), _AT_MOST):.1f}"
    return float(os.environ[ENVIRONMENT])


def time_fork() -> float:
    """Seconds (median of five) to fork this process, have the child work a little, and collect
    it."""
    return statistics.median(_time_one_fork() for _ in range(5))


def _time_one_fork() -> float:
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _work()
        os._exit(0)
    os.waitpid(child, 0)
    return time.monotonic() - started


def _work() -> None:
    for _ in range(20):
        json.loads(json.dumps({str(number): [number] for number in range(2_000)}))


def time_commits() -> float:
    """Seconds for a hundred transactions of SQLite that are on the disk before they return."""
    with (
        tempfile.TemporaryDirectory(prefix="slipsnisse-speed-") as folder,
        closing(sqlite3.connect(Path(folder, "speed.sqlite3"), isolation_level=None)) as database,
    ):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE row (number INTEGER)")
        started = time.monotonic()
        for number in range(100):
            database.execute("INSERT INTO row VALUES (?)", [number])
        return time.monotonic() - started


if __name__ == "__main__":
    print(f"fork {time_fork():.3f} s (reference {FORK_REFERENCE} s)")
    print(f"100 commits {time_commits():.3f} s (reference {COMMITS_REFERENCE} s)")
    print(f"slowdown {slowdown()}")
