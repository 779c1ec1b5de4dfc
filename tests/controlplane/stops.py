"""Stops `manage.py up` at random moments of first starts: it must end whole, and lose nothing; how
soon is printed.

The suite makes a few; by hand, as many as wanted: ``python -m tests.controlplane.stops 200``.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.externals import ROOT
from tests.waiting import HANG_LIMIT, eventually

PROMISED = 10.0  # seconds from the signal to the end, where the machine has time
# A stop comes up to a second after one of these lines (or after the beginning), so that it meets
# every part of a start on slow machines as on quick ones.
LINES = (
    "",
    "starting the broker",
    "loading the web site",
    "bringing the database",
    "starting the worker",
    "the site answers",
    "starting the scheduler",
    "asking the worker",
    ": works",
    "Three things to do next",
    "Or connect over HTTP",
)


@dataclass(frozen=True)
class Stopped:
    """One start that was stopped. ``took``: seconds from the first signal to the end. ``left``:
    what ran on."""

    after: str
    how: str
    took: float
    left: list[str]
    text: str

    def __str__(self) -> str:
        return f"{self.after:<40} {self.how:<13} ended in {self.took:5.2f} s, left running: {self.left or 'nothing'}"


def start(var: Path) -> subprocess.Popen[str]:
    """A site in ``var`` with a free port; its environment names it, so that its processes can be
    found."""
    return subprocess.Popen(
        [sys.executable, "manage.py", "up", "--port", "0"],
        cwd=ROOT,
        env=_env(var),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _env(var: Path) -> dict[str, str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in {"DATABASE_URL", "CELERY_BROKER_URL"}
    }
    return env | {"SLIPSNISSE_VAR": str(var)}


def stop(var: Path, chance: random.Random) -> Stopped:
    """Start a site in ``var`` and stop it at a random moment, with one signal or with two."""
    line = chance.choice(LINES)
    later = chance.uniform(0, 1)
    number = chance.choice([signal.SIGINT, signal.SIGTERM])
    twice = chance.random() < 0.5
    process = start(var)
    text = read_to(process, line)
    time.sleep(later)
    process.send_signal(number)
    began = time.monotonic()
    if twice:
        time.sleep(chance.uniform(0, 0.3))
        process.send_signal(number)
    text += end_of(process)
    took = time.monotonic() - began
    return Stopped(
        f"{later:.2f} s after '{line}'",
        f"{number.name} {'twice' if twice else 'once'}",
        took,
        running_in(var),
        text,
    )


def read_to(process: subprocess.Popen[str], words: str) -> str:
    """What the site printed up to the line with these words. Where they never come, because a start
    before this one has done that part, up to the last line of a start.
    """
    text = ""
    assert process.stdout is not None
    while (
        words
        and words not in text
        and LINES[-1] not in text
        and (line := process.stdout.readline())
    ):
        text += line
    return text


def end_of(process: subprocess.Popen[str]) -> str:
    """The rest of what it printed; a process that does not end is killed, which the text then
    says."""
    timer = threading.Timer(HANG_LIMIT, process.kill)
    timer.start()
    assert process.stdout is not None
    text = process.stdout.read()
    process.wait()
    killed = "" if timer.is_alive() else "\n(had to be killed)"
    timer.cancel()
    return text + killed


def running_in(var: Path) -> list[str]:
    """Command lines of the processes that still work for this site, though it has ended and they
    had time to."""
    with suppress(AssertionError):
        eventually(lambda: not _processes(var))
    return _processes(var)


def _processes(var: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(
                "SLIPSNISSE_VAR"
            ) == str(var):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def finish(var: Path) -> str:
    """Start the site once more and let it come up; all that it printed. It is stopped again."""
    process = start(var)
    text = read_to(process, "3. Or connect over HTTP") + read_to(process, "\n")
    process.terminate()
    return text + end_of(process)


def invariants(var: Path) -> str:
    """What `manage.py invariants` says if anything is broken, such as a trigger that is missing;
    else ""."""
    done = subprocess.run(
        [sys.executable, "manage.py", "invariants"],
        cwd=ROOT,
        env=_env(var),
        capture_output=True,
        text=True,
        timeout=HANG_LIMIT,
    )
    return done.stdout + done.stderr if done.returncode else ""


def shown(text: str) -> dict[str, bool]:
    """What the owner of a new site must have seen by the time that a start was not stopped."""
    return {
        "password": re.search(r"Password, shown only once:  \S+", text) is not None,
        "token": re.search(r"Bearer token, shown only once:  \S+", text) is not None,
        "demo": "expert tool research_repository: ready" in text,
    }


def rounds(count: int, seed: int, each: int = 2) -> list[str]:
    """``count`` stops, ``each`` in a row on one site, then a start that is let live. Returns what
    was wrong.

    What was wrong is printed as it is found: whoever has seen enough may interrupt it.
    """
    chance = random.Random(seed)
    wrong = []

    def note(what: str) -> None:
        print(f"WRONG: {what}", flush=True)
        wrong.append(what)

    for _ in range(0, count, each):
        with tempfile.TemporaryDirectory(prefix="slipsnisse-stops-", dir="/tmp") as folder:
            var = Path(folder) / "var"
            texts = []
            for _ in range(each):
                stopped = stop(var, chance)
                print(stopped, flush=True)
                texts.append(stopped.text)
                if stopped.left or "killed)" in stopped.text:
                    note(f"{stopped}\n{stopped.text}")
            texts.append(finish(var))
            missing = [what for what, seen in shown("".join(texts)).items() if not seen]
            broken = invariants(var)
            if missing or broken or running_in(var):
                note(
                    f"never shown: {missing}, running: {running_in(var)}, {broken}\n"
                    + "\n-----\n".join(texts)
                )
            else:
                print("after them the site came up, and all was shown", flush=True)
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"{options.count} stops, seed {options.seed}")
    problems = rounds(options.count, options.seed)
    fine = f"all {options.count} ended, whole, and lost nothing"
    print(f"{len(problems)} things were wrong" if problems else fine)
    sys.exit(bool(problems))
