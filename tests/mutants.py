"""Runs the mutants of ``tests/mutant_table.py``: each must make a test fail.

    .venv/bin/python -m tests.mutants              all of them
    .venv/bin/python -m tests.mutants claim votes  those whose name contains one of the words
    .venv/bin/python -m tests.mutants --check      only whether the source of each is still there

Everything happens in copies of the tree, one for each core. The tests of each mutant run once
without it: they must pass, and the time that they take gives the limits for the runs with it. Such
a run ends at the first failure; a test that takes several times as long as the longest one did is a
failure, too. A line is printed as each mutant ends.

The exit code is 0 if all were killed, 1 if one survived, could not be applied, or its tests fail
without it.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree, ignore_patterns

from tests import migrated, processes, results, speed
from tests.__main__ import CORES, environment
from tests.mutant_table import MUTANTS, Mutant
from tests.results import FAILED, Result

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
NOT_COPIED = (
    ".git",
    ".venv",
    ".cache",
    ".*_cache",
    ".hypothesis",
    "__pycache__",
    "node_modules",
    "var",
)
TIMES = 5  # as long as without a mutant, until a test or a whole run is taken for a hang
LEAST_FOR_TEST = 20.0  # seconds; a shorter limit would measure the machine
LEAST_FOR_RUN = 120.0  # seconds
GRACE = 15  # seconds until a pytest that was interrupted is killed
KILLED = "killed"
SURVIVED = "SURVIVED"
NOT_RUN = "NOT RUN"


@dataclass(frozen=True)
class Limits:
    """Seconds until a test, and a whole run, is taken for a hang."""

    test: float
    run: float


FIRST = Limits(test=600, run=1800)  # without a mutant


@dataclass(frozen=True)
class Run:
    """One pytest that has ended."""

    code: int | None  # None if it took too long
    seconds: float
    results: list[Result]
    output: str

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.outcome == FAILED]

    @property
    def problem(self) -> str:
        """Why it says nothing of a mutant, as a run without one; empty if its tests pass."""
        if self.failed:
            return f"{self.failed[0].test} fails without a mutant: {self.failed[0].reason}"
        return (
            ""
            if self.code == 0
            else f"pytest ended with {self.code} without a mutant:\n{self.output}"
        )

    def limits(self) -> Limits:
        """For runs of the same tests with a mutant."""
        longest = max(result.seconds for result in self.results)
        slow = speed.slowdown()
        return Limits(
            max(TIMES * longest, LEAST_FOR_TEST * slow),
            max(TIMES * self.seconds, LEAST_FOR_RUN * slow),
        )


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    word: str  # KILLED, SURVIVED or NOT_RUN
    why: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.mutant.name:48} {self.seconds:4.0f} s  {self.word}{self.why}"


@dataclass
class Copy:
    """A copy of the tree, in which one pytest runs at a time."""

    path: Path
    process: subprocess.Popen[str] | None = field(default=None, init=False)

    def run(self, tests: Sequence[str], limits: Limits, env: dict[str, str]) -> Run:
        written = self.path / "results.jsonl"
        written.unlink(missing_ok=True)
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            self.process = subprocess.Popen(
                [*PYTEST, f"--timeout={limits.test:.0f}", f"--results={written}", *tests],
                cwd=self.path,
                env=environment() | env,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends it
            )
            try:
                code: int | None = self.process.wait(limits.run)
            except subprocess.TimeoutExpired:
                self.end()
                code = None
            output.seek(0)
            return Run(code, time.monotonic() - began, results.read(written), output.read())

    def end(self) -> None:
        """End the pytest that runs here, if one does, with every process that it has started."""
        if self.process is None or self.process.poll() is not None:
            return
        started = processes.below(self.process.pid)
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            started |= processes.below(self.process.pid)
            self.process.kill()
            self.process.wait()
        for each in processes.alive(started):
            each.kill()

    @contextmanager
    def broken_by(self, mutant: Mutant) -> Iterator[None]:
        """The source with the mutant in it; as it was when the block ends."""
        path = self.path / mutant.path
        source = path.read_text()
        self._write(path, source.replace(mutant.before, mutant.after))
        try:
            yield
        finally:
            self._write(path, source)

    @staticmethod
    def _write(path: Path, source: str) -> None:
        path.write_text(source)
        # Python takes a compiled module for current if the source has the same size and was written
        # in the same second.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


class Copies:
    """Copies of the tree, for as many runs side by side."""

    def __init__(self, folder: Path, count: int) -> None:
        self._all = [Copy(folder / str(number)) for number in range(1, count + 1)]
        self._free: queue.Queue[Copy] = queue.Queue()
        self._state = migrated.state_of_code()
        (folder / "cache").mkdir()
        for copy in self._all:
            copytree(ROOT, copy.path, symlinks=True, ignore=ignore_patterns(*NOT_COPIED))
            (copy.path / ".cache").symlink_to(folder / "cache")  # one migrates its database for all
            self._free.put(copy)

    @contextmanager
    def one(self) -> Iterator[Copy]:
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)

    def end(self) -> None:
        for copy in self._all:
            copy.end()

    def measure(self, tests: tuple[str, ...]) -> Run:
        """Run the tests without a mutant."""
        with self.one() as copy:
            return copy.run(tests, FIRST, {})

    def judge(self, mutant: Mutant, limits: Limits) -> Verdict:
        """Run the tests of a mutant with it."""
        # What is no part of a migration leaves the database as it is, so the one that was made
        # without a mutant serves.
        migrates = {"models", "migrations"} & set(Path(mutant.path).parts)
        env = {} if migrates else {migrated.STATE: self._state}
        with self.one() as copy, copy.broken_by(mutant):
            run = copy.run(mutant.tests, limits, env)
        if run.code is None:
            return Verdict(mutant, KILLED, ": its tests hang", run.seconds)
        if run.code == 1 and run.failed:
            found = run.failed[0]
            hang = ", which hangs" if found.hung else ""
            return Verdict(mutant, KILLED, f" by {found.test}{hang}", run.seconds)
        if run.code == 0:
            return Verdict(mutant, SURVIVED, "", run.seconds)
        return Verdict(
            mutant, NOT_RUN, f": pytest ended with {run.code}:\n{run.output}", run.seconds
        )


def main(words: Sequence[str]) -> int:
    """Return 0 if every mutant that was asked for has been killed."""
    problems = [problem for mutant in MUTANTS if (problem := mutant.problem(ROOT))]
    if problems or "--check" in words:
        for problem in problems:
            print(problem)
        found = f"{len(problems)} without its source" if problems else "each has its source"
        print(f"{len(MUTANTS)} mutants, {found}")
        return min(len(problems), 1)
    chosen = [
        mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)
    ]
    if not chosen:
        print(f"No mutant has a name with {' or '.join(words)}; tests/mutant_table.py lists them.")
        return 1
    began = time.monotonic()
    print(
        f"Time limits: for a machine {speed.slowdown():.1f} times slower than the reference.",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="slipsnisse-mutants-", dir="/tmp") as folder:
        verdicts = list(judge_all(chosen, Copies(Path(folder), CORES)))
    return summarize(verdicts, time.monotonic() - began)


def summarize(verdicts: Sequence[Verdict], seconds: float) -> int:
    """Print what is wrong again, and the total; return the exit code."""
    wrong = [verdict for verdict in verdicts if verdict.word != KILLED]
    if wrong:
        print("", *wrong, sep="\n")
    counts = ", ".join(
        f"{sum(verdict.word == word for verdict in verdicts)} {words}"
        for word, words in ((KILLED, "killed"), (SURVIVED, "survived"), (NOT_RUN, "not run"))
    )
    print(f"{len(verdicts)} mutants in {seconds:.0f} s: {counts}")
    return 1 if wrong else 0


def judge_all(chosen: Sequence[Mutant], copies: Copies) -> Iterator[Verdict]:
    """Measure the tests of each, then run them with it; yield and print the verdicts as they
    come."""
    pool = ThreadPoolExecutor(CORES)
    try:
        tests = sorted({mutant.tests for mutant in chosen}, key=len, reverse=True)
        measured = dict(zip(tests, pool.map(copies.measure, tests), strict=True))
        passing = sum(len(run.results) for run in measured.values() if not run.problem)
        print(
            f"{passing} tests pass without a mutant, in {sum(run.seconds for run in measured.values()):.0f} s"
        )
        judged: list[Future[Verdict]] = []
        # The longest come first, so that none of them is the last.
        for mutant in sorted(
            chosen, key=lambda mutant: measured[mutant.tests].seconds, reverse=True
        ):
            run = measured[mutant.tests]
            if run.problem:
                yield printed(Verdict(mutant, NOT_RUN, f": {run.problem}"))
            else:
                judged.append(pool.submit(copies.judge, mutant, run.limits()))
        for future in as_completed(judged):
            yield printed(future.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        copies.end()
        pool.shutdown()


def printed(verdict: Verdict) -> Verdict:
    print(verdict, flush=True)
    return verdict


if __name__ == "__main__":
    # What is running ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
