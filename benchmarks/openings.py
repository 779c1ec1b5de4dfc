"""How long a host waits for the first answer of `runmcp` after the configuration has changed.

    python -m benchmarks.openings [--starts 5]

The endpoint has instructions, so that no common answer can be used, and a web process runs. Each
start comes a given time after a change of another endpoint. Printed are medians in seconds, from
the start of the process to the answer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

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
INITIALIZE = {
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
DISCOVER = {"method": "server/discover", "params": {"_meta": load.META}}


def first_answer(opening: dict[str, object]) -> float:
    """Seconds from the start to the answer to this opening."""
    started = time.perf_counter()
    process = subprocess.Popen(
        ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1} | opening).encode() + b"\n")
    process.stdin.flush()
    reply = json.loads(process.stdout.readline())
    took = time.perf_counter() - started
    if reply.get("result", {}).get("instructions") is None:
        raise RuntimeError(f"no instructions: {reply}")
    process.stdin.close()
    process.wait(60)
    return took


def change() -> None:
    """Of another endpoint."""
    from mcpregistry.models import Endpoint
    from mcpregistry.services.access import agents

    other = Endpoint.objects.get(slug="other")
    other.naming_style = "single" if other.naming_style == "plain" else "plain"
    agents.save_endpoint(endpoint=other, actor="bench")


def main() -> None:
    """Print one JSON object for each opening and pause."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    site.prepare()
    from mcpregistry.models import Endpoint
    from mcpregistry.services.access import agents

    command = [sys.executable, "-S", str(site.ROOT / "benchmarks" / "echo_stdio.py")]
    tool = {"name": "echo", "description": "Echo.", "inputSchema": {"type": "object"}}
    site.register("stdio", [tool], transport="stdio", command=command)
    endpoint = Endpoint.objects.get(slug="bench")
    endpoint.instructions = "Ask first."
    agents.save_endpoint(endpoint=endpoint, actor="bench")
    agents.save_endpoint(endpoint=Endpoint(slug="other"), actor="bench")
    with site.gateway(site.free_port()):
        time.sleep(5)
        for opening in (INITIALIZE, DISCOVER):
            for pause in (0.0, 0.5, 2.0, 5.0):
                times = []
                for _ in range(options.starts):
                    change()
                    time.sleep(pause)
                    times.append(first_answer(opening))
                found = {
                    "median_s": round(statistics.median(times), 3),
                    "most_s": round(max(times), 3),
                }
                print(
                    json.dumps({"method": opening["method"], "pause_s": pause} | found), flush=True
                )


if __name__ == "__main__":
    main()
