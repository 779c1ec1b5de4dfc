"""Whether one web process stays as small as it is: calls without end, and what it holds after each
ten thousand.

    .venv/bin/python -m benchmarks.soak [--calls 1000000] [--step 10000] [--at-once 10] [--era
    modern]

Prints a line for each step as it goes: calls so far, calls a second, CPU of a call, resident
memory, and what Python's collector has done by then (collections of each generation, objects it
could not free, objects set aside). It can be stopped at any time (Ctrl-C, SIGTERM); what was
printed counts. Linux only (it reads /proc).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import site
from benchmarks.gateway import ECHO, STDIO, one_run

# Runs in the web process: once a second what its collector has done, in a file that is whole at any
# moment.
_TELLS = """
import gc, json, os, threading, time
def tell(path):
    while True:
        told = {"collections": [g["collections"] for g in gc.get_stats()], "uncollectable": len(gc.garbage),
                "set_aside": gc.get_freeze_count(), "threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd"))}
        with open(path + ".new", "w") as file:
            json.dump(told, file)
        os.replace(path + ".new", path)
        time.sleep(1)
threading.Thread(target=tell, args=(%r,), daemon=True).start()
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--step", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--era", choices=["modern", "older"], default="modern")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _stopped)
    var = site.prepare()
    try:
        site.register("stdio", ECHO, transport="stdio", command=STDIO, max_concurrency=64)
        _walk(site.token(), var, options)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    finally:
        shutil.rmtree(var, ignore_errors=True)


def _stopped(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends it as Ctrl-C does, with the web process and the folder."""
    raise KeyboardInterrupt


def _walk(token: str, var: Path, options: argparse.Namespace) -> None:
    port = site.free_port()
    told = var / "collector.json"
    heads = (
        "calls",
        "calls/s",
        "CPU us",
        "p99 ms",
        "RSS MB",
        "gen 0",
        "gen 1",
        "gen 2",
        "stuck",
        "aside",
        "threads",
    )
    print("".join(f"{head:>9}" for head in (*heads, "files", "load")), flush=True)
    with site.gateway(port, before=f"exec({_TELLS % str(told)!r})") as web:
        url = f"http://127.0.0.1:{port}/mcp/bench"
        made = 0
        while made < options.calls:
            try:
                run = one_run(
                    url, token, "stdio__echo", options.at_once, options.step, [web.pid], options.era
                )
            except RuntimeError as error:
                # a starved generator finds connections closed that idled for five seconds
                _resident_mb(web.pid)  # fails if the process has ended
                print(
                    f"repeated, not counted: {str(error).strip().splitlines()[-2].strip(' |')}",
                    flush=True,
                )
                continue
            made += options.step
            print(_line(made, run, web.pid, json.loads(told.read_text())), flush=True)


def _line(made: int, run: dict[str, float], pid: int, told: dict[str, Any]) -> str:
    first = (
        made,
        round(run["calls_per_second"]),
        round(run["server_cpu_us_per_call"]),
        round(run["p99_ms"]),
    )
    gone = (
        *told["collections"],
        told["uncollectable"],
        told["set_aside"],
        told["threads"],
        told["files"],
    )
    values = (*first, round(_resident_mb(pid), 1), *gone, round(os.getloadavg()[0], 1))
    return "".join(f"{value:>9}" for value in values)


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


if __name__ == "__main__":
    main()
