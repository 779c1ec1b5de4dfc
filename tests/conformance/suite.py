"""Runs the official conformance suite against our HTTP door, or our side towards servers, and reads
what it found."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.externals import node_program, npm_module
from tests.fakes.stage import folder
from tests.waiting import HANG_LIMIT

HERE = Path(__file__).parent
PROGRAM = "@modelcontextprotocol/conformance/dist/index.js"
_FOLDER = re.compile(r"(?:server-)?(.+?)-\d{4}-\d\d-\d\dT")


@dataclass(frozen=True)
class Outcome:
    """``lines`` is ``{scenario: ["SUCCESS check-id", …]}``, sorted: what two runs can be compared
    by."""

    code: int
    printed: str
    lines: dict[str, list[str]]

    def statuses(self, scenario: str) -> set[str]:
        return {line.split(" ")[0] for line in self.lines[scenario]}

    def passed(self) -> set[str]:
        return {
            scenario
            for scenario in self.lines
            if self.statuses(scenario) <= {"SUCCESS", "INFO", "SKIPPED"}
        }


# What the suite says of a check for which it listens half a second only: on a busy machine the call
# takes longer.
_NOT_HEARD = (
    "context dropped or failed to yield frame",
    "Failed to receive progressive stream chunk",
)
_TRIES = 3


def run(url: str, token: str, *options: str) -> Outcome:
    """A run of the suite's server mode; up to three where it has not listened long enough to hear
    an answer."""
    for _ in range(_TRIES):
        found, late = _run(url, token, *options)
        if not late:
            break
    return found


def _run(url: str, token: str, *options: str) -> tuple[Outcome, bool]:
    """It has no option for a header: a preloaded script adds the token."""
    out = folder()
    words = [
        node_program(),
        "--import",
        str(HERE / "bearer.mjs"),
        npm_module(PROGRAM),
        "server",
        "--url",
        url,
    ]
    done = subprocess.run(
        [*words, "-o", str(out), *options],
        capture_output=True,
        text=True,
        timeout=6 * HANG_LIMIT,
        check=False,
        env=os.environ | {"CONFORMANCE_TOKEN": token},
    )
    late = any(
        words in path.read_text() for path in out.rglob("checks.json") for words in _NOT_HEARD
    )
    return Outcome(done.returncode, done.stdout + done.stderr, _read(out)), late


def required_of_clients(revision: str) -> list[str]:
    """The scenarios for clients that a revision requires, but for those of OAuth, which we do not
    speak yet."""
    words = [node_program(), npm_module(PROGRAM), "list", "--client", "--requirements", revision]
    listed = subprocess.run(
        words, capture_output=True, text=True, timeout=HANG_LIMIT, check=True
    ).stdout
    found = re.findall(
        r"^  - (\S+)$", listed.partition("Client scenarios")[2].partition("\n\n")[0], re.MULTILINE
    )
    return [scenario for scenario in found if not scenario.startswith("auth/")]


async def run_client(scenario: str, revision: str, line: Path) -> Outcome:
    """One scenario, played by whoever answers at this socket (``client.answering``)."""
    out = folder()
    process = await asyncio.create_subprocess_exec(
        node_program(),
        npm_module(PROGRAM),
        "client",
        "--command",
        f"{sys.executable} -S {HERE / 'relay.py'} {line}",
        "--scenario",
        scenario,
        "--spec-version",
        revision,
        "-o",
        str(out),
        "--expected-failures",
        str(HERE / f"expected-failures-{revision}.yml"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return Outcome(process.returncode, printed.decode(), _read(out))


def _read(out: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(out.rglob("checks.json")):
        name = _FOLDER.match(path.parent.name)
        assert name, path
        found[name[1]] = sorted(
            f"{check['status']} {check['id']}" for check in json.loads(path.read_text())
        )
    return found
