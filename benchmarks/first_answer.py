"""How long the first answer of an expert tool takes that is asked as soon as a started site
answers.

    python -m benchmarks.first_answer [--starts 3]

A site is made by `manage.py up` in a throw-away folder, with the demo's expert tool (its model is
scripted and answers at once, its tools are real servers). Then it is started again, so often, and
asked at once over MCP.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import psutil

from benchmarks import load, site

TOOL = "expert__research_repository"


class Up:
    """One start of the site, with all that it printed and when."""

    def __init__(self, var: Path) -> None:
        self.began = time.monotonic()
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in {"DATABASE_URL", "CELERY_BROKER_URL"}
        }
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", "0"],
            cwd=site.ROOT,
            text=True,
            env=env | {"SLIPSNISSE_VAR": str(var)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.text = ""

    def says(self, pattern: str) -> str:
        """Read on to a line with this; its first group."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.text += line
            if found := re.search(pattern, line):
                return found[1]
        raise RuntimeError(self.text)

    def read_on(self) -> None:
        """The rest is read and kept, so that nobody waits for us."""
        threading.Thread(target=self._rest, daemon=True).start()

    def _rest(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line

    def cpu(self) -> dict[str, float]:
        """Seconds of the processor that each child has used so far."""
        used = {}
        for child in psutil.Process(self.process.pid).children():
            words = " ".join(child.cmdline())
            name = next(
                (name for name in ("web", "worker", "beat", "valkey") if f"{name}" in words),
                "other",
            )
            times = child.cpu_times()
            used[name] = round(times.user + times.system, 1)
        return used

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def ask(url: str, token: str) -> tuple[str, list[tuple[float, str]]]:
    """The answer's text, and each word of progress with its seconds since the question."""
    params = {
        "name": TOOL,
        "arguments": {"question": "What is the last commit?"},
        "_meta": load.CALL_META,
    }
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    ).encode()
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": TOOL,
        "Authorization": f"Bearer {token}",
    }
    began = time.monotonic()
    told = []
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if not (start := line.find(b"{")) >= 0:
                continue
            message = json.loads(line[start:])
            if message.get("method") == "notifications/progress":
                told.append(
                    (round(time.monotonic() - began, 2), message["params"].get("message", ""))
                )
            elif "result" in message or "error" in message:
                return json.dumps(message.get("result") or message["error"])[:200], told
    raise RuntimeError("no answer")


def first_start(var: Path) -> str:
    """Make the site; the token of the agent that may call the demo's expert tool."""
    up = Up(var)
    try:
        return up.says(r"Bearer token, shown only once:  (\S+)")
    finally:
        up.read_on()
        up.end()


def measure(var: Path, token: str) -> dict[str, object]:
    up = Up(var)
    try:
        url = up.says(r"the site answers at (http\S+?)/ ")
        page = time.monotonic()
        up.read_on()
        answer, told = ask(f"{url}/mcp/default", token)
        took = time.monotonic() - page
        return {
            "page_s": round(page - up.began, 2),
            "answer_s": round(took, 2),
            "told": told,
            "cpu": up.cpu(),
            "answer": answer,
        }
    finally:
        up.end()


def main() -> None:
    """Print one JSON object for each start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipsnisse-first-", dir="/tmp") as folder:
        var = Path(folder) / "var"
        token = first_start(var)
        for _ in range(options.starts):
            print(json.dumps(measure(var, token)), flush=True)


if __name__ == "__main__":
    main()
