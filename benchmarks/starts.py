"""How long a host and a browser wait for our processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error

from benchmarks import load, site

ARGV = [
    sys.executable,
    str(site.ROOT / "manage.py"),
    "runmcp",
    "--endpoint",
    "bench",
    "--agent",
    "bench",
]


def runmcp_start() -> dict[str, float]:
    """One start as Claude Code does it: discover, list, one call. Seconds from exec; peak MB."""
    started = time.perf_counter()
    process = subprocess.Popen(
        ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin
    assert process.stdout
    times = {}
    asks = [
        ("answer_s", "server/discover", {}),
        ("list_s", "tools/list", {}),
        ("call_s", "tools/call", {"name": "stdio__echo", "arguments": {"text": "x"}}),
    ]
    for number, (label, method, params) in enumerate(asks):
        message = {
            "jsonrpc": "2.0",
            "id": number,
            "method": method,
            "params": params | {"_meta": load.META},
        }
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        reply = json.loads(process.stdout.readline())
        if reply.get("id") != number or "result" not in reply:
            raise RuntimeError(f"{method}: {reply}")
        times[label] = round(time.perf_counter() - started, 3)
    times["peak_mb"] = round(site.peak_mb(process.pid), 1)
    process.stdin.close()
    process.wait(20)
    return times


def web_start() -> float:
    """Seconds from exec of one web process to its first HTTP 200."""
    port = site.free_port()
    started = time.perf_counter()
    with site.gateway(port):
        while True:
            try:
                site.get(f"http://127.0.0.1:{port}/healthz")
                return round(time.perf_counter() - started, 3)
            except urllib.error.URLError:
                time.sleep(0.02)
