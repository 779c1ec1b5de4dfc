"""``runmcp`` as hosts start it: a child process and two pipes, in every era."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from mcp.client.stdio import stdio_client

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, Workspace
from mcpregistry.services.access import agents
from tests.externals import ROOT
from tests.fakes.journals import cancelled
from tests.fakes.stage import (
    ACTOR,
    MODERN,
    RawHost,
    Stage,
    envelope,
    folder,
    fresh,
    listed,
    outside,
    raw_host,
)
from tests.processes import alive
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
LEGACY = "2025-11-25"


class Floor:
    """The rows that the tests of this module share."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.journal = folder() / "journal"
        self.pids = folder() / "pids"
        self.endpoint = stage.endpoint()
        echo = stage.fake("echo", listed("echo", "refuse", "pid"))
        slow = stage.fake("slow", listed("count"), FAKE_JOURNAL=str(self.journal))
        crash = stage.fake("crash", listed("crash", "pid"))
        multi = stage.fake("multi", listed("all"))
        hostile = stage.fake("hostile", listed("garbage", "stderr", "poison", "big"))
        stubborn = stage.fake("stubborn", listed("ok"), FAKE_PIDS=str(self.pids))
        self.servers = [echo, slow, crash, multi, hostile, stubborn]
        stage.agent("local", *self.servers)


@pytest.fixture(scope="module")
def floor(stage: Stage) -> Floor:
    return Floor(stage)


@pytest.fixture
def runmcp(floor: Floor) -> Any:
    """Parameters for a ``runmcp`` with a folder of its own, so that no kept opening answer is
    there."""
    return floor.stage.runmcp("--cwd", str(folder()))


@pytest.mark.exhaustive(but=("auto-auto",))
@pytest.mark.parametrize(
    ("mode", "era"), [("legacy", "auto"), (MODERN, "auto"), ("auto", "auto"), ("auto", "legacy")]
)
async def test_the_sdks_client_lists_and_calls(floor, mode, era):
    parameters = floor.stage.runmcp("--era", era, "--cwd", str(folder()))
    # The SDK's probe waits 10 s, which a busy machine may need: keep its answer.
    async with raw_host(parameters, forked=True) as host:
        await host.ask(1, "server/discover", _meta=envelope())
    with tempfile.TemporaryFile("w+") as log:
        transport = stdio_client(parameters, errlog=log)
        async with Client(transport, mode=mode, cache=None) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            result = await client.call_tool("echo__echo", {"text": "grüß"})
            assert client.protocol_version == (LEGACY if "legacy" in (mode, era) else MODERN)
    assert names == sorted(names)
    assert "slow__count" in names
    assert result.structured_content["arguments"] == {"text": "grüß"}


async def test_progress_and_cancellation_pass_through(floor, runmcp):
    mark = fresh("cancel")
    async with raw_host(runmcp, forked=True) as host:
        await host.handshake()
        arguments = {"steps": 1000, "pause": 0.05, "mark": mark}
        call = {"name": "slow__count", "arguments": arguments, "_meta": {"progressToken": "p"}}
        host.send({"id": 7, "method": "tools/call", "params": call})
        note = await host.until(lambda m: m.get("method") == "notifications/progress")
        assert note["params"] | {"progress": 1} == {
            "progressToken": "p",
            "progress": 1,
            "total": 1000,
            "message": "step 1",
        }
        host.send(
            {"method": "notifications/cancelled", "params": {"requestId": 7, "reason": "no more"}}
        )
        await until(lambda: cancelled(floor.journal, mark))
        await host.ask(8, "tools/list")
        assert await host.end() == 0
        assert not any(m.get("id") == 7 and "result" in m for m in host.messages)
    (record,) = await outside(floor.stage.calls, arguments__contains=mark)
    assert (record.state, record.error_code) == (InvocationState.UNKNOWN, "CANCELLED")


async def test_cancels_that_come_too_late_or_twice_or_for_nothing_are_ignored(floor, runmcp):
    """As opencode sends them, after every single result."""
    mark = fresh("late")
    async with raw_host(runmcp, forked=True) as host:
        await host.handshake()
        for request_id in (1, 2):
            params = {"name": "echo__echo", "arguments": {"mark": mark}}
            host.send({"id": request_id, "method": "tools/call", "params": params})
            await host.answer(request_id)
            for wrong in (request_id, request_id, 99, "1", None):
                cancel = {"requestId": wrong, "reason": "AbortError: The operation was aborted."}
                host.send({"method": "notifications/cancelled", "params": cancel})
        answer = await host.ask(3, "tools/call", name="echo__echo", arguments={"mark": mark})
        assert answer["result"]["structuredContent"]["arguments"] == {"mark": mark}
        assert await host.end() == 0
        assert [m.get("id") for m in host.messages] == [0, 1, 2, 3]
    records = await outside(floor.stage.calls, arguments__contains=mark)
    assert [record.state for record in records] == [InvocationState.SUCCEEDED] * 3


