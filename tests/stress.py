"""``python -m tests --stress N ARGUMENTS``: a selection of tests, N times, on a machine that is
kept busy.

Two processes for each core compute, and one commits to a database, so that the tests have about a
third of the machine. A test that fails here and not elsewhere depends on time, or shows a race of
the product.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import results, speed
from tests.results import FAILED, Result

ROOT = Path(__file__).resolve().parent.parent
BUSY_FOR_EACH_CORE = 2


def main(runs: int, arguments: list[str]) -> int:
    """Return 0 when no test failed in any of the runs."""
    failures: Counter[str] = Counter()
    first: dict[str, Result] = {}
    ran = 0
    with tempfile.TemporaryDirectory(prefix="slipsnisse-stress-") as folder, busy_machine():
        os.environ.pop(speed.ENVIRONMENT, None)
        print(f"The machine is {speed.slowdown():.1f} times slower than the reference.", flush=True)
        for number in range(1, runs + 1):
            path = Path(folder, f"{number}.jsonl")
            command = [sys.executable, "-m", "pytest", "-q", "--workers=2", f"--results={path}"]
            subprocess.run([*command, *arguments], cwd=ROOT, check=False)
            found = results.read(path)
            ran += len(found)
            for result in found:
                if result.outcome == FAILED:
                    failures[result.test] += 1
                    first.setdefault(result.test, result)
            print(
                f"== Run {number} of {runs}: {len(found)} tests, {sum(failures.values())} failures so far",
                flush=True,
            )
    for test, count in failures.most_common():
        print(f"\nfailed in {count} of {runs} runs:", *results.describe(first[test]), sep="\n  ")
    print(f"{ran - sum(failures.values())} passed, {sum(failures.values())} failed")
    return 1 if failures or not ran else 0


@contextmanager
def busy_machine() -> Iterator[None]:
    """Other processes use the machine until the block ends."""
    spawn = multiprocessing.get_context("spawn")  # they need nothing of this process
    computing = [
        spawn.Process(target=_compute, daemon=True)
        for _ in range(BUSY_FOR_EACH_CORE * (os.cpu_count() or 1))
    ]
    others = [*computing, spawn.Process(target=_commit, daemon=True)]
    for each in others:
        each.start()
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.join()


def _compute() -> None:
    while True:
        sum(number * number for number in range(100_000))


def _commit() -> None:
    while True:
        speed.time_commits()
