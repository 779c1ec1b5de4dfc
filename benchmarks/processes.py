"""Whether more web processes make more calls, and what the collector and the eras have to do with
it.

    .venv/bin/python -m benchmarks.processes [--pairs 3] [--at-once 10 50]

One process and two side by side on the same database (SQLite, or what DATABASE_URL names), called
in turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics

from benchmarks import site
from benchmarks.gateway import ECHO, STDIO, one_run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--at-once", type=int, nargs="+", default=[10, 50])
    options = parser.parse_args()
    var = site.prepare()
    try:
        site.register("stdio", ECHO, transport="stdio", command=STDIO, max_concurrency=64)
        _compare(site.token(), options.at_once, options.pairs)
    finally:
        shutil.rmtree(var, ignore_errors=True)


def _compare(token: str, at_once: list[int], pairs: int) -> None:
    ports = [site.free_port() for _ in range(2)]
    with site.gateway(ports[0]) as one, site.gateway(ports[1], processes=2) as two:
        for era, several in ((era, several) for era in ("modern", "older") for several in at_once):
            runs: dict[str, list[dict[str, float]]] = {"one process": [], "two": []}
            for turn in range(pairs + 1):  # the first is a warm-up
                for kind, port, pids in zip(runs, ports, (one.pids, two.pids), strict=True):
                    url = f"http://127.0.0.1:{port}/mcp/bench"
                    run = one_run(url, token, "stdio__echo", several, 2000, pids, era)
                    runs[kind] += [run] if turn else []
            for kind, made in runs.items():
                figures = "  ".join(
                    f"{key} {statistics.median(run[key] for run in made):.1f}"
                    for key in ("calls_per_second", "p50_ms", "p99_ms", "server_cpu_us_per_call")
                )
                print(
                    f"{era:7}{several:4} at once  {kind:12} {figures}  load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
