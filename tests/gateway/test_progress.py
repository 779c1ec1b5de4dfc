"""Progress keeps its order, does not hold up the server, and ends a long silence."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from mcpregistry.gateway.progress import pass_progress
from tests.waiting import until


class Host:
    def __init__(self) -> None:
        self.heard: list[tuple[float, float | None, str | None]] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        await self.reads.wait()
        self.heard.append((progress, total, message))


async def test_everything_reported_has_been_sent_in_order_when_the_call_ends():
    host = Host()
    async with pass_progress(host) as report:
        for step in range(50):
            report(step, 50, None)
    assert [progress for progress, _, _ in host.heard] == list(range(50))


async def test_a_host_that_reads_slowly_misses_the_oldest_and_holds_up_nobody():
    host = Host()
    host.reads.clear()
    async with pass_progress(host) as report:
        await asyncio.sleep(0)
        for step in range(1000):
            report(step, None, None)
        host.reads.set()
    assert [progress for progress, _, _ in host.heard] == list(range(900, 1000))


async def test_a_silent_call_is_reported_as_still_running_with_rising_values():
    host = Host()
    async with pass_progress(host, silence=0.02) as report:
        report(3, 10, "three")
        await until(lambda: len(host.heard) >= 4)
    values = [progress for progress, _, _ in host.heard]
    assert values[0] == 3
    assert values == sorted(set(values))
    assert values[-1] < 3.001
    assert all(total == 10 for _, total, _ in host.heard)
    assert host.heard[1][2].startswith("Still running after")


async def test_values_rise_also_when_the_server_begins_below_what_we_said_while_the_call_was_held():
    host = Host()
    async with pass_progress(host) as report:
        for value in (1e-6, 2e-6, 0, 0, 1, 1e300, 5):
            report(value, None, None)
    values = [progress for progress, _, _ in host.heard]
    assert all(later > earlier for earlier, later in pairwise(values))
    assert values[4] == 1


async def test_a_progress_that_cannot_be_sent_does_not_cost_the_call_its_answer():
    async def broken(*_: object) -> None:
        raise ConnectionError

    async with pass_progress(broken) as report:
        report(1, None, None)


async def test_a_cancelled_call_stops_reporting():
    host = Host()
    with pytest.raises(asyncio.CancelledError):
        async with pass_progress(host, silence=0.01):
            raise asyncio.CancelledError
    before = len(host.heard)
    await asyncio.sleep(0.05)
    assert len(host.heard) == before
