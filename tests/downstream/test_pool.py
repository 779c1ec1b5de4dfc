"""The pool: isolation, queues, breaker, cancellation, changes, lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mcpregistry.domain.errors import (
    AuthFailed,
    ConnectionFailed,
    DownstreamError,
    NotFound,
    QueueFullError,
    TimedOut,
)
from mcpregistry.domain.servers.health import compute_backoff
from mcpregistry.downstream.pool.concurrency_gate import QUEUE_PER_PLACE, Gate
from mcpregistry.downstream.pool.followers import follow_on
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.pool.resource_subscriptions import Watched, Watches
from mcpregistry.downstream.pool.server_probe import ProbeProgress, probe_once, send_only
from mcpregistry.downstream.server_call import ServerCall
from tests.downstream.conftest import SENDING, Bench
from tests.fakes.http import Always, Echo, Raw, fake_http
from tests.fakes.journals import called, noted
from tests.fakes.sdk import listened_to
from tests.fakes.targets import http_target, stdio_target
from tests.waiting import until

Make = Callable[..., Bench]
MOST = 10  # times as long as alone: more than a busy machine adds to the best of several looks


async def heard(path: Path, method: str) -> dict:
    return await until(
        lambda: next((found for found in noted(path) if found.get("method") == method), None)
    )


# -- cancellation and progress ---------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["legacy", "modern"])
async def test_cancelling_a_call_tells_the_server_which(bench: Make, tmp_path: Path, protocol: str):
    path = tmp_path / "journal"
    here = bench(stdio_target("slow", protocol=protocol, env={"FAKE_JOURNAL": str(path)}))
    call = asyncio.create_task(here.call("count", b'{"steps":1000,"pause":0.05}'))
    asked = await heard(path, "tools/call")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    told = await heard(path, "notifications/cancelled")
    assert told["params"]["requestId"] == asked["id"]
    assert await here.call("count", b'{"steps":1}')


@pytest.mark.exhaustive(but=("modern",))
@pytest.mark.parametrize("protocol", ["legacy", "modern"])
async def test_a_timeout_tells_the_server_too_and_the_late_answer_disturbs_nobody(
    bench: Make, tmp_path: Path, protocol: str
):
    path = tmp_path / "journal"
    here = bench(stdio_target("slow", protocol=protocol, env={"FAKE_JOURNAL": str(path)}))
    await here.pool.connect(1)
    with pytest.raises(TimedOut) as caught:
        await here.call("count", b'{"steps":1000,"pause":0.05}', timeout=SENDING)
    assert caught.value.sent
    await heard(path, "notifications/cancelled")


async def test_progress_reaches_only_its_own_call(bench: Make):
    here = bench(stdio_target("slow"))
    seen: dict[int, list[float]] = {}
    steps = {number: seen.setdefault(number, []).append for number in (2, 3, 4)}
    await asyncio.gather(
        *(
            here.call(
                "count", b'{"steps":%d}' % number, on_progress=lambda done, *_, add=add: add(done)
            )
            for number, add in steps.items()
        ),
        here.call("count", b'{"steps":5}'),
    )
    assert seen == {2: [1, 2], 3: [1, 2, 3], 4: [1, 2, 3, 4]}


# -- isolation -------------------------------------------------------------------------------------


@pytest.mark.fault
async def test_a_hung_server_does_not_slow_a_good_one(bench: Make):
    here = bench(
        stdio_target("hostile", limits={"max_concurrency": 50}), stdio_target("echo", server_id=2)
    )
    await here.pool.connect(1)
    await here.pool.connect(2)
    await asyncio.gather(*(here.pool.call(ServerCall(2, "echo", b"{}")) for _ in range(100)))

    async def time_call() -> float:
        took = []
        for _ in range(300):
            started = time.perf_counter()
            await here.pool.call(ServerCall(2, "echo", b"{}"))
            took.append(time.perf_counter() - started)
        return statistics.median(took)

    # What else the machine does comes and goes: of several looks, the best of each kind.
    alone = []
    beside = []
    while len(beside) < 6 and not (beside and min(beside) < min(alone) * MOST):
        alone.append(await time_call())
        hung = [
            asyncio.create_task(here.pool.call(ServerCall(1, "hang", b"{}", timeout=10_000.0)))
            for _ in range(50)
        ]
        await asyncio.sleep(0)
        beside.append(await time_call())
        for call in hung:
            call.cancel()
        await asyncio.gather(*hung, return_exceptions=True)
    assert min(beside) < min(alone) * MOST


@pytest.mark.fault
async def test_servers_connect_side_by_side(bench: Make):
    mute = stdio_target("mute", limits={"connect_timeout": 10_000.0})
    here = bench(
        mute,
        stdio_target("echo", server_id=2),
        stdio_target("mute", server_id=3, limits={"connect_timeout": 1.0}),
    )
    silent = asyncio.create_task(here.pool.connect(1))
    await here.pool.call(ServerCall(2, "echo", b"{}"))
    assert not silent.done()
    with pytest.raises(TimedOut) as caught:
        await here.pool.connect(3)
    assert not caught.value.sent
    assert not silent.done()
    silent.cancel()
    await asyncio.gather(silent, return_exceptions=True)


async def test_calls_beyond_the_limit_wait_their_turn_in_order(bench: Make):
    here = bench(stdio_target("slow", limits={"max_concurrency": 2}))
    sent: list[int] = []
    out: list[int] = []

    async def one(number: int) -> None:
        await here.call("count", b'{"steps":1,"pause":0.02}', on_sent=lambda: sent.append(number))
        out.append(len(sent))  # by the time that it has its answer

    await here.pool.connect(1)
    await asyncio.gather(*(one(number) for number in range(8)))
    assert sent == list(range(8))
    assert all(count <= answered + 2 for answered, count in enumerate(out)), out


async def test_a_full_queue_answers_busy_at_once_and_a_cancelled_waiter_gives_up_its_place():
    gate = Gate(1)
    await gate.enter()
    waiting = [asyncio.create_task(gate.enter()) for _ in range(QUEUE_PER_PLACE)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await gate.enter()
    waiting[0].cancel()
    await asyncio.sleep(0)
    last = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    for waiter in [*waiting[1:], last]:
        gate.leave()
        await waiter
    gate.leave()
    assert gate.inside == 0
    assert gate.empty.is_set()


async def test_a_place_given_to_a_waiter_that_is_cancelled_is_passed_on():
    gate = Gate(1)
    await gate.enter()
    first = asyncio.create_task(gate.enter())
    second = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    gate.leave()
    first.cancel()
    await second
    gate.leave()
    assert gate.inside == 0


async def test_waiting_too_long_for_a_turn_is_a_timeout_with_nothing_sent(bench: Make):
    here = bench(stdio_target("hostile", limits={"max_concurrency": 1}))
    await here.pool.connect(1)
    first = asyncio.create_task(here.call("hang", timeout=10_000.0))
    await asyncio.sleep(0)
    with pytest.raises(TimedOut) as caught:
        await here.call("big", b'{"size":1}', timeout=0.1)
    assert not caught.value.sent
    first.cancel()


# -- breaker ---------------------------------------------------------------------------------------


@pytest.mark.fault
async def test_a_server_that_dies_on_every_start_is_left_alone_and_calls_are_answered_at_once(
    bench: Make, tmp_path: Path
):
    counter = tmp_path / "starts"
    here = bench(stdio_target("flaky", env={"FAKE_COUNTER": str(counter), "FAKE_FAILURES": "1000"}))
    for _ in range(200):
        with pytest.raises(ConnectionFailed) as caught:
            await here.call("ok")
        assert not caught.value.sent
    assert counter.stat().st_size < 10
    assert here.pool.list_states()[1].state == "error"
    assert here.pool.list_states()[1].retry_in > 0


async def test_a_person_may_connect_at_once_whatever_the_breaker_says(bench: Make, tmp_path: Path):
    counter = tmp_path / "starts"
    here = bench(stdio_target("flaky", env={"FAKE_COUNTER": str(counter), "FAKE_FAILURES": "2"}))
    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            await here.pool.connect(1)
    await here.pool.connect(1)
    assert await here.call("ok")
    assert here.pool.list_states()[1].failures == 0


async def test_an_eager_server_comes_back_by_itself(bench: Make, tmp_path: Path):
    counter = tmp_path / "starts"
    env = {"FAKE_COUNTER": str(counter), "FAKE_FAILURES": "2"}
    here = bench(stdio_target("flaky", env=env, connect="eager"))
    with pytest.raises(ConnectionFailed):
        await here.pool.connect(1)
    await here.event("state", "reconnecting")
    await here.event("state", "connected")
    assert here.pool.list_states()[1].state == "connected"
    moves = [(event.state, event.at) for event in here.events if event.kind == "state"]
    assert [state for state, _ in moves] == ["connecting", "reconnecting"] * 2 + [
        "connecting",
        "connected",
    ]
    first, second = (moves[later][1] - moves[later - 1][1] for later in (2, 4))
    assert first >= compute_backoff(1, chance=0) - 0.05
    assert second >= compute_backoff(2, chance=0) - 0.05 > compute_backoff(1, chance=0)
    assert len(counter.read_text()) == 3, "real starts"


async def test_a_manual_server_is_not_started_by_a_call(bench: Make):
    here = bench(stdio_target("echo", connect="manual"))
    with pytest.raises(ConnectionFailed, match="when a user connects it") as caught:
        await here.call("echo")
    assert not caught.value.sent
    await here.pool.connect(1)
    assert await here.call("echo")


# -- changes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["legacy", "modern"])
async def test_a_changed_tool_list_is_read_again_and_told(
    bench: Make, tmp_path: Path, protocol: str
):
    path = tmp_path / "journal"
    here = bench(stdio_target("mutate", protocol=protocol, env={"FAKE_JOURNAL": str(path)}))
    first = await here.pool.discover(1)
    assert [tool["description"] for tool in first.tools] == ["0"]
    if protocol == "modern":  # what changes before that is told to nobody
        await heard(path, "subscriptions/listen")
    await here.call("mutate")
    told = await here.event("tools_changed")
    assert told.discovery is not None
    assert [(tool["name"], tool["description"]) for tool in told.discovery.tools] == [
        ("mutate", "1"),
        ("extra", ""),
    ]


@pytest.mark.parametrize("protocol", ["legacy", "modern"])
async def test_a_changed_tool_list_is_told_over_http(bench: Make, protocol: str):
    with listened_to() as (url, listeners):
        here = bench(http_target(url, protocol=protocol))
        await here.pool.connect(1)
        await until(lambda: listeners)  # what changes before that is told to nobody
        await here.call("grow")
        told = await here.event("tools_changed")
        assert told.discovery is not None
        assert "grown" in {tool["name"] for tool in told.discovery.tools}
        await here.pool.close()


async def test_a_reconnect_reads_the_tools_again(bench: Make):
    here = bench(stdio_target("many", env={"FAKE_TOOLS": "2"}))
    await here.pool.connect(1)
    here.targets[1] = replace(here.targets[1], env={"FAKE_TOOLS": "3"})
    await here.pool.reconnect(1)
    counts = [
        len(event.discovery.tools)
        for event in here.events
        if event.discovery and event.state == "connected"
    ]
    assert counts == [2, 3]


@pytest.mark.parametrize(("tools", "page"), [(7, 3), (6, 3), (0, 0), (500, 0)])
async def test_all_pages_are_read(bench: Make, tools: int, page: int):
    here = bench(stdio_target("many", env={"FAKE_TOOLS": str(tools), "FAKE_PAGE": str(page)}))
    discovery = await here.pool.discover(1)
    assert [tool["name"] for tool in discovery.tools] == [
        f"tool_{number}" for number in range(tools)
    ]
    assert discovery.server_info["name"] == "many"
    assert discovery.instructions == "instructions of many"


async def test_unusable_definitions_are_named_and_do_not_hide_the_others(bench: Make):
    discovery = await bench(
        stdio_target("many", env={"FAKE_TOOLS": "2", "FAKE_BAD": "1"})
    ).pool.discover(1)
    assert [tool["name"] for tool in discovery.tools] == ["tool_0", "tool_1"]
    assert len(discovery.problems) == 4
    assert any("long" in problem for problem in discovery.problems)


@pytest.mark.attack
@pytest.mark.parametrize("page", [0, 2])
async def test_of_more_tools_than_the_limit_the_first_by_name_are_taken_and_it_is_said(
    bench: Make, page: int
):
    env = {"FAKE_TOOLS": "9", "FAKE_PAGE": str(page), "FAKE_BACKWARDS": "1"}
    discovery = await bench(stdio_target("many", env=env, limits={"max_tools": 4})).pool.discover(1)
    assert [tool["name"] for tool in discovery.tools] == ["tool_0", "tool_1", "tool_2", "tool_3"]
    (said,) = discovery.problems
    assert said.startswith("The number of tools exceeds the limit of 4 by 5. ")


@pytest.mark.exhaustive
@pytest.mark.attack
async def test_a_list_that_never_comes_ends_with_the_connect_deadline(bench: Make):
    here = bench(stdio_target("many", env={"FAKE_LIST": "hang"}, limits={"connect_timeout": 1.5}))
    with pytest.raises(DownstreamError):
        await here.pool.discover(1)


# -- lifecycle -------------------------------------------------------------------------------------


async def test_an_idle_server_is_stopped_and_starts_again_with_the_next_call(bench: Make):
    here = bench(stdio_target("echo", limits={"idle_timeout": 0.3}))
    await here.call("echo")
    await here.event("state", "disconnected")
    assert here.pool.list_states()[1].pid is None
    assert await here.call("echo")


async def test_a_server_with_a_call_in_flight_is_not_idle(bench: Make):
    here = bench(stdio_target("slow", limits={"idle_timeout": 0.1}))
    assert await here.call("count", b'{"steps":10,"pause":0.05}')


async def test_reconfigure_retires_what_changed_after_its_calls_and_leaves_the_rest(
    bench: Make, tmp_path: Path
):
    here = bench(
        stdio_target("slow"), stdio_target("echo", server_id=2), stdio_target("echo", server_id=3)
    )
    for server_id in (1, 2, 3):
        await here.pool.connect(server_id)
    sent = asyncio.Event()
    done = tmp_path / "done"
    running = asyncio.create_task(
        here.call("count", b'{"until":"%s"}' % str(done).encode(), on_sent=sent.set)
    )
    await sent.wait()
    pids = {server_id: state.pid for server_id, state in here.pool.list_states().items()}
    here.targets[1] = replace(here.targets[1], revision=2)
    here.pool.reconfigure({1: 2, 2: 1})
    assert set(here.pool.list_states()) == {2}
    done.touch()
    assert (await running)["content"][0]["text"] == "3 steps"
    await here.call("count", b'{"steps":1}')
    states = here.pool.list_states()
    assert states[1].pid != pids[1]
    assert states[2].pid == pids[2]


async def test_an_unknown_server_is_not_found_and_nothing_is_sent():
    async def targets(server_id: int):
        raise NotFound("No such server.")

    pool = Pool(targets, lambda event: None)
    with pytest.raises(NotFound):
        await pool.call(ServerCall(7, "x", b"{}"))
    await pool.close()
    with pytest.raises(ConnectionFailed):
        await pool.call(ServerCall(7, "x", b"{}"))


async def test_closing_while_connecting_leaves_nothing(bench: Make):
    here = bench(stdio_target("mute"))
    connecting = asyncio.create_task(here.pool.connect(1))
    await here.event("state", "connecting")
    await asyncio.sleep(0.05)
    await here.pool.close()
    with pytest.raises(ConnectionFailed):
        await connecting


async def test_a_probe_measures_a_server_of_either_era(bench: Make):
    here = bench(
        stdio_target("echo", protocol="legacy"),
        stdio_target("echo", server_id=2, protocol="modern"),
    )
    for server_id in (1, 2):
        await here.pool.connect(server_id)
        started = time.monotonic()
        milliseconds = await here.pool.ping(server_id)
        assert 0 < milliseconds <= (time.monotonic() - started) * 1000


# -- tests of servers ------------------------------------------------------------------------------


async def test_a_test_reports_everything_with_a_connection_of_its_own():
    report = await probe_once(
        stdio_target("echo"), ("echo", b'{"a":1}'), ProbeProgress(), send_only
    )
    assert report.ok
    assert report.discovery is not None
    assert report.result is not None
    assert report.result["structuredContent"]["arguments"] == {"a": 1}
    assert {"connect", "list", "call", "total"} <= set(report.timings)


async def test_a_failed_test_says_why_and_shows_the_servers_words():
    report = await probe_once(
        stdio_target("crash", env={"FAKE_CRASH": "start"}), None, ProbeProgress(), send_only
    )
    assert not report.ok
    assert report.error is not None
    assert report.error.code == "CONNECTION_FAILED"
    assert "cannot find my configuration" in report.stderr


async def test_a_test_of_a_mute_server_ends_with_its_deadline():
    report = await probe_once(
        stdio_target("mute", limits={"connect_timeout": 1.0}), None, ProbeProgress(), send_only
    )
    assert report.error is not None
    assert report.error.code == "TIMEOUT"


async def test_a_test_of_a_dead_address_says_so():
    async with fake_http(Echo()) as server:
        url = server.url
    report = await probe_once(http_target(url), None, ProbeProgress(), send_only)
    assert report.error is not None
    assert report.error.code == "CONNECTION_FAILED"


async def test_a_refused_credential_is_its_own_error():
    async with fake_http(Always(raw=b"HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n")) as server:
        report = await probe_once(http_target(server.url), None, ProbeProgress(), send_only)
        assert report.error is not None
        assert report.error.code == "AUTH_FAILED"
        assert "401" in str(report.error)


@pytest.mark.fault
@pytest.mark.parametrize("connect", ["eager", "lazy"])
async def test_a_refused_credential_is_not_offered_again_until_a_person_says_so(
    bench: Make, connect: str, caplog: pytest.LogCaptureFixture
):
    async with fake_http(Always(raw=b"HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n")) as server:
        here = bench(http_target(server.url, connect=connect, protocol="legacy"))
        for _ in range(3):
            with pytest.raises(ConnectionFailed if _ else AuthFailed):
                await here.call("echo")
        told = await here.event("state", "error")
        assert told.code == "AUTH_FAILED"
        assert len(server.requests) == 1
        assert here.pool.list_states()[1].retry_in > 800
        assert not here.pool._slots[1].alive, "an eager server waits as well"
        assert "credential_refused" in caplog.text
        with pytest.raises(AuthFailed):
            await here.pool.reconnect(1)
        assert len(server.requests) == 2


@pytest.mark.fault
async def test_a_credential_that_is_refused_in_a_call_is_not_offered_with_the_next_one(bench: Make):
    async with fake_http(Raw(raw=b"HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n")) as server:
        here = bench(http_target(server.url, connect="eager"))
        with pytest.raises(AuthFailed):
            await here.call("echo")
        await here.event("state", "error")
        with pytest.raises(ConnectionFailed, match="credential"):
            await here.call("echo")
        assert len(server.calls()) == 1


@pytest.mark.fault
async def test_a_call_that_broke_its_server_is_sent_again_only_if_it_is_marked_idempotent(
    bench: Make, tmp_path: Path
):
    path = tmp_path / "journal"
    here = bench(stdio_target("crash", resend="always", env={"FAKE_JOURNAL": str(path)}))
    for idempotent, sent in ((False, 1), (True, 3)):
        with pytest.raises(ConnectionFailed) as caught:
            await here.call("crash", idempotent=idempotent)
        assert len(called(path)) == sent
        await here.pool.reconnect(1)
    assert caught.value.sent


# -- how many at once ------------------------------------------------------------------------------


def numbered(count: int, **fields: object) -> list:
    return [
        replace(stdio_target("echo"), server_id=number, **fields) for number in range(1, count + 1)
    ]


def alive(here: Bench) -> list[int]:
    return [server_id for server_id, state in here.pool.list_states().items() if state.pid]


async def test_at_the_limit_the_connection_that_was_idle_longest_makes_way(bench: Make):
    here = bench(*numbered(4))
    here.pool._most = 3
    for server_id in (1, 2, 3, 1):
        await here.pool.call(ServerCall(server_id, "echo", b"{}"))
    assert alive(here) == [1, 2, 3]
    await here.pool.call(ServerCall(4, "echo", b"{}"))
    assert alive(here) == [1, 3, 4], "server 2 had rested longest"
    await here.pool.call(ServerCall(2, "echo", b"{}"))
    assert alive(here) == [1, 2, 4], "and comes back with its next call"


async def test_many_at_once_never_exceed_the_limit(bench: Make):
    here = bench(*numbered(12))
    here.pool._most = 3
    most = 0

    async def keep_calling(server_id: int) -> int:
        nonlocal most
        busy = 0
        for _ in range(2):
            while True:
                try:
                    await here.pool.call(ServerCall(server_id, "echo", b"{}"))
                    break
                except QueueFullError:
                    busy += 1
                    await asyncio.sleep(0.02)
                finally:
                    most = max(most, len(alive(here)))
        return busy

    await asyncio.gather(*(keep_calling(server_id) for server_id in range(1, 13)))
    assert most == 3


async def test_connections_in_use_and_kept_ones_are_not_closed(bench: Make):
    slow = replace(stdio_target("slow"), server_id=1)
    kept = replace(stdio_target("echo"), server_id=2, connect="eager")
    here = bench(slow, kept, *numbered(3)[2:])
    here.pool._most = 2
    await here.pool.connect(2)
    sent = asyncio.Event()
    call = asyncio.create_task(
        here.pool.call(ServerCall(1, "count", b'{"steps":1000,"pause":0.05}', on_sent=sent.set))
    )
    await sent.wait()
    with pytest.raises(
        QueueFullError, match="has 2 connections to servers, which is the maximum"
    ) as refused:
        await here.pool.call(ServerCall(3, "echo", b"{}"))
    assert "SLIPSNISSE_MAX_CONNECTIONS" in refused.value.remedy
    assert sorted(alive(here)) == [1, 2]
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await here.pool.call(ServerCall(3, "echo", b"{}"))
    assert sorted(alive(here)) == [2, 3]


async def test_a_connection_that_ends_before_its_server_took_a_subscription_leaves_no_stream_behind():
    class Mute:
        def listen(self, **_: Any) -> contextlib.AbstractAsyncContextManager[Any]:
            return self.opening()

        @contextlib.asynccontextmanager
        async def opening(self) -> AsyncIterator[None]:
            await asyncio.Event().wait()
            yield

    watched = Watched()
    before = asyncio.all_tasks()
    end, _ = watched.add("file:///a", lambda: None)
    following = asyncio.ensure_future(
        follow_on(cast(Any, Mute()), cast(Any, Mute()), watched, True)
    )
    await until(lambda: len(asyncio.all_tasks() - before) >= 2)  # its stream, and who waits for it
    following.cancel()
    await asyncio.wait({following})
    assert asyncio.all_tasks() <= before
    end()


async def test_subscriptions_are_kept_though_the_database_was_away(monkeypatch):
    monkeypatch.setattr("mcpregistry.downstream.pool.resource_subscriptions.RETRY_FIRST", 0.01)
    tries = 0

    async def hold(watched: Watched) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("no database")
        await asyncio.Event().wait()

    watches = Watches(hold)
    await watches.add(1, "file:///a", lambda: None, patience=0.01)
    await until(lambda: tries == 2)
    await watches.close()
