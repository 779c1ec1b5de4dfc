"""The stdio transport: exact environment, bounded lines, and a process tree that always ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from mcp.client.stdio import PROCESS_TERMINATION_TIMEOUT

from mcpregistry.domain.errors import (
    ConnectionFailed,
    DownstreamError,
    ProtocolError,
    ResourceLimit,
    TimedOut,
)
from mcpregistry.downstream.server_call import ServerCall
from mcpregistry.downstream.transports.stdio import EXIT_GRACE, OutputLines, Tail
from mcpregistry.downstream.transports.wire import GARBAGE_LINES
from tests.downstream.conftest import SENDING, Bench, gone
from tests.fakes.targets import stdio_target
from tests.processes import below, runs
from tests.waiting import HANG_LIMIT, until

Make = Callable[..., Bench]
MIB = 1024 * 1024
UNENDING = {"request_timeout": 10_000.0}  # whoever waits for the end of it hangs


async def test_the_child_sees_exactly_the_configured_environment_and_path(
    bench: Make, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("SLIPSNISSE_SECRET_CANARY", "leak")
    leaked = os.open("/", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    target = stdio_target("envdump", "one two", "", env={"TOKEN": "t$HOME"}, cwd=str(tmp_path))
    facts = json.loads((await bench(target).call("env"))["content"][0]["text"])
    os.close(leaked)
    assert facts["env"] == {"TOKEN": "t$HOME", "PATH": os.environ["PATH"]}
    assert facts["cwd"] == str(tmp_path)
    assert facts["umask"] == 0o077
    assert facts["descriptors"] == [0, 1, 2]
    assert facts["argv"] == ["one two", ""]


async def test_a_configured_locale_and_path_are_kept(bench: Make):
    target = stdio_target("envdump", env={"LC_CTYPE": "C.UTF-8", "PATH": "/usr/bin:/bin"})
    facts = json.loads((await bench(target).call("env"))["content"][0]["text"])
    assert facts["env"] == {"LC_CTYPE": "C.UTF-8", "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"argv": ()}, "no command"),
        ({"argv": ("no-such-command-here",)}, "no-such-command-here"),
        ({"argv": ("/etc/passwd",)}, "/etc/passwd"),
        ({"cwd": "/no/such/directory"}, "/no/such/directory"),
        ({"argv": ("cat", "a\0b")}, "NUL"),
        ({"env": {"A": "b\0"}}, "NUL"),
    ],
)
async def test_what_cannot_be_started_is_said_at_once_and_nothing_was_sent(
    bench: Make, change: dict, word: str
):
    with pytest.raises(ConnectionFailed, match=word) as caught:
        await bench(stdio_target("echo", **change)).call("echo")
    assert not caught.value.sent


async def test_a_server_that_dies_at_start_leaves_its_last_words(bench: Make):
    here = bench(stdio_target("crash", env={"FAKE_CRASH": "start"}))
    with pytest.raises(ConnectionFailed) as caught:
        await here.call("pid")
    assert not caught.value.sent
    assert "cannot find my configuration" in here.pool.read_stderr_tail(1)
    assert "cannot find my configuration" in (await here.event("stderr")).detail


async def test_a_crash_during_a_call_is_told_at_once_and_the_next_call_starts_anew(bench: Make):
    here = bench(stdio_target("crash", limits=UNENDING))
    first = await here.call("pid")
    with pytest.raises(ConnectionFailed) as caught:
        await here.call("crash")
    assert caught.value.sent
    assert "about to fall over" in (await here.event("stderr")).detail
    assert await here.call("pid") != first


async def test_kill_9_of_a_server_during_a_call_is_told_at_once(bench: Make):
    here = bench(stdio_target("hostile", limits=UNENDING))
    call = asyncio.create_task(here.call("hang"))
    pid = (await here.event("state", "connected")).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionFailed):
        async with asyncio.timeout(HANG_LIMIT):
            await call


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.attack
@pytest.mark.parametrize("tool", ["huge_line", "endless_line"])
async def test_a_line_beyond_the_limit_is_a_typed_error_within_bounds(bench: Make, tool: str):
    here = bench(stdio_target("hostile", limits=UNENDING), stdio_target("echo", server_id=2))
    await here.pool.connect(1)
    await here.pool.connect(2)
    process = psutil.Process()
    before = process.memory_info().rss
    call = asyncio.create_task(here.call(tool))
    while not call.done():  # that it ends at all: bounded by the limit, not by the size of the line
        await here.pool.call(ServerCall(2, "echo", b"{}", timeout=HANG_LIMIT))
    with pytest.raises(ResourceLimit) as caught:
        await call
    assert caught.value.sent
    assert process.memory_info().rss - before < 64 * MIB


async def test_an_answer_just_below_the_limit_passes_and_one_above_its_own_bound_fails_alone(
    bench: Make,
):
    here = bench(stdio_target("hostile"))
    big = await here.call("big", b'{"size": 4000000}')
    assert len(big["content"][0]["text"]) == 4_000_000
    with pytest.raises(ResourceLimit):
        await here.call("big", b'{"size": 5000}', max_result_bytes=4000)
    assert await here.call("big", b'{"size": 3}', max_result_bytes=4000)
    assert (
        len(
            [event for event in here.events if event.kind == "state" and event.state == "connected"]
        )
        == 1
    )


@pytest.mark.exhaustive
@pytest.mark.attack
async def test_a_flood_of_garbage_is_counted_and_cut_off(bench: Make):
    here = bench(stdio_target("hostile"))
    with pytest.raises(ProtocolError, match=f"{GARBAGE_LINES}"):
        await here.call("garbage", timeout=HANG_LIMIT)
    assert (await here.event("state", "error")).code == "PROTOCOL_ERROR"


async def test_a_little_garbage_disturbs_nothing(bench: Make):
    result = await bench(stdio_target("hostile")).call(
        "garbage", b'{"count": 999}', timeout=HANG_LIMIT
    )
    assert result["content"][0]["text"] == "after garbage"


@pytest.mark.attack
async def test_a_flood_of_notices_neither_blocks_nor_breaks(bench: Make):
    here = bench(stdio_target("hostile"))
    assert (await here.call("notices", timeout=HANG_LIMIT))["content"][0]["text"] == "after notices"


@pytest.mark.attack
async def test_a_flood_on_standard_error_keeps_only_the_tail(bench: Make):
    here = bench(stdio_target("hostile"))
    await here.call("stderr", timeout=HANG_LIMIT)
    await until(lambda: "the last words" in here.pool.read_stderr_tail(1))
    assert len(here.pool.read_stderr_tail(1)) == 64 * 1024


@pytest.mark.attack
async def test_wrong_ids_batches_and_broken_lines_never_reach_a_call(bench: Make):
    here = bench(stdio_target("hostile"))
    others = [asyncio.create_task(here.call("big", b'{"size": 7}')) for _ in range(5)]
    assert (await here.call("wrong"))["content"][0]["text"] == "right"
    assert {(await other)["content"][0]["text"] for other in others} == {"b" * 7}
    assert (await here.call("big", b'{"size": 1}'))["content"][0]["text"] == "b"


@pytest.mark.attack
@pytest.mark.parametrize("kind", ["nan", "infinity", "overflow", "absurd_int"])
async def test_a_value_that_json_or_we_cannot_hold_ends_its_call_typed_and_at_once(
    bench: Make, kind: str
):
    here = bench(stdio_target("hostile"))
    with pytest.raises(ProtocolError) as caught:
        await here.call("poison", json.dumps({"kind": kind}).encode(), timeout=HANG_LIMIT)
    assert caught.value.sent
    assert await here.call("big", b'{"size": 1}')


@pytest.mark.attack
@pytest.mark.parametrize("kind", ["deep", "bottomless"])
async def test_a_result_that_nests_too_deep_ends_its_call_typed_and_at_once(bench: Make, kind: str):
    here = bench(stdio_target("hostile"))
    with pytest.raises(ResourceLimit, match="levels deep") as caught:
        await here.call("poison", json.dumps({"kind": kind}).encode(), timeout=HANG_LIMIT)
    assert caught.value.sent
    assert await here.call("big", b'{"size": 1}')


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("nul", "a\0b"),
        ("surrogate", "\N{REPLACEMENT CHARACTER}"),
        ("huge_int", int("1" * 400)),
        ("big_int", 12345678901234567890123),
        ("duplicate_key", {"a": 2}),
    ],
)
async def test_odd_but_valid_values_pass_and_half_characters_are_replaced(
    bench: Make, kind: str, value: object
):
    result = await bench(stdio_target("hostile")).call(
        "poison", json.dumps({"kind": kind}).encode()
    )
    assert result["structuredContent"] == {"v": value}


@pytest.mark.parametrize("result", ["[]", "7", "null", '"x"'])
async def test_a_result_that_is_no_object_is_a_protocol_error(bench: Make, result: str):
    with pytest.raises(ProtocolError):
        await bench(stdio_target("hostile")).call("shapeless", b'{"result":%s}' % result.encode())


async def test_too_many_content_items_are_refused(bench: Make):
    here = bench(stdio_target("hostile", limits={"max_items": 100}))
    assert len((await here.call("items", b'{"count": 100}'))["content"]) == 100
    with pytest.raises(ResourceLimit, match="101"):
        await here.call("items", b'{"count": 101}')


@pytest.mark.attack
async def test_a_servers_own_output_schema_is_never_run_by_us(bench: Make):
    here = bench(stdio_target("hostile"))
    assert (await here.call("redos", timeout=HANG_LIMIT))["structuredContent"]["s"].endswith("!")


@pytest.mark.exhaustive
@pytest.mark.fault
@pytest.mark.parametrize("tool", ["hang", "freeze", "drip"])
async def test_a_server_that_hangs_stops_or_drips_is_left_at_the_deadline(bench: Make, tool: str):
    here = bench(stdio_target("hostile", limits=UNENDING))
    await here.pool.connect(1)
    with pytest.raises(TimedOut) as caught:
        await here.call(tool, timeout=SENDING)
    assert caught.value.sent


# -- the end of processes ------------------------------------------------------------------------


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


async def started_stubborn(here: Bench, path: Path) -> list[int]:
    await here.pool.connect(1)
    await until(lambda: path.exists() and len(pids_in(path)) >= 2)
    return pids_in(path)


def test_a_server_that_ends_on_a_signal_only_does_not_make_us_overstay_our_host() -> None:
    """A host that closes our stdin waits so long before it kills; the rest of our end needs its
    part of that."""
    assert EXIT_GRACE <= PROCESS_TERMINATION_TIMEOUT / 2


@pytest.mark.fault
async def test_a_server_that_ignores_every_hint_is_ended_with_its_daemon(
    bench: Make, tmp_path: Path
):
    path = tmp_path / "pids"
    here = bench(stdio_target("stubborn", env={"FAKE_PIDS": str(path)}))
    pids = await started_stubborn(here, path)
    await here.pool.disconnect(1)
    assert not any(map(runs, pids))


@pytest.mark.fault
async def test_a_crashed_servers_daemon_ends_with_it(bench: Make, tmp_path: Path):
    path = tmp_path / "pids"
    here = bench(stdio_target("stubborn", env={"FAKE_PIDS": str(path)}))
    server, daemon = await started_stubborn(here, path)
    os.kill(server, signal.SIGKILL)
    await gone(daemon)


ORPHAN = """
import asyncio, sys
from mcpregistry.downstream.pool.pool import Pool
from tests.fakes.targets import stdio_target
async def main():
    async def target(server_id):
        return stdio_target("stubborn", env={"FAKE_PIDS": sys.argv[1]})
    pool = Pool(target, lambda event: None)
    await pool.connect(1)
    print("up", flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


@pytest.mark.fault
async def test_kill_9_of_our_own_process_leaves_no_process(tmp_path: Path):
    path = tmp_path / "pids"
    root = str(Path(__file__).parents[2])
    ours = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ORPHAN, str(path), cwd=root, stdout=asyncio.subprocess.PIPE
    )
    assert ours.stdout is not None
    assert await ours.stdout.readline() == b"up\n"
    await until(lambda: len(pids_in(path)) >= 2)
    family = [child.pid for child in below(ours.pid)]
    ours.kill()
    await ours.wait()
    for pid in {*family, *pids_in(path)}:
        await gone(pid)


