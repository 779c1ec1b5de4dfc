"""Calls per minute of one agent over several processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from mcpregistry.calls.rates import CallRates, NotCountedError, RateLimitedError
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.rates import compute_allotment
from mcpregistry.domain.snapshot_specs import AgentSpec
from mcpregistry.models import Agent, RateLevel
from mcpregistry.services.access import agents
from mcpregistry.services.budgets import rates
from tests import forkserver
from tests.calls.conftest import Site, add_server, tool

Make = Callable[..., Any]
LIMIT = 120
PROCESSES = 3
_CHILD = """
import asyncio, json, sys, time, django
django.setup()
from mcpregistry.calls.rates import CallRates, RateLimitedError
from mcpregistry.domain.snapshot_specs import AgentSpec

async def main():
    agent, held = AgentSpec(int(sys.argv[1]), "ann", frozenset(), int(sys.argv[2]), ()), CallRates()
    sys.stdin.readline()
    began, steady, made, refused = time.time(), time.monotonic(), 0, 0
    while time.monotonic() - steady < 2 or not refused:  # on a busy machine until there is nothing left
        try:
            await held.take(agent)
            made += 1
        except RateLimitedError:
            refused += 1
            await asyncio.sleep(0.02)
    print(json.dumps([made, began, time.time()]), flush=True)

asyncio.run(main())
"""


def spec(limit: int | None, agent: int = 1) -> AgentSpec:
    return AgentSpec(agent, "ann", frozenset(), limit, ())


async def allowed(held: CallRates, who: AgentSpec, times: int = 1) -> list[bool]:
    found = []
    for _ in range(times):
        try:
            await held.take(who)
        except RateLimitedError:
            found.append(False)
        else:
            found.append(True)
    return found


@pytest.fixture
async def ann(live_db: None) -> int:
    return (await db_call(lambda: agents.save_agent(agent=Agent(slug="ann"), actor="test"))).pk


def test_three_processes_make_together_what_one_agent_may(
    live_db: None, site_env: dict[str, str]
) -> None:
    """Each tries as fast as it can, at the same time."""
    agent = agents.save_agent(agent=Agent(slug="ann"), actor="test").pk
    theirs, ours = os.pipe()
    words = ["-c", _CHILD, str(agent), str(LIMIT)]
    children = [
        forkserver.popen(words, env=site_env, stdin=theirs, stdout=subprocess.PIPE)
        for _ in range(PROCESSES)
    ]
    os.close(theirs)
    os.close(ours)  # all of them begin now
    said = [json.loads(child.stdout.readline()) for child in children if child.stdout]
    assert [child.wait() for child in children] == [0] * PROCESSES
    made = sum(each[0] for each in said)
    seconds = max(each[2] for each in said) - min(each[1] for each in said)
    refilled = seconds * LIMIT / 60
    assert made <= LIMIT + refilled + 1, (
        "nobody held anything before, so nothing goes beyond the bucket"
    )
    assert made >= LIMIT + 2 * LIMIT / 60 - PROCESSES * (compute_allotment(LIMIT) + 2), (
        "nor is what one holds lost to all"
    )


async def test_a_process_asks_the_database_once_for_an_allotment_and_a_call_that_follows_does_not_wait_for_it(
    ann: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = rates.lease_calls

    def lease(**given: Any) -> Any:
        asked.append(given["wanted"])
        return real(**given)

    monkeypatch.setattr(rates, "lease_calls", lease)
    held = CallRates()
    who = spec(2_000, ann)
    assert await allowed(held, who, 99) == [True] * 99
    assert asked == [100]
    await held.take(who)
    while held._held[ann].ahead is not None:  # the next is fetched beside the calls
        await asyncio.sleep(0)
    assert (asked, held._held[ann].purse.left) == ([100, 100], 100)
    taking = held.take(who)
    with pytest.raises(StopIteration):
        taking.send(None)  # not once has it waited
    await held.close()
    assert (await db_call(RateLevel.objects.get)).level >= 2_000 - 101


async def test_who_is_refused_asks_nobody_until_there_is_something_and_calls_that_wait_ask_once(
    ann: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = rates.lease_calls

    def lease(**given: Any) -> Any:
        asked.append(given["wanted"])
        return real(**given)

    monkeypatch.setattr(rates, "lease_calls", lease)
    held = CallRates()
    who = spec(2, ann)
    began = time.monotonic()
    found = await asyncio.gather(*(allowed(held, who) for _ in range(40)))
    assert sum(each == [True] for each in found) == 2
    assert len(asked) <= 4
    said = (
        r"calls per minute: 2\), counted over all endpoints and processes\. Try again in (\d+) s\b"
    )
    with pytest.raises(RateLimitedError, match=said) as caught:
        await held.take(who)
    found_in = re.search(said, str(caught.value))
    assert found_in
    assert 29 - (time.monotonic() - began) <= int(found_in[1]) <= 30


async def test_no_limit_asks_nobody_and_zero_means_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "lease_calls", None)
    assert await allowed(CallRates(), spec(None), 1000) == [True] * 1000
    with pytest.raises(RateLimitedError, match=r"rate limit is 0\. Ask the operator"):
        await CallRates().take(spec(0))


async def test_a_lower_limit_counts_at_once(ann: int) -> None:
    held = CallRates()
    await held.take(spec(100, ann))
    made = (await allowed(held, spec(2, ann), 5)).count(True)
    assert made <= 2 + compute_allotment(2)


@pytest.mark.fault
async def test_what_the_database_does_not_count_is_not_sent_and_recorded_as_refused(
    site: Make, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(add_server, "echo", tool("echo"), env={"FAKE_JOURNAL": str(journal)})
    await db_call(lambda: Agent.objects.update(calls_per_minute=60))
    here: Site = await site()

    def fails(**_: Any) -> None:
        raise OperationalError("hunter2")

    monkeypatch.setattr(rates, "lease_calls", fails)
    outcome = await here.call("echo__echo")
    assert (outcome.state, outcome.error_code, "hunter2" in outcome.message) == (
        InvocationState.DENIED,
        NotCountedError.code,
        False,
    )
    assert here.sent() == []
