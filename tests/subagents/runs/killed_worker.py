"""A program: workers on runs, one after the other, each killed with SIGKILL, at a random moment or at a failpoint.

Arguments: seed, kills, and the longest life in milliseconds or ``failpoints``. The parent has imported
everything and holds no thread and no connection, so that a worker is a fork and its life can be a few
milliseconds. After the last kill one worker is left alone until nothing is open. Prints as JSON how many
kills hit a worker, by failpoint.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from datetime import timedelta

import django

django.setup()

# ruff: noqa: E402 - Django first
from django.db import connections
from django.utils import timezone

from mcpregistry import failpoints
from mcpregistry.calls import pipeline
from mcpregistry.calls.engine import Engine
from mcpregistry.db import db_call
from mcpregistry.services import reaping
from subagents.llm.client import Reply, Target, ToolUse, Usage, loaded
from subagents.llm.scripted import openai
from subagents.llm.scripted.script import Script, load, reply
from subagents.models import Run
from subagents.runs import engine as run_engine
from subagents.runs import lease
from subagents.services import runs

# The dead are found at once instead of after half a minute; nothing else is changed.
lease.LEASE, lease.RENEW_EVERY = timedelta(seconds=2), 0.3
pipeline._LEASE_GRACE = timedelta(0)

SLOWLY = {"steps": 2, "pause": 0.02}
SCRIPT: Script = load({
    "writer": {
        "turns": [
            {"calls": [{"name": "slow__write", "arguments": {"text": "{{ user.json.text }} a", **SLOWLY}},
                       {"name": "slow__read", "arguments": {"text": "{{ user.json.text }} r", **SLOWLY}},
                       {"name": "slow__write", "arguments": {"text": "{{ user.json.text }} b", **SLOWLY}}]},
            {"calls": [{"name": "slow__read", "arguments": {"text": "{{ user.json.text }} s", **SLOWLY}},
                       {"name": "slow__write", "arguments": {"text": "{{ user.json.text }} c", **SLOWLY}}]},
            {"text": "done"},
        ],
    }
})  # fmt: skip


async def complete(target: Target, messages: list, tools: list, **more: object) -> Reply:
    """The scripted model without a network between: what is killed here is the run, not a model server."""
    await asyncio.sleep(0.005)
    ask = openai.read({"messages": messages, "tools": tools}, target.model, False)
    said = reply(SCRIPT.turn(ask), ask)
    calls = tuple(ToolUse(f"c{ask.answered}_{i}", c.name, c.arguments) for i, c in enumerate(said.calls))
    return Reply(said.text, calls, Usage(100, 20), "calls" if calls else "stop", target.model, None)


AT_ONCE = 4  # runs of a worker that dies at a failpoint: those that it had are nobody's for a while

POINTS = [
    "run_leased", "run_turn_begun", "run_turn_ended", "run_call_started", "run_call_answered", "run_call_ended",
    "run_ending", "after_send", "before_end",
]  # fmt: skip


def die_at(point: str, times: int) -> None:
    """Kill this process when it gets to the failpoint for the n-th time."""
    left = iter(range(times))

    def reached(name: str) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints._chosen, failpoints._reached = point, reached


async def work(until_quiet: bool, ready: int, most: int) -> None:
    engine = Engine("worker")
    await engine.start()
    os.write(ready, b"!")
    workers = run_engine.RunEngine(engine, f"worker-{os.getpid()}", complete=complete)
    while True:
        for run in [*await db_call(runs.due, timezone.now()), *await db_call(runs.decided)]:
            if len(workers._driving) < most:
                workers.wake(run)
        await db_call(reaping.reap_calls, timezone.now())
        if until_quiet and not await db_call(Run.objects.open().exists):
            await workers.stop()
            await engine.stop()
            return
        await asyncio.sleep(0.02)


def worker(*, until_quiet: bool = False, point: str = "", times: int = 0) -> int:
    """Returns when it has begun to work: its process id."""
    listening, ready = os.pipe()
    child = os.fork()
    if child:
        os.close(ready)
        os.read(listening, 1)
        os.close(listening)
        return child
    try:
        if point:
            die_at(point, times)
        asyncio.run(work(until_quiet, ready, AT_ONCE if point else 1_000))
    finally:
        os._exit(0)


def main(seed: int, kills: int, way: str) -> None:
    loaded()
    chance, hits = random.Random(seed), Counter[str]()
    for number in range(kills):
        if way == "failpoints":
            point = POINTS[number % len(POINTS)]
            hits[point] += _died_by_itself(worker(point=point, times=chance.randint(0, 1)))
        else:
            child = worker()
            time.sleep(chance.uniform(0, int(way) / 1000))
            hits["random"] += _killed(child)
    connections.close_all()
    os.waitpid(worker(until_quiet=True), 0)
    print(json.dumps(hits))


def _killed(child: int) -> bool:
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _died_by_itself(child: int) -> bool:
    """Whether it got to its failpoint; else it is killed, for there may be nothing left to do."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    _killed(child)
    return False


PATIENCE = 4.0  # seconds: longer than a lease

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
