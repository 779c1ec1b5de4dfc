"""Kills web processes that own the connections of many host sessions, and says whether a session's
state ever split or vanished silently.

By hand: ``python -m tests.fault.session_kills 12`` (``--hosts 50``, ``--web 3``, ``--postgres``,
``--seed``). Each host has a session of its own with a server that counts its calls, so it sees from
each answer which process of the server has answered, and which state that had.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.conftest import VAR, child_env  # before all else: it gives Django a folder of its own

# ruff: isort: split
import httpx2

from mcpregistry.calls.connection_placement import STATE_IS_NEW
from mcpregistry.db import read_database_now
from mcpregistry.models import Invocation, SessionOwner
from tests import valkey
from tests.calls.conftest import broken
from tests.fakes.hosts import HttpHost, Lost
from tests.fakes.stage import Stage, listed
from tests.fakes.targets import SERVERS
from tests.fault.comparing import left_running
from tests.fault.killing import Killer, Site, database, site
from tests.fault.server_kills import kills_table, table
from tests.processes import with_words
from tests.waiting import HANG_LIMIT, until

ERA = "2025-11-25"  # hosts of this era have sessions
SIGNALS = {signal.SIGKILL: 6, signal.SIGTERM: 2, signal.SIGSTOP: 1}
PAUSE = 12.0  # seconds
BETWEEN = (2.0, 4.0)  # seconds between two kills
THINKING = (0.05, 0.4)  # seconds between two calls of a host
WORKING = 0.3  # seconds of a call


class Heard(StrEnum):
    """What a host got for a call. ``AGAIN``: its session had ended, and it began another."""

    ANSWER = "answer"
    ERROR = "error"
    NOTHING = "nothing"
    AGAIN = "session again"


@dataclass(frozen=True, slots=True)
class Answer:
    """``server`` and ``count``: the process of the server that answered, and its count.
    ``is_noted``: it came with the word that the state is new."""

    heard: Heard
    server: int = 0
    count: int = 0
    is_noted: bool = False
    words: str = ""

    @property
    def is_not_sent(self) -> bool:
        """Whether the host was told that the server has not got the call."""
        return "NOT SENT" in self.words or "Nothing was done" in self.words


@dataclass
class Member:
    """A host and what it heard."""

    host: HttpHost
    answers: list[Answer] = field(default_factory=list)
    longest: float = 0.0  # seconds of a call

    async def call(self) -> Answer:
        """Make one call, and keep what came of it."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(2 * HANG_LIMIT):
                answer = _read(
                    await self.host.call("counter__add", {"pause": WORKING}, progress=False)
                )
        except (Lost, TimeoutError):
            answer = Answer(Heard.NOTHING)
        self.longest = max(self.longest, time.monotonic() - began)
        self.answers.append(answer)
        if (
            answer.heard == Heard.ERROR
            and "session" in answer.words.lower()
            and "initialize" in answer.words.lower()
        ):
            await self._begin_again()
        return answer

    async def _begin_again(self) -> None:
        self.host._session = {}
        try:
            await self.host.handshake()
        except (Lost, httpx2.HTTPError):
            return
        self.answers.append(Answer(Heard.AGAIN))


def _read(result: dict[str, Any]) -> Answer:
    texts = [part.get("text", "") for part in result.get("content", [])]
    if "error" in result or result.get("isError"):
        return Answer(Heard.ERROR, words=str(result.get("error") or texts))
    found = re.fullmatch(r"(\d+) (\d+)", texts[-1])
    assert found is not None, result
    return Answer(Heard.ANSWER, int(found[1]), int(found[2]), texts[0] == STATE_IS_NEW)


def splits(answers: Sequence[Answer]) -> Iterator[str]:
    """Where the state of one session went back, was new without a word, or had counted a call
    twice."""
    server = 0
    count = 0
    unclear = 0
    known = set[int]()
    for answer in answers:
        if answer.heard == Heard.AGAIN:
            server = 0
            count = 0
            unclear = 0
        elif answer.heard != Heard.ANSWER:
            unclear += not answer.is_not_sent  # it may have been counted
        else:
            is_new = answer.server != server
            if is_new and answer.server in known:
                yield f"it went back to an earlier state: {answer}"
            if is_new and server and not answer.is_noted:
                yield f"its state is new, and it was not told: {answer}"
            if not is_new and answer.is_noted:
                yield f"its state is not new, and it was told so: {answer}"
            before = 0 if is_new else count
            if not before < answer.count <= before + 1 + unclear:
                yield f"{answer} after {before} and {unclear} calls whose end is not known"
            server = answer.server
            count = answer.count
            unclear = 0
            known.add(server)


