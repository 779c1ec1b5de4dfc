"""``make test``: the suite on SQLite and on PostgreSQL at the same time, so that one leg works while the other waits.

The leg on SQLite writes as it goes. The leg on PostgreSQL writes to a file, which is shown when both are done, and
then the closing lines of both once more, and of each test that failed where and why: what keeps only the last lines
of a long output must show them too. What is said after ``python -m tests`` goes to pytest, in both legs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "--dist=loadfile", "--no-loadscope-reorder")
CORES = min(os.cpu_count() or 1, 4)
NOTHING_TO_DO = 5  # pytest's word for: every test was left out
SHOWN = 10  # lines of what pytest said of a failed test
SLOWEST = 25  # files


def main(arguments: list[str]) -> int:
    """0 when both legs pass."""
    with tempfile.TemporaryDirectory(prefix="slipsnisse-suite-") as folder:
        reports = {name: Path(folder, f"{name}.xml") for name in ("SQLite", "PostgreSQL")}
        with Path(folder, "postgres.log").open("w+") as second:
            # Each leg has a cache of its own: what failed last in one need not have failed in the other.
            legs = {
                # The longer one has two workers more, since many of its tests wait.
                "SQLite": _started([f"-n{CORES + 2}", *_own("sqlite", reports["SQLite"]), *arguments], None),
                "PostgreSQL": _started(
                    [f"-n{CORES}", "--postgres", *_own("postgres", reports["PostgreSQL"]), *arguments], second
                ),
            }
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # both legs get it from the terminal, and close in order
            signal.signal(signal.SIGTERM, lambda *_: [leg.terminate() for leg in legs.values()])  # nothing may run on
            codes = {name: leg.wait() for name, leg in legs.items()}
            second.seek(0)
            print(f"\n== Suite on PostgreSQL\n{second.read()}", flush=True)
        for name, code in codes.items():
            print(f"== Suite on {name}: {'passed' if code in (0, NOTHING_TO_DO) else f'FAILED (exit code {code})'}")
            print(f"   most time: {_slowest(reports[name])}")
            print(*_failures(reports[name]), sep="", end="", flush=True)
    return 0 if set(codes.values()) <= {0, NOTHING_TO_DO} and 0 in codes.values() else 1


def _own(name: str, report: Path) -> list[str]:
    return ["-o", f"cache_dir=.pytest_cache/{name}", "-o", "junit_logging=no", f"--junitxml={report}"]


def _slowest(report: Path) -> str:
    """The files that took most of the leg's time, so that it is seen where a suite that grows gets slow."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        seconds[str(case.get("classname")).removeprefix("tests.")] += float(case.get("time") or 0)
    return ", ".join(f"{file} {took:.0f} s" for file, took in seconds.most_common(SLOWEST))


def _failures(report: Path) -> Iterator[str]:
    """A line for each test that failed, and the last lines of what pytest said of it; nothing of a leg that was killed."""
    if not report.exists():
        return
    for case in ElementTree.parse(report).iter("testcase"):
        for fault in (*case.findall("failure"), *case.findall("error")):
            lines = (fault.text or "").rstrip().splitlines()[-SHOWN:]
            yield f"{fault.tag}: {case.get('classname')}::{case.get('name')}\n"
            yield "".join(f"    {line}\n" for line in lines)


def _started(arguments: list[str], output: IO[str] | None) -> subprocess.Popen[bytes]:
    print(f"== Suite on {'PostgreSQL, shown when it is done' if output else 'SQLite'}", flush=True)
    # Each of the workers would compile the whole product and all tests for itself, each time.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen([*PYTEST, *arguments], cwd=ROOT, env=env, stdout=output, stderr=output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
