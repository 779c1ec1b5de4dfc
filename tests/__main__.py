"""``make test``: the suite on SQLite and on PostgreSQL at the same time, so that one leg works
while another waits.

The run is red for defects only:

* A test that failed runs again at the end, alone, up to twice. If it passes then it is *unstable*:
  it is listed with its first failure, and the run stays green unless there are more than ten of
  them. A test that hung does not run again.
* The run stops after twenty failures or one hour, and prints its summary.

The output of the first leg is printed immediately, that of the others when all legs have ended. The
last lines list the failed tests, the reasons, and a command that runs only these. Other arguments
are passed to pytest in every leg, for example ``python -m tests -k name``.

``--all`` includes the tests that are marked exhaustive. ``--kept FOLDER`` leaves out the tests that
passed in an earlier run with the same folder (``tests/everything.py``). ``--stress N`` runs a
selection N times while other processes keep the machine busy (``tests/stress.py``).
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests import compiled, results, speed, started, stress
from tests.legs import SLOW, SLOW_SECONDS
from tests.results import FAILED, PASSED, SKIPPED, Result

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest")
RUNS = ROOT / ".cache" / "runs"
KEPT_RUNS = 5
CORES = min(os.cpu_count() or 1, 4)
MOST_FAILURES = 20  # the run is stopped after so many
MOST_UNSTABLE = 10
MOST_SECONDS = 3600  # of the whole run
MOST_SECONDS_OF_ALL = 4 * 3600  # with the exhaustive tests
MOST_TRIES = 2  # of a failed test, after its failure
GRACE = 60  # seconds until a pytest that was interrupted is killed
NOTHING_TO_DO = 5  # pytest's exit code when every test was left out
SLOWEST = 20  # files that are named
LISTED = 5  # failures of a leg whose error is shown at the end


@dataclass
class Leg:
    """One pytest of the run."""

    name: str
    options: list[str]
    folder: Path
    output: IO[str] | None
    earlier: Sequence[Path] = ()  # results of earlier runs; what passed in them is left out
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    @property
    def environment(self) -> dict[str, str]:
        return environment() | {started.ENVIRONMENT: str(self.started)}

    @property
    def started(self) -> Path:
        """The file of ``tests/started.py``."""
        return self.folder / f"{self.name}.started"

    def start(self, arguments: Sequence[str]) -> None:
        note = ", shown when all are done" if self.output else ""
        print(f"== Suite on {self.name}{note}", flush=True)
        # Each leg has its own cache, because different tests may have failed last in each.
        own = [
            "-o",
            f"cache_dir=.pytest_cache/{self.name}",
            f"--results={self.path}",
            f"--maxfail={MOST_FAILURES}",
        ]
        own += [f"--passed={path}" for path in self.earlier]
        self.process = subprocess.Popen(
            [*PYTEST, *self.options, *own, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=self.output,
            stderr=self.output,
        )

    def try_again(self, tests: Sequence[str], number: int, seconds: float) -> dict[str, Result]:
        """Run these tests alone, one after the other; return the results of those that ended in
        time."""
        path = self.folder / f"{self.name}-again-{number}.jsonl"
        options = [option for option in self.options if not option.startswith("--workers")]
        command = [*PYTEST, *options, "-p", "no:cacheprovider", f"--results={path}", *tests]
        self.process = subprocess.Popen(command, cwd=ROOT, env=self.environment)
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            stop(self.process)
        return {result.test: result for result in results.read(path)}


@dataclass
class Outcome:
    """The outcome of a leg."""

    leg: Leg
    code: int
    passed: int
    skipped: int
    before: int  # passed in earlier runs
    failed: list[Result]
    unstable: list[Result] = field(default_factory=list)

    @property
    def broken(self) -> bool:
        """Whether it ended for another reason than that all its tests have run."""
        return self.code not in (0, 1, NOTHING_TO_DO) or (
            self.code == 1 and not (self.failed or self.unstable)
        )


def main(given: list[str]) -> int:
    """Return 0 when every leg has passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--all", action="store_true", help="include the exhaustive tests")
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FOLDER",
        help="leave out what passed in a run with this folder",
    )
    parser.add_argument(
        "--stress", type=int, metavar="N", help="run the selected tests N times on a busy machine"
    )
    options, arguments = parser.parse_known_args(given)
    if options.stress:
        return stress.main(options.stress, arguments)
    started = time.monotonic()
    deadline = started + (MOST_SECONDS_OF_ALL if options.all else MOST_SECONDS)
    print(
        f"Time limits: for a machine {speed.slowdown():.1f} times slower than the reference.",
        flush=True,
    )
    folder = new_folder(options.kept or RUNS)
    compiled.compile_all()
    with ExitStack() as stack:
        legs: list[Leg] = []
        stack.enter_context(signals_passed_on(legs))
        for name, leg_options in options_of_legs(options.all):
            output = stack.enter_context((folder / f"{name}.log").open("w+")) if legs else None
            earlier = sorted(options.kept.glob(f"*/{name}*.jsonl")) if options.kept else []
            leg = Leg(name, leg_options, folder, output, earlier)
            leg.start([*(() if options.all else ("--gate",)), *arguments])
            legs.append(leg)
        stopped_because = watch(legs, deadline)
        for leg in legs:
            if leg.output:
                leg.output.seek(0)
                print(f"\n== Suite on {leg.name}\n{leg.output.read()}", flush=True)
        outcomes = [outcome_of(leg) for leg in legs]
        if not stopped_because:
            run_failed_again(outcomes, deadline)
        whole = not (arguments or options.kept)
        if whole and not options.all:
            print_unexplained(outcomes)
        return summarize(outcomes, stopped_because, whole=whole, seconds=time.monotonic() - started)


