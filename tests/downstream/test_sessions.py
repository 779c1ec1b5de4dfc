"""Servers that are not shared by everybody: each session its own connection, process, breaker and
end."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable

import psutil
import pytest

from mcpregistry.domain.errors import DownstreamError, QueueFullError
from mcpregistry.domain.servers import health
from mcpregistry.downstream.pool.handshakes import RememberedEras
from tests.downstream.conftest import Bench, gone
from tests.fakes.sdk import sdk_server
from tests.fakes.targets import http_target, stdio_target
from tests.waiting import until

Make = Callable[..., Bench]
ENDLESS = b'{"steps":1000000,"pause":0.05}'  # a call that ends only when it is cancelled


async def pid(here: Bench, session: str) -> int:
    return int((await here.call("pid", session=session))["content"][0]["text"])


async def test_each_session_has_a_process_of_its_own_and_only_its_own_trouble(bench: Make):
    here = bench(stdio_target("crash"))
    first, second, everybodys = [await pid(here, key) for key in ("a/1", "b/other", "")]
    assert len({first, second, everybodys}) == 3
    assert here.pool.list_states()[1].sessions == 2

    with pytest.raises(DownstreamError):
        await here.call("crash", session="a/1")
    assert await pid(here, "b/other") == second  # the dead process of one is no other's trouble
    assert await pid(here, "") == everybodys
    assert here.pool.list_states()[1].state == "connected"

    here.pool.end_session("other")
    await gone(second)
    assert await pid(here, "") == everybodys
    # Its end is told: nobody's session is counted any more, and the server is still connected.
    told = here.events[-1]
    await until(lambda: here.events[-1].sessions == 0)
    assert told.state == "connected"
    again = await pid(here, "b/other")
    assert again not in (first, second, everybodys)


async def test_beyond_the_limit_the_one_idle_longest_ends_and_none_that_is_busy(bench: Make):
    here = bench(stdio_target("slow", limits={"max_sessions": 2}))
    for session in ("a/1", "a/2"):
        await here.call("count", b'{"steps":1}', session=session)
    busy = asyncio.create_task(here.call("count", ENDLESS, session="a/1", timeout=10_000.0))
    await until(lambda: here.pool.list_states()[1].sessions == 2)
    await here.call("count", b'{"steps":1}', session="a/3")  # a/2 made way
    assert here.pool.list_states()[1].sessions == 2
    also = asyncio.create_task(here.call("count", ENDLESS, session="a/3", timeout=10_000.0))
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="2 connections to this server, which is the maximum"):
        await here.call("count", b'{"steps":1}', session="a/2")
    assert not busy.done()
    for call in (busy, also):
        call.cancel()
    await asyncio.gather(busy, also, return_exceptions=True)


async def test_an_idle_session_ends_by_itself_and_is_forgotten(bench: Make):
    here = bench(stdio_target("crash", limits={"idle_timeout": 0.1}))
    number = await pid(here, "a/1")
    await gone(number)
    await until(lambda: not here.pool.list_states())


async def test_a_process_that_does_not_start_is_not_started_for_every_call(
    bench: Make, monkeypatch: pytest.MonkeyPatch
):
    # no stall lasts until it may be tried again
    monkeypatch.setattr(health, "FIRST_DELAY", health.MAX_DELAY)
    here = bench(stdio_target("crash", env={"FAKE_CRASH": "start"}))
    with pytest.raises(DownstreamError):
        await here.call("pid", session="a/1")
    with pytest.raises(DownstreamError, match="is down"):
        await here.call("pid", session="a/1")


@pytest.mark.exhaustive
async def test_two_hundred_sessions_opened_and_dropped_leave_nothing(bench: Make):
    with sdk_server("http") as url:
        here = bench(http_target(url, protocol="legacy", limits={"max_sessions": 8}))

        async def one(number: int) -> None:
            await here.call("add", b'{"a":1,"b":2}', session=f"a/{number}")
            here.pool.end_session(str(number))

        async def rounds(numbers: range) -> tuple[int, int]:
            for start in range(numbers.start, numbers.stop, 5):
                await asyncio.gather(*(one(number) for number in range(start, start + 5)))
            await until(lambda: not here.pool.list_states() and not here.pool._background)
            gc.collect()
            return len(asyncio.all_tasks()), psutil.Process(os.getpid()).num_fds()

        before = await rounds(range(20))
        tasks, descriptors = await rounds(range(20, 200))
        assert tasks <= before[0]
        assert descriptors <= before[1] + 10  # of the fake's server, which runs in this process


async def test_a_session_that_got_no_connection_is_forgotten(bench: Make):
    here = bench(stdio_target("slow", limits={"max_sessions": 1}))
    busy = asyncio.create_task(here.call("count", ENDLESS, session="a/0", timeout=10_000.0))
    await here.event("session", "connected")
    for number in range(1, 6):
        with pytest.raises(QueueFullError):
            await here.call("count", b'{"steps":1}', session=f"a/{number}")
    assert [slot.session for slot in here.pool.sessions.list_slots()] == ["a/0"]
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)


async def test_a_call_that_is_cancelled_before_it_began_takes_the_session_from_no_other(
    bench: Make, monkeypatch
):
    here = bench(stdio_target("crash"))
    asked = []
    answer = asyncio.Event()

    async def slowly(server_id: int):
        asked.append(server_id)
        await answer.wait()
        return here.targets[server_id]

    monkeypatch.setattr(here.pool, "_targets", RememberedEras(slowly))
    one, other = (asyncio.create_task(pid(here, "a/1")) for _ in range(2))
    await until(lambda: len(asked) == 2)
    other.cancel()
    await asyncio.wait({other})
    answer.set()
    number = await one
    here.pool.end_session("1")
    await gone(number)