@pytest.mark.fault
async def test_stdout_carries_the_protocol_alone_whatever_happens(floor, runmcp):
    """A crashing server, one that floods its stdout and stderr, poison values, our own errors,
    SIGTERM."""
    async with raw_host(runmcp, forked=True) as host:
        await host.handshake()
        kinds = [
            "nul",
            "nan",
            "infinity",
            "overflow",
            "huge_int",
            "big_int",
            "surrogate",
            "deep",
            "duplicate_key",
        ]
        calls = [
            ("crash__crash", {}),
            ("hostile__garbage", {"count": 10_000}),
            ("hostile__stderr", {"chunks": 20}),
            ("echo__refuse", {}),
            ("nobody__knows", {}),
            *(("hostile__poison", {"kind": kind}) for kind in kinds),
        ]
        for number, (name, arguments) in enumerate(calls, 1):
            answer = await host.ask(number, "tools/call", name=name, arguments=arguments)
            assert "result" in answer or "error" in answer
        for number, (method, params) in enumerate(
            [("no/method", {}), ("tools/call", {"name": 7}), ("tools/list", {"cursor": "old.1"})],
            100,
        ):
            assert "error" in await host.ask(number, method, **params)
        host.process.send_signal(signal.SIGTERM)
        await host.ended()
        assert all(_strict(line) for line in host.lines)


@pytest.mark.fault
async def test_call_that_a_stop_cuts_off_has_an_unknown_outcome(floor, runmcp):
    mark = fresh("stop")
    async with raw_host(runmcp, forked=True) as host:
        await host.handshake()
        call = {"name": "slow__count", "arguments": {"steps": 1000, "pause": 0.05, "mark": mark}}
        host.send({"id": 7, "method": "tools/call", "params": call})
        await until(lambda: floor.journal.exists() and mark in floor.journal.read_text())
        host.process.send_signal(signal.SIGTERM)
        answer = await host.answer(7)
    assert "OUTCOME UNKNOWN" in answer["error"]["message"]


def _strict(line: bytes) -> bool:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    message = json.loads(line.decode("utf-8"), parse_constant=refuse)
    return line.endswith(b"\n") and message["jsonrpc"] == "2.0"


@pytest.mark.exhaustive
@pytest.mark.fault
async def test_a_library_that_prints_does_not_disturb_the_protocol(floor, runmcp):
    """``sitecustomize`` runs before anything of ours, an ``atexit`` after."""
    noisy = folder()
    (noisy / "noise.py").write_text(
        "import os, sys, threading, time\n"
        "def shout():\n"
        "    while True:\n"
        "        print('noise'); sys.stdout.flush(); os.write(1, b'raw noise\\n'); os.system('echo child noise')\n"
        "        time.sleep(0.05)\n"
        "threading.Thread(target=shout, daemon=True).start()\n"
    )
    program = (
        f"import runpy, sys; sys.path[:0] = [{str(noisy)!r}, '.']; sys.argv = ['manage.py', 'runmcp', '--cwd', {str(folder())!r}]; "
        "import manage, mcpregistry.gateway.stdio.preload as d; opened = d.claim_pipe; "
        "d.claim_pipe = lambda *a: (opened(*a), __import__('noise'))[0]; manage.main()"
    )
    async with raw_host(runmcp, [sys.executable, "-c", program]) as host:
        await host.handshake()
        for number in range(1, 6):
            assert "result" in await host.ask(number, "tools/call", name="echo__echo", arguments={})
        assert await host.end() == 0
        assert "raw noise" in host.log()
        assert "child noise" in host.log()
        assert len(host.messages) == 6


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_a_line_of_more_than_16_mib_is_refused_and_the_next_one_served(floor, runmcp, era):
    async with raw_host(runmcp, forked=True) as host:
        if era == LEGACY:
            await host.handshake()
        meta = {"_meta": envelope()} if era == MODERN else {}
        big = {"name": "echo__echo", "arguments": {"x": "x" * (17 * 1024 * 1024)}}
        host.send({"id": 5, "method": "tools/call", "params": big | meta})
        assert (await host.until(lambda m: m.get("id", 0) is None))["error"]["code"] == -32700
        assert "result" in await host.ask(
            6, "tools/call", name="echo__echo", arguments={"x": 1}, **meta
        )
        assert await host.end() == 0


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_what_is_no_message_is_answered_and_the_next_one_served(floor, runmcp, era):
    """Silence would keep its host waiting for ever."""
    async with raw_host(runmcp, forked=True) as host:
        meta = {"_meta": envelope()} if era == MODERN else {}
        await (host.handshake() if era == LEGACY else host.ask(1, "server/discover", **meta))
        codes = {
            b"garbage": -32700,
            b"\xff\xfe": -32700,
            b"[]": -32600,
            b'{"jsonrpc":"2.0","id":null,"method":"ping"}': -32600,
            b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}': -32600,
            b'{"jsonrpc":"2.0","method":"x","params":{"q":"1","q":"2"}}': -32600,
        }
        for number, raw in enumerate(codes, 1):
            host.process.stdin.write(raw + b"\n")
            await host.until(lambda _, number=number: len(refused(host)) == number)
        assert [each["error"]["code"] for each in refused(host)] == [*codes.values()]
        deep: Any = 0
        for _ in range(500):  # read by our parser, not by the SDK's
            deep = [deep]
        assert (await host.ask(5, "tools/list", x=deep, **meta))["error"]["code"] == -32700
        assert "result" in await host.ask(
            6, "tools/call", name="echo__echo", arguments={"x": 1}, **meta
        )
        assert await host.end() == 0


