"""A program: workers on runs, one after the other, each killed with SIGKILL at a random moment.

Arguments: seed, kills, longest life in milliseconds. The parent has imported everything and holds no
thread and no connection, so that a worker is a fork and its life can be a few milliseconds. After the
last kill one worker is left alone until nothing is open. Prints the number of kills that hit a worker.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from datetime import timedelta

import django

django.setup()

# ruff: noqa: E402 - Django first
from django.db import connections
from django.utils import timezone

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


async def work(until_quiet: bool, ready: int) -> None:
    engine = Engine("worker")
    await engine.start()
    os.write(ready, b"!")
    workers = run_engine.RunEngine(engine, f"worker-{os.getpid()}", complete=complete)
    while True:
        for run in [*await db_call(runs.due, timezone.now()), *await db_call(runs.decided)]:
            workers.wake(run)
        await db_call(reaping.reap_calls, timezone.now())
        if until_quiet and not await db_call(Run.objects.open().exists):
            await workers.stop()
            await engine.stop()
            return
        await asyncio.sleep(0.02)


def worker(*, until_quiet: bool = False) -> int:
    """Returns when it has begun to work: its process id."""
    listening, ready = os.pipe()
    child = os.fork()
    if child:
        os.close(ready)
        os.read(listening, 1)
        os.close(listening)
        return child
    try:
        asyncio.run(work(until_quiet, ready))
    finally:
        os._exit(0)


def main(seed: int, kills: int, longest: int) -> None:
    loaded()
    chance, hit = random.Random(seed), 0
    for _ in range(kills):
        child = worker()
        time.sleep(chance.uniform(0, longest / 1000))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        hit += os.WIFSIGNALED(status)
    connections.close_all()
    os.waitpid(worker(until_quiet=True), 0)
    print(hit)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
