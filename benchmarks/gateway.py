"""What the gateway costs, measured beside what it is compared with, in one run.

    .venv/bin/python -m benchmarks.gateway [--quick] [--out FILE]

Prints tables and writes JSON. Policy (a rule with a condition) and durable audit (SQLite,
synchronous FULL) are on, and every call carries a progress token, as those of real hosts do. On a
busy machine calls per second swing; CPU microseconds per call are steady, so compare those. Linux
only (it reads /proc).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import load, site

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
ECHO = [{"name": "echo", "description": "Echo", "inputSchema": SCHEMA}]
OTHERS = {"prompt": [{"name": "hello"}], "resource": [{"uri": "bench://note", "name": "note"}]}
DIRECT = "SDK HTTP server, called directly"
STDIO = [sys.executable, "-S", str(site.ROOT / "benchmarks" / "echo_stdio.py")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="Make a tenth of the calls, and one repetition."
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="Fraction of the calls to make, for example 0.5."
    )
    parser.add_argument(
        "--calls-only",
        action="store_true",
        help="Measure only calls: no starts, lists and changes.",
    )
    parser.add_argument(
        "--out", type=Path, default=site.ROOT / "benchmarks" / "results" / "gateway.json"
    )
    options = parser.parse_args()
    var = site.prepare()
    try:
        results = {"machine": machine()} | _measure(
            options.quick, options.share, calls_only=options.calls_only
        )
    finally:
        shutil.rmtree(var, ignore_errors=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=2))
    print(f"\nWritten to {options.out}")


def _measure(quick: bool, share: float, *, calls_only: bool) -> dict[str, Any]:
    echo_port = site.free_port()
    port = site.free_port()
    site.register("stdio", ECHO, OTHERS, transport="stdio", command=STDIO, max_concurrency=64)
    address = f"http://127.0.0.1:{echo_port}/mcp"
    site.register(
        "http",
        ECHO,
        transport="http",
        url=address,
        allowed_networks=["127.0.0.0/8"],
        max_concurrency=64,
    )
    token = site.token()
    echo = ["-m", "benchmarks.echo_server", str(echo_port)]
    with site.child(echo, echo_port) as direct, site.gateway(port) as web:
        url = f"http://127.0.0.1:{port}/mcp/bench"
        calls = _calls(quick, share, direct.pid, address, web.pids, url, token)
        if calls_only:
            return {"calls": calls}
        web_mb = site.peak_mb(web.pid)
        change = asyncio.run(_change_latency(url, token, 5 if quick else 20))
    return {
        "calls": calls,
        "stdio_direct": _stdio_direct(300 if quick else 3000),
        "change_to_notification_ms": change,
        "start": _starts(2 if quick else 5) | {"web_peak_mb": round(web_mb)},
        "lists": _lists(quick),
    }


def _calls(
    quick: bool, share: float, direct: int, address: str, web: list[int], url: str, token: str
) -> list[dict[str, Any]]:
    """Every variant in both eras: tools at every concurrency, prompts and resources at ten."""
    there = (address, [direct])
    here = (url, web)
    tools = [
        (DIRECT, "echo", *there),
        ("gateway -> stdio", "stdio__echo", *here),
        ("gateway -> HTTP", "http__echo", *here),
    ]
    prompts = [
        (f"{DIRECT}: prompt", "prompt:hello", *there),
        ("gateway -> stdio: prompt", "prompt:stdio__hello", *here),
    ]
    uri = "resource:bench://note"
    resources = [(f"{DIRECT}: resource", uri, *there), ("gateway -> stdio: resource", uri, *here)]
    rows = []
    for era in ("modern", "older"):
        for concurrency in (1, 10, 50):
            rows += _compared(tools, token, era, concurrency, quick, share)
        for more in (prompts, resources):
            rows += _compared(more, token, era, 10, quick, share)
    _print_calls(rows)
    return rows


def _compared(
    variants: list[Any], token: str, era: str, concurrency: int, quick: bool, share: float
) -> list[dict[str, Any]]:
    """Interleaved repeats of these; the median repeat counts. The first of them is what the others
    are compared with."""
    count = round({1: 1500, 10: 4000, 50: 6000}[concurrency] * (0.1 if quick else share))
    runs: dict[str, list[dict[str, float]]] = {name: [] for name, *_ in variants}
    for turn in range(1 if quick else 3):
        for name, what, target, pids in variants:
            if not turn:
                _generate(target, token, what, concurrency, max(50, count // 10), era)  # warm up
            runs[name].append(one_run(target, token, what, concurrency, count, pids, era))
    rows = []
    for name in runs:
        middle = sorted(runs[name], key=lambda run: run["calls_per_second"])[len(runs[name]) // 2]
        rows.append(
            {"what": name, "era": era, "concurrency": concurrency, "direct": variants[0][0]}
            | middle
        )
    return rows


def one_run(
    url: str, token: str, what: str, concurrency: int, count: int, pids: list[int], era: str
) -> dict[str, float]:
    """One run of ``benchmarks.load``, with the CPU of a call in these processes."""
    before = sum(map(site.cpu_seconds, pids))
    run = _generate(url, token, what, concurrency, count, era)
    return run | {
        "server_cpu_us_per_call": round((sum(map(site.cpu_seconds, pids)) - before) / count * 1e6)
    }


def _generate(
    url: str, token: str, what: str, concurrency: int, count: int, era: str
) -> dict[str, float]:
    argv = [
        sys.executable,
        "-m",
        "benchmarks.load",
        url,
        token,
        what,
        str(concurrency),
        str(count),
        era,
    ]
    done = subprocess.run(argv, cwd=site.ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv[2:])}: {done.stderr}")
    return dict(json.loads(done.stdout))


def _print_calls(rows: list[dict[str, Any]]) -> None:
    print(
        f"\n{'what':42}{'era':8}{'at once':>8}{'calls/s':>9}{'of direct':>10}{'p50 ms':>8}{'added':>7}{'p99 ms':>8}{'CPU us':>8}"
    )
    for row in rows:
        like = row | {"what": row["direct"]}
        base = next(
            r for r in rows if all(r[key] == like[key] for key in ("what", "concurrency", "era"))
        )
        ratio = row["calls_per_second"] / base["calls_per_second"]
        added = row["p50_ms"] - base["p50_ms"]
        print(
            f"{row['what']:42}{row['era']:8}{row['concurrency']:>8}{row['calls_per_second']:>9.0f}{ratio:>9.2f}x"
            f"{row['p50_ms']:>8.2f}{added:>+7.2f}{row['p99_ms']:>8.1f}{row['server_cpu_us_per_call']:>8.0f}"
        )


def _stdio_direct(count: int) -> dict[str, float]:
    """The stdio downstream, called by the SDK's own client one call after the other."""

    async def run() -> dict[str, float]:
        from mcp import Client, StdioServerParameters

        async with Client(StdioServerParameters(command=STDIO[0], args=STDIO[1:])) as client:
            await client.list_tools()
            times = []
            for _ in range(count):
                started = time.perf_counter()
                await client.call_tool("echo", {"text": "x" * 100})
                times.append(time.perf_counter() - started)
        return {"p50_ms": round(sorted(times)[count // 2] * 1000, 3)}

    result = asyncio.run(run())
    print(
        f"\nThe same stdio server through the SDK's client, one at a time: p50 {result['p50_ms']} ms"
    )
    return result


async def _change_latency(url: str, token: str, times: int) -> dict[str, float]:
    """From a commit in this process to the notification at a listening host, in milliseconds."""
    from mcp import types as t

    from mcpregistry.db import db_call
    from mcpregistry.models import Tool

    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        load.request(
            url, token, "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
        )
    )
    await reader.readuntil(b"acknowledged")
    name = t.ToolListChangedNotification.model_fields["method"].default.encode()
    taken = []
    for turn in range(times):
        await db_call(Tool.objects.filter(server__slug="http").update, enabled=turn % 2 == 1)
        started = time.perf_counter()
        await asyncio.wait_for(reader.readuntil(name), 10)
        taken.append((time.perf_counter() - started) * 1000)
    writer.close()
    taken.sort()
    result = {"p50": round(taken[len(taken) // 2], 1), "max": round(taken[-1], 1)}
    print(
        f"\nConfiguration change to host notification: p50 {result['p50']} ms, max {result['max']} ms"
    )
    return result


def _lists(quick: bool) -> list[dict[str, Any]]:
    """``tools/list`` of one page walk, by number of tools, and its CPU in the gateway."""
    rows = []
    print(f"\n{'tools/list':12}{'pages':>7}{'bytes':>10}{'ms (all)':>10}{'CPU us':>9}")
    for size in (10, 1000, 5000):
        rows.append(asyncio.run(_list(size, 5 if quick else 50)))
        row = rows[-1]
        print(
            f"{size:<12}{row['pages']:>7}{row['bytes']:>10}{row['ms']:>10.2f}{row['cpu_us']:>9.0f}"
        )
    return rows


async def _list(size: int, times: int) -> dict[str, Any]:
    from mcpregistry.models import Grant, Server

    await asyncio.to_thread(Grant.objects.all().delete)
    extra = [
        {"name": f"tool_{n}", "description": "Does a thing. " * 6, "inputSchema": SCHEMA}
        for n in range(size)
    ]
    await asyncio.to_thread(
        site.register, f"many{size}", extra, transport="stdio", command=[*STDIO, str(size)]
    )
    token = await asyncio.to_thread(site.token)
    port = site.free_port()
    url = f"http://127.0.0.1:{port}/mcp/bench"
    with site.gateway(port) as web:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024 * 1024)
        pages, count = await _walk(reader, writer, url, token)  # first time: the bytes are made
        before = site.cpu_seconds(web.pid)
        started = time.perf_counter()
        for _ in range(times):
            await _walk(reader, writer, url, token)
        wall = time.perf_counter() - started
        cpu = site.cpu_seconds(web.pid) - before
        writer.close()
    await asyncio.to_thread(Server.objects.filter(slug=f"many{size}").update, lifecycle="disabled")
    return {
        "tools": size,
        "pages": pages,
        "bytes": count,
        "ms": wall / times * 1000,
        "cpu_us": cpu / times * 1e6,
    }


async def _walk(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, token: str
) -> tuple[int, int]:
    pages = 0
    count = 0
    cursor = None
    while True:
        params = {"cursor": cursor} if cursor else {}
        body = await load.exchange(reader, writer, load.request(url, token, "tools/list", params))
        pages = pages + 1
        count = count + len(body)
        cursor = json.loads(body)["result"].get("nextCursor")
        if cursor is None:
            return pages, count


def _starts(times: int) -> dict[str, Any]:
    """Seconds from exec to the first answer and the first list of ``runmcp``, and its memory."""
    from benchmarks.starts import runmcp_start, web_start

    runs = [runmcp_start() for _ in range(times + 1)]
    first = runs[0]
    later = runs[1:]
    middle = {key: sorted(run[key] for run in later)[len(later) // 2] for key in later[0]}
    web = sorted(web_start() for _ in range(times))[times // 2]
    print(
        f"\nrunmcp, first start:       answer {first['answer_s']:.2f} s, tools/list {first['list_s']:.2f} s"
    )
    print(
        f"runmcp, later starts:      answer {middle['answer_s']:.2f} s, tools/list {middle['list_s']:.2f} s, "
        f"first call {middle['call_s']:.2f} s, peak {middle['peak_mb']:.0f} MB"
    )
    print(f"web process, first HTTP 200: {web:.2f} s")
    return {"runmcp_first": first, "runmcp": middle, "web_first_200_s": web}


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "python": sys.version.split()[0], "load": os.getloadavg()[0]}


if __name__ == "__main__":
    main()
