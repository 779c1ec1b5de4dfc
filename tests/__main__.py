"""``make test``: the suite on SQLite and on PostgreSQL at the same time, so that one leg works while another waits.

On SQLite it runs in two parts (``tests/legs.py``), one of them with coverage and its floor. The first leg writes as it
goes. The others write to files, which are shown when all are done, and then the closing lines of each once more, and of
each test that failed where and why: what keeps only the last lines of a long output must show them too. What is said
after ``python -m tests`` goes to pytest, in every leg; then nothing is measured, and SQLite's has one part.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from tests import legs

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "--dist=loadfile", "--no-loadscope-reorder")
CORES = min(os.cpu_count() or 1, 4)
NOTHING_TO_DO = 5  # pytest's word for: every test was left out
ENDS = {0: "passed", NOTHING_TO_DO: "ran no test"}
SHOWN = 10  # lines of what pytest said of a failed test
SLOWEST = 25  # files


def main(arguments: list[str]) -> int:
    """0 when every leg passes."""
    with tempfile.TemporaryDirectory(prefix="slipsnisse-suite-") as folder, ExitStack() as stack:
        running = {}
        for at, (name, options) in enumerate((_legs_of_some if arguments else _legs_of_all)()):
            output = stack.enter_context(Path(folder, f"{name}.log").open("w+")) if at else None
            report = Path(folder, f"{name}.xml")
            running[name] = _started(name, [*options, *_own(name, report), *arguments], output), output, report
        # All get the first from the terminal, and close in order; of the second, none may run on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: [leg.terminate() for leg, _, _ in running.values()])
        codes = {name: leg.wait() for name, (leg, _, _) in running.items()}
        for name, (_, output, _) in running.items():
            if output:
                output.seek(0)
                print(f"\n== Suite on {name}\n{output.read()}", flush=True)
        for name, code in codes.items():
            report = running[name][2]
            print(f"== Suite on {name}: {ENDS.get(code, f'FAILED (exit code {code})')}{_took(report)}")
            print(*_coverage(running[name][1]), sep="", end="")
            print(f"   most time: {_slowest(report)}")
            print(*_failures(report), sep="", end="", flush=True)
    fine = {0, NOTHING_TO_DO} if arguments else {0}  # a leg of the whole suite without a test has lost them
    return 0 if set(codes.values()) <= fine and 0 in codes.values() else 1


def _legs_of_all() -> Iterator[tuple[str, list[str]]]:
    """Names and options. Many tests wait, so there are three workers for each core at first, and the longest leg's last.

    Fewer workers for each half of the leg on SQLite: a worker collects and imports what its half has, and no more.
    """
    yield "SQLite", [f"-n{CORES // 2 + 1}", f"--part={legs.OTHERS}"]
    coverage = ["--cov", "--cov-report="]  # its floor is looked at; `make coverage` shows the lines
    yield "SQLite, with coverage", [f"-n{CORES // 2 + 1}", f"--part={legs.MEASURED}", *coverage]
    yield "PostgreSQL", [f"-n{CORES}", "--postgres"]


def _legs_of_some() -> Iterator[tuple[str, list[str]]]:
    """Of a few tests it says nothing which lines they have run."""
    yield "SQLite", [f"-n{CORES + 2}"]
    yield "PostgreSQL", [f"-n{CORES}", "--postgres"]


def _own(name: str, report: Path) -> list[str]:
    # Each leg has a cache of its own: what failed last in one need not have failed in another.
    return ["-o", f"cache_dir=.pytest_cache/{name}", "-o", "junit_logging=no", f"--junitxml={report}"]


def _took(report: Path) -> str:
    """When the leg was done, so that it is seen which one the others have left alone."""
    found = ElementTree.parse(report).find("testsuite") if report.exists() else None
    return "" if found is None else f" after {float(found.get('time', 0)):.0f} s"


def _slowest(report: Path) -> str:
    """The files that took most of the leg's time, so that it is seen where a suite that grows gets slow."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        seconds[str(case.get("classname")).removeprefix("tests.")] += float(case.get("time") or 0)
    return ", ".join(f"{file} {took:.0f} s" for file, took in seconds.most_common(SLOWEST))


def _coverage(output: IO[str] | None) -> Iterator[str]:
    """The line about the floor, where this leg has one."""
    if output:
        output.seek(0)
        yield from (f"   {line}" for line in output if "Required test coverage" in line)


def _failures(report: Path) -> Iterator[str]:
    """A line for each test that failed, and the last lines of what pytest said of it; nothing of a leg that was killed."""
    if not report.exists():
        return
    for case in ElementTree.parse(report).iter("testcase"):
        for fault in (*case.findall("failure"), *case.findall("error")):
            lines = (fault.text or "").rstrip().splitlines()[-SHOWN:]
            yield f"{fault.tag}: {case.get('classname')}::{case.get('name')}\n"
            yield "".join(f"    {line}\n" for line in lines)


def _started(name: str, arguments: list[str], output: IO[str] | None) -> subprocess.Popen[bytes]:
    print(f"== Suite on {name}{', shown when all are done' if output else ''}", flush=True)
    # Each of the workers would compile the whole product and all tests for itself, each time.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen([*PYTEST, *arguments], cwd=ROOT, env=env, stdout=output, stderr=output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
