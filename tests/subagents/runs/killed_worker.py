"""A program: workers on runs, one after the other, each killed with SIGKILL, at a random moment or
at a failpoint.

Arguments: seed, kills, and the longest life in milliseconds or ``failpoints``. The parent has
imported everything and holds no thread and no connection, so that a worker is a fork and its life
can be a few milliseconds. Three of four workers are told whom they replace, as the supervisor does;
the others have to wait for leases. After the last kill one worker is left alone until nothing is
open. Prints as JSON how many kills hit a worker, by failpoint, and how many runs were taken from
the dead.
"""

from __future__ import annotations

import asyncio
import gc
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
from mcpregistry.calls import record_rows
from mcpregistry.calls.engine import Engine
from mcpregistry.db import db_call
from mcpregistry.services.upkeep import reaping
from subagents.domain.finish_reasons import Finish
from subagents.leased import leases
from subagents.llm import client, tokens
from subagents.llm.model_values import ModelReply, ModelTarget, TokenUsage, ToolUse
from subagents.llm.scripted import openai
from subagents.llm.scripted.script import Script, load, reply
from subagents.models import Run
from subagents.runs import engine as run_engine
from subagents.runs import lease
from subagents.services import runs
from tests import speed
from tests.waiting import HANG_LIMIT

# The dead are found soon instead of after ten seconds, their calls instead of after a minute. All
# of it grows with the slowness of the machine, which must not take a living worker's work for lost.
SLOWDOWN = speed.slowdown()
leases.LEASE = timedelta(seconds=1.5 * SLOWDOWN)
leases.RENEW_EVERY = 0.3
leases.AT_RISK = timedelta(seconds=0.5 * SLOWDOWN)
assert record_rows._LEASE_GRACE  # a name that has moved would change nothing
record_rows._LEASE_GRACE = timedelta(seconds=3 * SLOWDOWN)


async def at_once() -> None:
    """No model is asked, and no token counted, with litellm, which each worker would load for four
    seconds."""


assert client.ready
assert tokens._tiktoken
client.ready = at_once
tokens._tiktoken = lambda name: tokens.estimate_tokens

SLOWLY = {"steps": 2, "pause": 0.02}
SCRIPT: Script = load(
    {
        "writer": {
            "turns": [
                {
                    "calls": [
                        {
                            "name": "slow__write",
                            "arguments": {"text": "{{ user.json.text }} a", **SLOWLY},
                        },
                        {
                            "name": "slow__read",
                            "arguments": {"text": "{{ user.json.text }} r", **SLOWLY},
                        },
                        {
                            "name": "slow__write",
                            "arguments": {"text": "{{ user.json.text }} b", **SLOWLY},
                        },
                    ]
                },
                {
                    "calls": [
                        {
                            "name": "slow__read",
                            "arguments": {"text": "{{ user.json.text }} s", **SLOWLY},
                        },
                        {
                            "name": "slow__write",
                            "arguments": {"text": "{{ user.json.text }} c", **SLOWLY},
                        },
                    ]
                },
                {"text": "done"},
            ],
        }
    }
)


async def complete(target: ModelTarget, messages: list, tools: list, **more: object) -> ModelReply:
    """The scripted model without a network between: what is killed here is the run, not a model
    server."""
    await asyncio.sleep(0.005)
    ask = openai.read({"messages": messages, "tools": tools}, target.model, False)
    said = reply(SCRIPT.turn(ask), ask)
    calls = tuple(
        ToolUse(f"c{ask.answered}_{i}", c.name, c.arguments) for i, c in enumerate(said.calls)
    )
    return ModelReply(
        said.text, calls, TokenUsage(100, 20), Finish.CALLS if calls else Finish.STOP, target.model
    )


AT_ONCE = 4  # runs of a worker that dies at a failpoint: some are left for the next one's
UNTOLD = 4  # every so many workers are not told whom they replace

POINTS = [
    "run_leased",
    "run_turn_begun",
    "run_turn_ended",
    "run_call_started",
    "run_call_answered",
    "run_call_ended",
    "run_ending",
    "after_send",
    "before_end",
]


def die_at(point: str, times: int) -> None:
    """Kill this process when it gets to the failpoint for the n-th time."""
    left = iter(range(times))

    def reached(name: str) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints._armed = failpoints._parse_failpoint(point)
    failpoints._hit_failpoint = reached


def bury(dead: int) -> int:
    """What a worker does first that knows whom it replaces. Returns how many runs that one had."""
    reaping.end_calls_of_dead_process("worker", dead, timezone.now())
    return len(lease.free(f"worker-{dead}"))


async def work(until_quiet: bool, ready: int, most: int, dead: int) -> None:
    engine = Engine("worker")
    await engine.start()
    freed = await db_call(bury, dead) if dead else 0
    os.write(ready, str(freed).encode())
    workers = run_engine.RunEngine(engine, f"worker-{os.getpid()}", complete=complete)
    while True:
        due, quiet = await db_call(look, until_quiet)
        for run in due:
            if len(workers._driving) < most:
                workers.wake(run)
        if quiet:
            await workers.stop()
            await engine.stop()
            return
        await asyncio.sleep(0.05)


def look(until_quiet: bool) -> tuple[list[str], bool]:
    """What the site's clock would wake this worker for, and whether nothing is left to do."""
    reaping.reap_calls(timezone.now())
    return [
        *runs.list_due_runs(timezone.now()),
        *runs.wake_decided_runs(),
    ], until_quiet and not Run.objects.open().exists()


def worker(
    *, until_quiet: bool = False, point: str = "", times: int = 0, dead: int = 0
) -> tuple[int, int]:
    """Returns when it has begun to work: its process id, and how many runs it has freed."""
    listening, ready = os.pipe()
    child = os.fork()
    if child:
        os.close(ready)
        freed = os.read(listening, 20)
        os.close(listening)
        return child, int(freed)
    try:
        if point:
            die_at(point, times)
        asyncio.run(work(until_quiet, ready, AT_ONCE if point else 1_000, dead))
    finally:
        os._exit(0)


def main(seed: int, kills: int, way: str) -> None:
    gc.freeze()  # no worker's collector has to walk, and by that copy, what all have in common
    chance = random.Random(seed)
    hits = Counter[str]()
    dead = 0
    for number in range(kills):
        if not number % UNTOLD:
            dead = 0
        if way == "failpoints":
            point = POINTS[number % len(POINTS)]
            dead, freed = worker(point=point, times=number // len(POINTS) % 2, dead=dead)
            hits[point] += _died_by_itself(dead)
        else:
            dead, freed = worker(dead=dead)
            time.sleep(chance.uniform(0, int(way) / 1000 * SLOWDOWN))
            hits["random"] += _killed(dead)
        hits["runs"] += freed
    connections.close_all()
    os.waitpid(worker(until_quiet=True, dead=dead)[0], 0)
    print(json.dumps(hits))


def _killed(child: int) -> bool:
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _died_by_itself(child: int) -> bool:
    """Whether it got to its failpoint; else it is killed, for there may be nothing left to do."""
    end = time.monotonic() + HANG_LIMIT
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    _killed(child)
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
