"""``make test-all``: all checks, in stages, with a report at the end. It takes about an hour.

With ``--continue`` (``make test-all ARGS=--continue``), stages and single tests that passed for the
same state of the code do not run again. The results are kept in ``~/.cache/slipsnisse-tests/all``,
outside of the checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.externals import INSTALLED, ROOT

STATES_KEPT = 5
CHANGED = "the source has changed"


@dataclass(frozen=True)
class Stage:
    """A command that ends with 0 if all is well."""

    name: str
    command: Sequence[str]


def stages(folder: Path) -> list[Stage]:
    """Return all stages, the most productive first. ``folder`` keeps the results of the suite."""
    python = (sys.executable, "-m")
    measured = ("--part=measured", "--cov", "--cov-report=term", "-q", "-n4", "--dist=loadfile")
    return [
        Stage("suite on both databases", (*python, "tests", "--all", f"--kept={folder / 'suite'}")),
        Stage("branch coverage", (*python, "pytest", *measured)),
        Stage("kills of a busy site on SQLite", (*python, "tests.fault.kills", "60")),
        Stage(
            "kills of a busy site on PostgreSQL", (*python, "tests.fault.kills", "60", "--postgres")
        ),
        Stage(
            "kills during installs, tests and trials on SQLite",
            (*python, "tests.fault.server_kills", "60"),
        ),
        Stage(
            "kills during installs, tests and trials on PostgreSQL",
            (*python, "tests.fault.server_kills", "60", "--postgres"),
        ),
        Stage(
            "kills of owners of sessions",
            (*python, "tests.fault.session_kills", "12", "--postgres"),
        ),
        Stage("database faults of a busy site on SQLite", (*python, "tests.fault.outages", "12")),
        Stage(
            "database faults of a busy site on PostgreSQL",
            (*python, "tests.fault.outages", "18", "--postgres"),
        ),
        Stage("stops of first starts", (*python, "tests.controlplane.stops", "40")),
        Stage("mutants", (*python, "tests.mutants")),
    ]


def main(arguments: Sequence[str]) -> int:
    """Return 0 when every stage has passed, now or (with ``--continue``) before."""
    if set(arguments) - {"--continue"}:
        print("usage: python -m tests.everything [--continue]", file=sys.stderr)
        return 2
    folder = folder_of_source()
    if not arguments:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    forget_old(folder)
    lines = [run(stage, folder) for stage in stages(folder)]
    print("\n== Report", *lines, sep="\n")
    failed = sum(line.startswith("FAILED") for line in lines)
    print(f"{len(lines) - failed} passed, {failed} failed")
    return 1 if failed else 0


def run(stage: Stage, folder: Path) -> str:
    """Run a stage unless it has passed before; return its line of the report."""
    mark = folder / f"{stage.name}.passed"
    if mark.exists():
        return f"passed before: {stage.name} ({mark.read_text()})"
    if folder_of_source() != folder:
        return f"FAILED: {stage.name} ({CHANGED}; it did not run)"
    print(f"\n== {stage.name}", flush=True)
    started = time.monotonic()
    code = subprocess.run(stage.command, cwd=ROOT, check=False).returncode
    took = f"{time.monotonic() - started:.0f} s"
    if code:
        return f"FAILED: {stage.name} (exit code {code}, {took})"
    if folder_of_source() != folder:
        return f"FAILED: {stage.name} ({CHANGED} while it ran)"
    mark.write_text(took)
    return f"passed: {stage.name} ({took})"


def folder_of_source() -> Path:
    """Return the folder for this commit and its uncommitted changes."""
    seen = hashlib.sha256(git("rev-parse", "HEAD") + git("diff", "HEAD"))
    for name in git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")[:-1]:
        path = ROOT / os.fsdecode(name)
        seen.update(name + b"\0" + (path.read_bytes() if path.is_file() else b""))
    return INSTALLED / "all" / seen.hexdigest()[:16]


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def forget_old(folder: Path) -> None:
    """Keep this folder and those of the states that were tested last."""
    others = [state for state in folder.parent.iterdir() if state != folder]
    newest_first = sorted(others, key=lambda state: state.stat().st_mtime, reverse=True)
    for state in newest_first[STATES_KEPT - 1 :]:
        shutil.rmtree(state)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
