"""The result of each test, written to a file during the run, so that it is kept even if the run is
killed.

``pytest --results=FILE`` writes a line of JSON when a test has ended; ``python -m tests`` reads
these lines.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

_HANG = "from pytest-timeout"  # pytest-timeout ends its message with it
# in the message about a worker that died (tests/workers.py, and pytest-xdist)
CRASH = "crashed while running"
# the phase in the report of a test whose worker died, instead of setup, call or teardown
NO_PHASE = "???"
PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"
SHOWN_LINES = 12  # of the error of a failed test


@dataclass(frozen=True)
class Result:
    """One test, or a file that could not be collected."""

    test: str  # pytest's node id
    outcome: str
    seconds: float = 0.0
    # whether it may run again: not after a hang, a crash, or an error in its file
    again: bool = True
    error: str = ""

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def hung(self) -> bool:
        """Whether pytest-timeout ended it."""
        return _HANG in self.error

    @property
    def reason(self) -> str:
        """The first line of the error message."""
        lines = [line[1:].strip() for line in self.error.splitlines() if line.startswith("E ")]
        return (lines or self.error.strip().splitlines()[-1:] or ["no error text"])[0]


class Writer:
    """The plug-in of a pytest that was given ``--results``."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._errors: dict[str, Result] = {}
        self._skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed and report.nodeid not in self._errors:
            text = report.longreprtext
            again = _HANG not in text and CRASH not in text
            self._errors[report.nodeid] = Result(report.nodeid, FAILED, again=again, error=text)
        if report.skipped:
            self._skipped.add(report.nodeid)
        if report.when in ("teardown", NO_PHASE):
            self._write(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._errors[report.nodeid] = Result(
                report.nodeid, FAILED, again=False, error=report.longreprtext
            )
            self._write(report.nodeid)

    def _write(self, test: str) -> None:
        seconds = self._seconds.pop(test, 0.0)
        outcome = SKIPPED if test in self._skipped else PASSED
        result = self._errors.pop(test, Result(test, outcome))
        self._file.write(json.dumps(asdict(replace(result, seconds=seconds))) + "\n")
        self._file.flush()


def read(path: Path) -> list[Result]:
    """Return the results so far, without a line that is still being written."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [Result(**json.loads(line)) for line in whole.splitlines()]


def passed(paths: Iterable[Path]) -> set[str]:
    """Return the tests that passed in one of several runs."""
    results = (result for path in paths for result in read(path))
    return {result.test for result in results if result.outcome == PASSED}


def count_failed(path: Path) -> int:
    """Return how many tests have failed so far; fast enough to be called every second."""
    return path.read_text(encoding="utf-8").count(f'"outcome": "{FAILED}"') if path.exists() else 0


def slowest_files(results: Sequence[Result], count: int) -> list[tuple[str, float]]:
    """Return the files whose tests took the most seconds in total."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for result in results:
        seconds[result.file] += result.seconds
    return sorted(seconds.items(), key=itemgetter(1), reverse=True)[:count]


def describe(failed: Result) -> Iterator[str]:
    """Yield the name of a failed test and the end of its error message."""
    yield f"{failed.test}"
    for line in failed.error.rstrip().splitlines()[-SHOWN_LINES:]:
        yield f"    {line}"


def plugin(config: pytest.Config) -> Any:
    """The writer for this pytest, or None: its workers report to it and write nothing
    themselves."""
    path = config.getoption("--results")
    return Writer(Path(path)) if path and not hasattr(config, "workerinput") else None