@pytest.mark.exhaustive
@pytest.mark.fault
async def test_many_connections_leave_no_descriptor_thread_or_child(bench: Make):
    # One thread, for how many the loop's own executor has by and by hangs on when each is seen to
    # be idle.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    here = bench(stdio_target("echo"))
    process = psutil.Process()

    def held() -> tuple[int, int, int]:
        return process.num_fds(), process.num_threads(), len(process.children(recursive=True))

    async def cycle(times: int) -> None:
        for _ in range(times):
            await here.call("pid")
            await here.pool.disconnect(1)

    await cycle(3)
    warm = held()
    await cycle(40)
    await until(lambda: all(now <= then for now, then in zip(held(), warm, strict=True)))


# -- the splitters, byte by byte -------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_however_they_are_cut(size: int):
    data = b"one\n\n  \ntwo\r\n" + "drei é".encode() + b"\nrest"
    seen: list[bytes] = []
    ends: list[DownstreamError | None] = []
    lines = OutputLines(100, seen.append, ends.append)
    for start in range(0, len(data), size):
        lines.data_received(data[start : start + size])
    lines.connection_lost(None)
    assert seen == [b"one", b"two\r", "drei é".encode()]
    assert ends == [None]


@pytest.mark.parametrize("data", [b"x" * 11, b"x" * 11 + b"\n", b"ok\n" + b"x" * 11 + b"\nlost\n"])
def test_a_line_is_cut_off_at_its_limit_once_and_nothing_after_it_is_read(data: bytes):
    seen: list[bytes] = []
    ends: list[DownstreamError | None] = []
    lines = OutputLines(10, seen.append, ends.append)
    lines.data_received(data)
    lines.data_received(b"more\n")
    lines.connection_lost(None)
    assert seen in ([], [b"ok"])
    assert [type(end) for end in ends] == [ResourceLimit]


def test_a_tail_keeps_the_last_bytes_and_never_twice_its_size_more():
    tail = Tail(10)
    for number in range(100):
        tail.data_received(b"%03d" % number)
        assert len(tail._bytes) <= 23
    assert tail.read() == b"6097098099"