class Campaign:
    """Hosts and a killer, on one event loop."""

    def __init__(self, here: Site, token: str, seed: int) -> None:
        self.here = here
        self._token = token
        self.chance = random.Random(seed)
        self.killer = Killer(here, lambda: (), self.chance)
        self.members: list[Member] = []
        self.wrong: list[str] = []
        self._calling = True

    async def run(self, hosts: int, kills: int) -> None:
        """Kill so many; at the end each host is answered twice more, and every process of the
        server belongs to a session."""
        async with AsyncExitStack() as stack:
            for number in range(
                hosts
            ):  # every other one opens a connection for each request, and so meets all processes
                client = await stack.enter_async_context(
                    self.here.web.raw(self._token, kept=number % 2 == 0)
                )
                self.members.append(Member(HttpHost(client, self.here.web.url(), era=ERA)))
            await asyncio.gather(*(self._begin(each) for each in self.members))
            callers = [asyncio.ensure_future(self._call_on(each)) for each in self.members]
            await until(lambda: all(each.answers for each in self.members))
            for number in self.chance.choices([*SIGNALS], [*SIGNALS.values()], k=kills):
                await asyncio.sleep(self.chance.uniform(*BETWEEN))
                if number == signal.SIGSTOP:
                    await self.killer.pause("web", PAUSE)
                else:
                    await self.killer.start_again(await self.killer.end("web", number))
            await self.killer.rest()
            self._calling = False
            await asyncio.gather(*callers)
            await asyncio.gather(*map(self._work_again, self.members))
            self.wrong += await asyncio.to_thread(self._strangers)

    async def _begin(self, member: Member) -> None:
        await member.host.handshake()

    async def _call_on(self, member: Member) -> None:
        while self._calling:
            await member.call()
            await asyncio.sleep(self.chance.uniform(*THINKING))

    async def _work_again(self, member: Member) -> None:
        deadline = time.monotonic() + HANG_LIMIT
        answered = 0
        while answered < 2 and time.monotonic() < deadline:
            answered = answered + 1 if (await member.call()).heard == Heard.ANSWER else 0
        if answered < 2:
            self.wrong.append(f"a host is not answered any more: {member.answers[-1]}")

    def _strangers(self) -> list[str]:
        """Processes of the server that no session has."""
        ours = {next(a.server for a in reversed(each.answers) if a.server) for each in self.members}
        running = {
            each.pid
            for each in with_words("/counter.py")
            if "launcher.py" not in " ".join(each.cmdline())
        }
        return [f"the process {pid} of the server belongs to no session" for pid in running - ours]


def verdict(campaign: Campaign) -> tuple[list[str], list[str]]:
    """The figures as tables, and what must not be."""
    answers = [answer for each in campaign.members for answer in each.answers]
    wrong = [
        f"host {number}: {each}"
        for number, member in enumerate(campaign.members)
        for each in splits(member.answers)
    ]
    mute = [
        f"an error without words: {each}"
        for each in answers
        if each.heard == Heard.ERROR and not each.words.strip()
    ]
    hung = [
        f"a call took {each.longest:.0f} s"
        for each in campaign.members
        if each.longest >= HANG_LIMIT - 1
    ]
    owned = [
        f"a session is still owned: {row}"
        for row in SessionOwner.objects.filter(lease_until__gt=read_database_now())
    ]
    open_calls = [f"a call is open: {each}" for each in Invocation.objects.open()]
    left = [*campaign.killer.wrong, *left_running(VAR / "journal")]
    found = {
        "state split or silently new": wrong,
        "errors without words": mute,
        "calls that hung": hung,
        "calls open": open_calls,
        "sessions still owned": owned,
        "processes left": left,
        "hosts not answered, strange processes": campaign.wrong,
        "invariants": broken(),
    }
    heard = Counter(str(each.heard) for each in answers)
    states = sum(
        len({each.server for each in member.answers if each.server}) for member in campaign.members
    )
    errors = Counter(
        re.sub(r"\d+", "N", each.words)[:100] for each in answers if each.heard == Heard.ERROR
    )
    rows = [
        ["calls", len(answers)],
        *([f"  heard {what}", many] for what, many in heard.items()),
        ["states of all sessions", states],
        ["told that the state is new", sum(each.is_noted for each in answers)],
        ["longest call", f"{max(each.longest for each in campaign.members):.1f} s"],
    ]
    lines = [
        *kills_table(campaign.killer, ["web"]),
        "",
        *table(rows),
        "",
        *(f"{many} times: {words}" for words, many in errors.most_common(8)),
        "",
        *table(
            [["compared", "disagreements"], *([what, len(each)] for what, each in found.items())]
        ),
    ]
    return lines, [f"{what}: {each}" for what, many in found.items() for each in many[:20]]


def prepare(env: dict[str, str]) -> str:
    """A server with state for each session; the token of the agent of all hosts."""
    stage = Stage(env)
    stage.endpoint()
    tools = listed("add")
    server = stage.server(
        "counter",
        tools,
        command=[sys.executable, "-S", str(SERVERS / "counter.py")],
        shared_by="session",
        max_sessions=500,
        env={"FAKE_LISTED": json.dumps(tools), "TESTS_SITE": str(VAR / "journal")},
        protocol_mode="legacy",
        connect_timeout=HANG_LIMIT,
    )
    return stage.agent("local", server)


def main(kills: int, hosts: int, web: int, seed: int, on_postgres: bool) -> int:
    """0 when nothing was wrong."""
    began = time.monotonic()
    with database(on_postgres), valkey.running(VAR):
        token = prepare(child_env())
        with site(child_env(), VAR, web=web) as here:
            campaign = Campaign(here, token, seed)
            asyncio.run(campaign.run(hosts, kills))
        lines, wrong = verdict(campaign)
    kind = "PostgreSQL" if on_postgres else "SQLite"
    print(
        "\n".join(
            [
                f"{kind}: {kills} kills of {web} web processes, {hosts} hosts, {time.monotonic() - began:.0f} s",
                *lines,
                *wrong,
            ]
        )
    )
    return bool(wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kills", type=int, nargs="?", default=12)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--web", type=int, default=3, help="web processes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    print(f"{options.kills} kills, seed {options.seed}", flush=True)
    sys.exit(main(options.kills, options.hosts, options.web, options.seed, options.postgres))