def refused(host: RawHost) -> list[dict[str, Any]]:
    return [message for message in host.messages if message.get("id", 0) is None]


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_half_a_character_in_arguments_is_replaced(floor, runmcp, era):
    async with raw_host(runmcp, forked=True) as host:
        meta = {"_meta": envelope()} if era == MODERN else {}
        await (host.handshake() if era == LEGACY else host.ask(1, "server/discover", **meta))
        answer = await host.ask(
            5, "tools/call", name="echo__echo", arguments={"x": "cut \ud83d"}, **meta
        )
        seen = json.loads(answer["result"]["content"][0]["text"])
        assert seen["arguments"] == {"x": "cut \N{REPLACEMENT CHARACTER}"}
        host.process.stdin.write(
            b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"x":NaN}}\n'
        )
        assert (await host.until(lambda m: m.get("id") == 6))["error"]["code"] == -32700
        assert await host.end() == 0


@pytest.mark.exhaustive
async def test_large_arguments_and_results_below_the_limits_arrive(floor, runmcp):
    async with raw_host(runmcp, forked=True) as host:
        await host.handshake()
        text = "ü" * 200_000
        answer = await host.ask(1, "tools/call", name="echo__echo", arguments={"x": text})
        assert answer["result"]["structuredContent"]["arguments"]["x"] == text


