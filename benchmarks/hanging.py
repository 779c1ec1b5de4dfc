"""How long calls of an expert tool, and a person's test of a server, take while fifty other servers
hang.

    python -m benchmarks.hanging [--calls 30] [--servers 50]

A site is made by `manage.py up` in a throw-away folder, with the demo's expert tool (its model is
scripted, its tools are real servers). Half of the idle calls are made before the servers are added,
half after they were deleted. The servers read their input, never answer, and may take ten minutes
to connect. Then a server that works is tested; and all that hang are disabled, until the last of
their processes has gone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.first_answer import TOOL, Up, ask

MARK = "hangs-for-a-benchmark"
HANGS = [sys.executable, "-S", "-c", f"import sys; sys.stdin.read()  # {MARK}"]
AIM = 1.5


def main() -> None:
    """Print the times, and their ratio beside the aim."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--calls",
        type=int,
        default=30,
        help="Number of calls without the servers that hang, and again with them.",
    )
    parser.add_argument("--servers", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipsnisse-hanging-", dir="/tmp") as folder:
        var = Path(folder) / "var"
        up = Up(var)
        try:
            url = up.says(r"the site answers at (http\S+?)/ ")
            token = up.says(r"Bearer token, shown only once:  (\S+)")
            up.read_on()
            _measure(f"{url}/mcp/default", token, var, options.calls, options.servers)
        finally:
            up.end()


def _measure(url: str, token: str, var: Path, calls: int, servers: int) -> None:
    os.environ |= {"SLIPSNISSE_VAR": str(var), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    import django

    django.setup()
    from mcpregistry.models import Server, ServerTest
    from mcpregistry.services.servers import checks, lifecycle

    _times(url, token, 5)  # whatever is loaded by the first
    idle = _times(url, token, calls // 2)
    hanging = [_hanging(number) for number in range(servers)]
    _until(
        lambda: Server.objects.filter(check_until__isnull=False, slug__startswith="hangs").exists()
    )
    time.sleep(20)  # one more tick of the clock, which checks what is due
    beside = _times(url, token, calls)
    running = _processes()
    began = time.perf_counter()
    test = checks.request_test(server=Server.objects.get(slug="time"), actor="bench")
    _until(lambda: ServerTest.objects.filter(pk=test.pk, finished_at__isnull=False).exists())
    tested = time.perf_counter() - began
    began = time.perf_counter()
    for server in hanging:
        lifecycle.disable_server(server=server, actor="bench")
    disabled = time.perf_counter() - began
    _until(lambda: not _processes())
    gone = time.perf_counter() - began - disabled
    idle += _times(url, token, calls - calls // 2)
    ratio = statistics.median(beside) / statistics.median(idle)
    print(f"{TOOL}: {calls} calls, one after the other")
    for name, times in (
        ("idle", idle),
        (f"with {servers} servers that hang ({running} processes)", beside),
    ):
        print(f"  {name:64} {statistics.median(times):6.2f} s median {max(times):6.2f} s at most")
    print(f"  ratio of the medians: {ratio:.2f} (aim: {AIM:g})")
    print(f"A test of a working server, while the others hang: {tested:.2f} s")
    print(
        f"All servers were disabled in {disabled:.2f} s. Their last process ended {gone:.2f} s later"
    )


def _times(url: str, token: str, count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        answer, _ = ask(url, token)
        found.append(time.perf_counter() - began)
        if '"isError": true' in answer or '"code"' in answer:
            raise RuntimeError(answer)
    return found


def _hanging(number: int) -> object:
    from mcpregistry.models import Server
    from mcpregistry.services.servers import lifecycle

    row = Server(slug=f"hangs-{number}", transport="stdio", command=HANGS, connect_timeout=600)
    row = lifecycle.save_server(server=row, actor="bench")
    return lifecycle.confirm_launch(server=row, actor="bench", launch_hash=row.launch_hash())


def _processes() -> int:
    """How many of the servers run, without the processes that watch over them."""
    count = 0
    for process in psutil.process_iter():
        try:
            count += process.cmdline()[:3] == HANGS[:3] and MARK in process.cmdline()[3]
        except (psutil.Error, IndexError):
            continue
    return count


def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(1_200):
        if is_so():
            return
        time.sleep(0.1)
    raise RuntimeError("not within two minutes")


if __name__ == "__main__":
    main()
