"""Limits of a stdio server's processes: what is beyond them is refused, or ends the whole tree, and
the caller hears why."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mcpregistry.domain.errors import DownstreamError, ResourceLimit
from mcpregistry.domain.servers.target import ResourceBounds, Sandbox
from tests.downstream.conftest import Bench, gone, offspring
from tests.externals import NODE, node_program, npm_module
from tests.fakes.targets import SERVERS, stdio_target
from tests.waiting import HANG_LIMIT

Make = Callable[..., Bench]
HANG = 3600  # seconds: whoever waits for its end waits longer than the hang limit
STRICT = pytest.param(True, marks=pytest.mark.bubblewrap)


def hungry(tmp_path: Path, bounds: ResourceBounds, *, strict: bool = False, **env: str) -> Any:
    sandbox = (
        Sandbox(home=str(tmp_path / "home"), read=(str(SERVERS),), strict=True) if strict else None
    )
    home = {} if strict else {"HOME": str(tmp_path)}
    return stdio_target("hungry", bounds=bounds, sandbox=sandbox, env=home | env)


async def use(here: Bench, **wanted: int) -> str:
    return (await here.call("use", json.dumps(wanted).encode(), timeout=HANG_LIMIT))["content"][0][
        "text"
    ]


@pytest.mark.exhaustive(but=("True",))
@pytest.mark.fault
@pytest.mark.parametrize("strict", [False, STRICT])
async def test_more_memory_than_its_limit_ends_the_tree_and_the_caller_hears_how_much(
    bench: Make, tmp_path: Path, strict: bool
):
    """Pages that its processes share are counted once: 100 MB in four processes are no 400."""
    before = offspring()
    here = bench(hungry(tmp_path, ResourceBounds(memory_mb=220, processes=9), strict=strict))
    assert await use(here, shared=100, pause=1) == "ok"
    with pytest.raises(
        ResourceLimit, match=r"used \d+ MB of memory, and its limit is 220\."
    ) as caught:
        await use(here, others=300, pause=HANG)
    assert caught.value.sent
    assert int(re.findall(r"used (\d+) MB", str(caught.value))[0]) > 220
    assert "raise “Memory (MB)”" in caught.value.remedy
    for pid in offspring() - before:
        await gone(pid)
    assert await use(here) == "ok", "the next call starts it anew"


@pytest.mark.fault
async def test_more_processes_or_processor_time_than_its_limit_ends_it(bench: Make, tmp_path: Path):
    with pytest.raises(ResourceLimit, match=r"used [45] processes, and its limit is 3\."):
        await use(bench(hungry(tmp_path, ResourceBounds(processes=3))), processes=4, pause=HANG)
    # That it ends means that somebody looks; how often, on a busy machine, is the machine's.
    with pytest.raises(
        ResourceLimit, match=r"used \d+ seconds of processor time, and its limit is 1\."
    ):
        await use(bench(hungry(tmp_path, ResourceBounds(cpu_seconds=1))), seconds=HANG, pause=HANG)


@pytest.mark.exhaustive
@pytest.mark.fault
@pytest.mark.attack
async def test_files_in_memory_and_threads_count(bench: Make, tmp_path: Path):
    here = bench(hungry(tmp_path, ResourceBounds(memory_mb=150)))
    assert await use(here, memory_file=20) == "ok"
    with pytest.raises(ResourceLimit, match=r"used \d+ MB of memory, and its limit is 150\."):
        await use(here, memory_file=200, pause=HANG)
    here = bench(hungry(tmp_path, ResourceBounds(processes=4)))
    assert await use(here, threads=30) == "ok"
    with pytest.raises(ResourceLimit, match=r"used \d+ threads, and its limit is 64\."):
        await use(here, threads=100, pause=HANG)


@pytest.mark.fault
async def test_files_beyond_its_limits_are_refused(bench: Make, tmp_path: Path):
    here = bench(hungry(tmp_path, ResourceBounds(file_mb=10, open_files=64)))
    assert await use(here, files=30, file=9) == "done done"
    assert await use(here, files=100, file=11) == "EMFILE EFBIG"


@pytest.mark.exhaustive
@pytest.mark.node
async def test_the_default_of_memory_lets_node_start(bench: Make, tmp_path: Path):
    """It reserves far more than it uses: a limit of address space would end it at once."""
    assert NODE.found
    program = (
        node_program(),
        npm_module("@modelcontextprotocol/server-everything/dist/index.js"),
        "stdio",
    )
    here = bench(
        stdio_target("node", argv=program, bounds=ResourceBounds(memory_mb=4096, processes=256))
    )
    assert (await here.pool.discover(1)).tools
    pid = next(event.pid for event in here.events if event.pid)
    assert psutil.Process(pid).memory_info().vms > 500 << 20
    few = bench(stdio_target("node", argv=program, bounds=ResourceBounds(memory_mb=300)))
    assert (await few.pool.discover(1)).tools, "nor does a small one"


@pytest.mark.fault
@pytest.mark.parametrize("strict", [False, STRICT])
async def test_what_a_killed_supervisor_leaves_is_ended(bench: Make, tmp_path: Path, strict: bool):
    here = bench(
        hungry(
            tmp_path,
            ResourceBounds(),
            strict=strict,
            FAKE_PIDS=str(tmp_path / ("home" if strict else "") / "pids"),
        )
    )
    before = offspring()
    await use(here)
    tree = offspring() - before
    supervisor = next(
        each.pid for each in psutil.Process(os.getpid()).children() if each.pid in tree
    )
    sent = asyncio.Event()
    call = asyncio.create_task(
        here.call("use", b'{"pause":%d}' % HANG, timeout=HANG_LIMIT, on_sent=sent.set)
    )
    await sent.wait()  # a call that comes after the kill was noticed starts the server anew
    os.kill(supervisor, signal.SIGKILL)
    with pytest.raises(DownstreamError):
        await call
    for pid in tree:
        await gone(pid)


@pytest.mark.fault
@pytest.mark.bubblewrap
async def test_in_namespaces_of_its_own_a_server_is_asked_before_it_is_killed(
    bench: Make, tmp_path: Path
):
    ended = tmp_path / "home" / "ended"
    here = bench(hungry(tmp_path, ResourceBounds(), strict=True, FAKE_ENDED=str(ended)))
    await use(here)
    await here.pool.disconnect(1)
    assert ended.read_text() == "asked"