def new_folder(runs: Path) -> Path:
    """For output and results of this run. Those of `make test` stay until a few newer runs have
    been made."""
    runs.mkdir(parents=True, exist_ok=True)
    earlier = sorted(runs.iterdir(), key=lambda run: run.stat().st_mtime)
    if runs == RUNS:
        for run in earlier[: -KEPT_RUNS + 1]:
            shutil.rmtree(run)
    return Path(tempfile.mkdtemp(dir=runs))


def options_of_legs(exhaustive: bool) -> list[tuple[str, list[str]]]:
    """Names and options of pytest. Many tests wait, so there are seven workers for two cores,
    besides those for PostgreSQL.

    Both legs should end at about the same time, or a core has nothing to do while the last workers
    wait. In the gate, the tests on PostgreSQL take a tenth of the time; with the exhaustive tests
    they take a quarter.
    """
    on_postgres = CORES if exhaustive else 1
    return [
        ("SQLite", [f"--workers={7 * CORES // 2}"]),
        ("PostgreSQL", [f"--workers={on_postgres}", "--postgres"]),
    ]


def environment() -> dict[str, str]:
    """Of each pytest: compiled modules are kept, or each worker would compile the whole product for
    itself."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def watch(legs: Sequence[Leg], deadline: float) -> str:
    """Wait for all legs. Return why they were stopped, or an empty text if none was."""
    running = list(legs)
    while running:
        running = [leg for leg in running if leg.process.poll() is None]
        failures = sum(results.count_failed(leg.path) for leg in legs)
        because = ""
        if failures >= MOST_FAILURES:
            because = f"{failures} tests failed"
        elif time.monotonic() > deadline:
            because = "the run took too long"
        if because:
            for leg in running:
                stop(leg.process)
            return because
        time.sleep(1)
    return ""


@contextmanager
def signals_passed_on(legs: Sequence[Leg]) -> Iterator[None]:
    """A terminal interrupts every pytest as well, and they end in order; a SIGTERM reaches this
    process only."""

    def terminate(*_: object) -> None:
        for leg in legs:
            leg.process.terminate()

    before = signal.signal(signal.SIGINT, lambda *_: None), signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a pytest, so that it cleans up and writes its summary; kill it if it does not
    end."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def outcome_of(leg: Leg) -> Outcome:
    found = results.read(leg.path)
    return Outcome(
        leg,
        leg.process.returncode,
        passed=sum(result.outcome == PASSED for result in found),
        skipped=sum(result.outcome == SKIPPED for result in found),
        before=len(results.passed(leg.earlier)),
        failed=[result for result in found if result.outcome == FAILED],
    )


def run_failed_again(outcomes: Sequence[Outcome], deadline: float) -> None:
    """Run failed tests alone, and move those that pass to ``unstable``."""
    for number in range(1, MOST_TRIES + 1):
        for outcome in outcomes:
            tests = [result.test for result in outcome.failed if result.again]
            seconds = deadline - time.monotonic()
            if tests and seconds > 0:
                print(
                    f"\n== {outcome.leg.name}: {len(tests)} failed tests run again, alone (try {number})",
                    flush=True,
                )
                again = outcome.leg.try_again(tests, number, seconds)
                passed = [
                    r for r in outcome.failed if r.test in again and again[r.test].outcome == PASSED
                ]
                outcome.unstable += passed
                outcome.failed = [result for result in outcome.failed if result not in passed]


def summarize(
    outcomes: Sequence[Outcome], stopped_because: str, *, whole: bool, seconds: float
) -> int:
    """Print the result of the run, with the most important lines last; return the exit code."""
    print(f"\n== Summary; output and results are in {outcomes[0].leg.folder}")
    for outcome in outcomes:
        slowest = results.slowest_files(results.read(outcome.leg.path), SLOWEST)
        words = ", ".join(f"{file.removeprefix('tests/')} {took:.0f} s" for file, took in slowest)
        print(f"Slowest files on {outcome.leg.name}: {words}")
    for outcome in outcomes:
        for result in outcome.unstable:
            print(f"UNSTABLE on {outcome.leg.name}: {result.test}: {shorten(result.reason)}")
    for outcome in outcomes:
        for result in outcome.failed[:LISTED]:
            print(f"Error on {outcome.leg.name}:", *results.describe(result), sep="\n  ")
    for outcome in outcomes:
        print_failures(outcome)
    problems = [stopped_because] if stopped_because else []
    problems += list_problems(outcomes, whole=whole)
    for problem in problems:
        print(f"RED: {problem}")
    unstable = sum(len(outcome.unstable) for outcome in outcomes)
    passed = unstable + sum(outcome.passed for outcome in outcomes)
    failed = sum(len(outcome.failed) for outcome in outcomes)
    skipped = sum(outcome.skipped for outcome in outcomes)
    counts = sum((started.count(outcome.leg.started) for outcome in outcomes), Counter())
    print(f"Processes started: {counts[started.SITE]} of the site, {counts[started.OTHER]} others")
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{unstable} unstable; {seconds:.0f} s, {cpu.ru_utime + cpu.ru_stime:.0f} s of processor time"
    )
    before = sum(outcome.before for outcome in outcomes)
    others = [
        f"{count} {word}"
        for count, word in ((skipped, "skipped"), (before, "passed before"))
        if count
    ]
    print(", ".join([f"{passed} passed, {failed} failed", *others]), flush=True)
    return 1 if failed or problems else 0


def print_unexplained(outcomes: Sequence[Outcome]) -> None:
    """Print which files of the gate are slow for no stated reason."""
    for outcome in outcomes:
        slowest = results.slowest_files(results.read(outcome.leg.path), SLOWEST)
        found = [f"{file} {took:.0f} s" for file, took in slowest if took > SLOW_SECONDS]
        unexplained = [
            words for words in found if words.partition(" ")[0].removeprefix("tests/") not in SLOW
        ]
        if unexplained:
            print(
                f"Slow on {outcome.leg.name}, without a reason in tests/legs.py: {', '.join(unexplained)}"
            )


def print_failures(outcome: Outcome) -> None:
    """Print which tests failed, why, and how to run only these."""
    if not outcome.failed:
        return
    for result in outcome.failed:
        print(f"FAILED on {outcome.leg.name}: {result.test}: {shorten(result.reason)}")
    options = " --postgres" if "--postgres" in outcome.leg.options else ""
    tests = shlex.join(result.test for result in outcome.failed[:LISTED])
    print(f"Run only these: .venv/bin/python -m pytest{options} {tests}")


def list_problems(outcomes: Sequence[Outcome], *, whole: bool) -> Iterator[str]:
    """Yield the reasons other than failed tests for which the run is red."""
    for outcome in outcomes:
        if outcome.broken:
            yield f"pytest on {outcome.leg.name} ended with exit code {outcome.code}; see its output above"
        elif whole and not outcome.passed:
            yield f"no test ran on {outcome.leg.name}"
    unstable = sum(len(outcome.unstable) for outcome in outcomes)
    if unstable > MOST_UNSTABLE:
        yield f"{unstable} tests are unstable, more than {MOST_UNSTABLE}"
    if not any(outcome.passed or outcome.before for outcome in outcomes):
        yield "no test passed"


def shorten(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