@pytest.mark.exhaustive
@pytest.mark.fault
async def test_a_host_that_stops_reading_delays_nothing_but_itself(floor, runmcp):
    """Its pipe is full; the process still hears it, ends when told, and leaves nothing behind."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        runmcp.command,
        *runmcp.args,
        cwd=runmcp.cwd,
        env=runmcp.env,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        limit=1024,
    )
    try:
        host = RawHost.__new__(RawHost)  # only for its way to write
        host.process = process
        info = {"name": "raw", "version": "1"}
        host.send(
            {
                "id": 0,
                "method": "initialize",
                "params": {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info},
            }
        )
        host.send({"method": "notifications/initialized"})
        for number in range(1, 51):
            params = {"name": "hostile__big", "arguments": {"size": 200_000}}
            host.send({"id": number, "method": "tools/call", "params": params})
        agent_calls = lambda: floor.stage.calls(tool_name="big", state=InvocationState.SUCCEEDED)  # noqa: E731
        await until(lambda: outside(lambda: len(agent_calls()) >= 50))
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        # wait() would also wait for the full pipe
        await until(lambda: process.returncode is not None)
        await until(lambda: not alive(family))
    finally:
        if process.returncode is None:
            process.kill()
        process._transport.close()  # the pipes that nobody has read


ENDINGS = {
    "the host closes stdin": None,
    "SIGTERM": signal.SIGTERM,
    "SIGINT": signal.SIGINT,
    "SIGKILL": signal.SIGKILL,
}


@pytest.mark.exhaustive(but=("the host closes stdin",))
@pytest.mark.fault
@pytest.mark.parametrize("ending", ENDINGS)
async def test_no_process_is_left_behind_when(floor, runmcp, ending):
    """Also not a server that ignores every polite signal, nor the daemon that it has detached."""
    known = set(floor.pids.read_text().split()) if floor.pids.exists() else set()
    async with raw_host(runmcp) as host:
        await host.handshake()
        assert "result" in await host.ask(1, "tools/call", name="stubborn__ok", arguments={})
        host.send(
            {
                "id": 2,
                "method": "tools/call",
                "params": {"name": "slow__count", "arguments": {"pause": 60}},
            }
        )
        await until(lambda: len(host.family()) >= 3)
        # the daemon names itself, too
        await until(lambda: len(set(floor.pids.read_text().split()) - known) == 2)
        stubborn = [psutil.Process(int(pid)) for pid in set(floor.pids.read_text().split()) - known]
        family = [*host.family(), *stubborn]
        number = ENDINGS[ending]
        began = time.monotonic()
        if number is None:
            await host.end()
        else:
            host.process.send_signal(number)
            await host.ended()
        await until(lambda: not alive(family))
        print(f"{ending}: {time.monotonic() - began:.1f} s")
        assert all(_strict(line) for line in host.lines)


async def test_a_workspace_decides_endpoint_and_agent_by_the_directory(floor):
    home = folder()

    def rows() -> None:
        stage = floor.stage
        slug = fresh("there")
        endpoint = stage.endpoint(slug, naming_style="single")
        stage.agent(slug, floor.servers[3])
        agent = Agent.objects.get(slug=slug)
        workspace = Workspace(directory=str(home), endpoint=endpoint, agent=agent)
        agents.save_workspace(workspace=workspace, actor=ACTOR)

    await outside(rows)
    inside = home / "src" / "deep"
    beside = Path(f"{home}-beside")
    inside.mkdir(parents=True)
    for directory, expected in ((inside, ["multi_all"]), (home, ["multi_all"]), (beside, None)):
        async with raw_host(floor.stage.runmcp("--cwd", str(directory)), forked=True) as host:
            await host.handshake()
            names = [tool["name"] for tool in (await host.ask(1, "tools/list"))["result"]["tools"]]
            assert await host.end() == 0
        assert names == expected or (expected is None and "multi__all" in names)


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    "wrong", [["--endpoint", "nowhere"], ["--agent", "nobody"], ["--era", "stone"], ["--bogus"]]
)
async def test_wrong_arguments_are_told_on_stderr_with_an_exit_code(floor, wrong):
    async with raw_host(floor.stage.runmcp(*wrong), forked=True) as host:
        assert await host.ended() in {1, 2}
        assert host.lines == []
        said = host.log()
    assert wrong[-1] in said
    assert "Traceback" not in said
    if wrong[0] == "--endpoint":
        assert "Available: default" in said


@pytest.mark.exhaustive
async def test_help_and_a_missing_database_are_for_people(floor):
    async with raw_host(floor.stage.runmcp("--help")) as host:
        assert await host.ended() == 0
        assert b"--endpoint" in b"".join(host.lines)
    none = folder() / "none.sqlite3"
    nowhere = floor.stage.runmcp("--cwd", str(folder()), DATABASE_URL=f"sqlite:///{none}")
    async with raw_host(nowhere, forked=True) as host:
        assert await host.ended() == 1
        assert host.lines == []
        assert "There is no site in" in host.log()
    assert not none.exists()


async def test_in_an_empty_place_it_refuses_and_makes_nothing(floor):
    empty = folder() / "empty"
    nothing = {
        "SLIPSNISSE_VAR": str(empty),
        "SLIPSNISSE_KEYS": "",
        "SLIPSNISSE_SECRET_KEY": "",
        "DATABASE_URL": "",
    }
    named = ("--endpoint", "default", "--agent", "local")
    async with raw_host(floor.stage.runmcp(*named, **nothing)) as host:
        assert await host.ended() == 1
        assert host.lines == []
        said = host.log()
    assert f"There is no site in {empty}" in said
    assert "connect --repair" in said
    assert "Traceback" not in said
    assert not empty.exists()


async def test_it_starts_fast_stays_small_and_loads_no_model_library(floor, runmcp):
    async with raw_host(runmcp) as host:
        began = time.monotonic()
        await host.handshake()
        first = time.monotonic() - began
        await host.ask(1, "tools/list")
        listed_after = time.monotonic() - began
        await host.ask(2, "tools/call", name="echo__echo", arguments={})
        process = psutil.Process(host.process.pid)
        memory = process.memory_info().rss / 1e6
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        print(f"first answer {first:.2f} s, first list {listed_after:.2f} s, {memory:.0f} MB")
        assert memory < 120
        assert "litellm" not in maps
        assert await host.end() == 0


@pytest.mark.exhaustive
async def test_litellm_is_loaded_in_neither_door():
    code = (
        "import sys; from django.core.management import load_command_class as l; import django; django.setup(); "
        "l('mcpregistry', 'runmcp'); import mcpregistry.gateway.stdio.stdio_server, mcpregistry.gateway.http.mcp_app; "
        "import controlplane.asgi; print([m for m in sys.modules if m.startswith(('litellm', 'openai'))])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().strip().splitlines()[-1] == "[]"
