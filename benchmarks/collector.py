"""What Python's garbage collector costs calls, and whether memory stays bounded without most of its
work.

    .venv/bin/python -m benchmarks.collector [--calls 1000000] [--at-once 50]

First pairs of runs, one after the other, against a web process as it is and one whose collector is
left as Python has it, with p50, p99 and the CPU of a call; then ``--calls`` calls against the
first, with its memory on the way. Linux only (it reads /proc).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

from benchmarks import site
from benchmarks.gateway import ECHO, STDIO, one_run

_AS_PYTHON_HAS_IT = (
    "from mcpregistry import garbage_collection; garbage_collection.settle = lambda: None"
)
_UNFROZEN = f"import gc; gc.freeze = lambda: None; {_AS_PYTHON_HAS_IT}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--calls",
        type=int,
        default=100_000,
        help="Number of calls of the run that measures memory.",
    )
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    var = site.prepare()
    try:
        site.register("stdio", ECHO, transport="stdio", command=STDIO, max_concurrency=64)
        token = site.token()
        _compare(token, options.at_once, options.pairs)
        _memory(token, options.at_once, options.calls)
    finally:
        shutil.rmtree(var, ignore_errors=True)


def _compare(token: str, at_once: int, pairs: int) -> None:
    ports = [site.free_port() for _ in range(3)]
    kinds = ("as it is", "not settled", "nothing set aside")
    with (
        site.gateway(ports[0]) as tuned,
        site.gateway(ports[1], before=_AS_PYTHON_HAS_IT) as plain,
        site.gateway(ports[2], before=_UNFROZEN) as unfrozen,
    ):
        pids = [tuned.pid, plain.pid, unfrozen.pid]
        for era in ("modern", "older"):
            runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
            for turn in range(pairs + 1):  # the first is a warm-up
                for kind, port, pid in zip(kinds, ports, pids, strict=True):
                    url = f"http://127.0.0.1:{port}/mcp/bench"
                    run = one_run(url, token, "stdio__echo", at_once, 3000, [pid], era)
                    if turn:
                        runs[kind].append(run)
            for kind in kinds:
                print(f"{era:7} {kind:18} {_middle(runs[kind])}", flush=True)


def _middle(runs: list[dict[str, float]]) -> str:
    keys = ("calls_per_second", "p50_ms", "p99_ms", "max_ms", "server_cpu_us_per_call")
    return "  ".join(f"{key} {statistics.median(run[key] for run in runs):.1f}" for key in keys)


def _memory(token: str, at_once: int, calls: int) -> None:
    port = site.free_port()
    with site.gateway(port) as web:
        url = f"http://127.0.0.1:{port}/mcp/bench"
        made = 0
        step = max(1, calls // 20)
        while made < calls:
            run = one_run(
                url,
                token,
                "stdio__echo",
                at_once,
                step,
                [web.pid],
                "modern" if made // step % 2 else "older",
            )
            made += step
            print(
                f"{made:>9} calls: {_resident_mb(web.pid):.0f} MB, p99 {run['p99_ms']} ms, load {_load()}",
                flush=True,
            )


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def _load() -> Any:
    return round(os.getloadavg()[0], 1)


if __name__ == "__main__":
    main()
