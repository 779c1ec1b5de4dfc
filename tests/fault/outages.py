"""Breaks the database of a busy site again and again, as real ones break, and says what became of
all that was under way.

By hand, with as many faults as wanted: ``python -m tests.fault.outages 40`` (``--postgres``,
``--seed``). The site is started with ``manage.py up``. Callers start runs, make calls that write,
and make calls that a person approves, over REST and stdio. What a server really received stands in
its journal. Nothing is restarted or deleted by hand between the faults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import VAR  # before all else: it gives Django a folder of its own

# ruff: isort: split
import httpx2
import psutil
from django.contrib.auth.models import User
from django.db import Error, connections

from controlplane.child_processes import stop
from controlplane.databases import settings_for
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, Configuration, PolicyRule, Tool
from mcpregistry.services.approvals import votes
from mcpregistry.services.policy import rules
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server as models_running
from subagents.llm.scripted.script import Script
from tests import postgres
from tests.calls.conftest import ACTOR
from tests.externals import ROOT
from tests.fakes.stage import PLAIN, outside
from tests.fault import refusals, volume
from tests.fault.callers import Reports, prepare
from tests.fault.cluster import Cluster, cluster
from tests.fault.comparing import disagreements, effects, left_running, silent_runs, twice
from tests.fault.headend_callers import (
    HeadendCallers,
    headend_disagreements,
    places_in_use,
    prepare_headends,
)
from tests.origin import Origin
from tests.subagents.kit import Bench
from tests.waiting import HANG_LIMIT, eventually

PROMISED = 3.0  # seconds until the site works again, where the machine has time
LASTING = (1.0, 6.0)  # seconds of a fault
BETWEEN = (0.5, 2.0)  # seconds between the site's recovery and the next fault
BEYOND_PATIENCE = 22.0  # seconds: longer than anybody waits for a lock of SQLite
MEGABYTES = 200  # of the volume of a site with SQLite
LAST_LINE = "3. Or connect over HTTP"
Fault = Callable[[], AbstractContextManager[None]]


@dataclass
class Figures(Reports):
    """What was seen. Times are seconds from the end of a fault to the first call that succeeded,
    and to ``/readyz``."""

    works: list[tuple[str, float]] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)


# Faults


def faults_of_postgres(server: Cluster, *, own_volume: bool) -> dict[str, Fault]:
    """By name."""
    known: dict[str, Fault] = {
        "new sessions are read-only": refusals.read_only,
        "read-only": lambda: server.configured("default_transaction_read_only", "on"),
        "statement timeout": refusals.slow,
        "idle timeout": lambda: server.configured("idle_in_transaction_session_timeout", "1ms"),
        "revoked privileges": refusals.revoked,
        "too many connections": server.crowded,
        "restart": server.restarting,
        "failover": server.failing_over,
        "full disk": server.full if own_volume else refusals.full,
    }
    return known


def faults_of_sqlite(file: Path, *, own_volume: bool) -> dict[str, Fault]:
    """By name."""
    known: dict[str, Fault] = {
        "locked": lambda: locked(file),
        "locked for long": lambda: locked_for_long(file),
    }
    return known | ({"full disk": lambda: volume.full(VAR)} if own_volume else {})


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process holds the lock of writers."""
    with closing(
        sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=HANG_LIMIT)
    ) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


@contextmanager
def locked_for_long(file: Path) -> Iterator[None]:
    """The same, beyond everybody's patience."""
    with locked(file):
        yield
        time.sleep(BEYOND_PATIENCE)


# The site


class Up:
    """``manage.py up`` in a folder."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self.env = dict(env)
        self.log = folder / "up.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--port", "0"],
                cwd=ROOT,
                env=self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it has started."""
        eventually(
            lambda: LAST_LINE in self.text() or self.process.poll() is not None, 3 * HANG_LIMIT
        )
        assert self.process.poll() is None, self.text()

    @property
    def address(self) -> str:
        found = re.search(r"the site answers at http://(\S+?)/ ", self.text())
        assert found is not None
        return found[1]

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def deaths(self) -> list[str]:
        """Processes that ended by themselves, in the supervisor's words."""
        return [line for line in self.text().splitlines() if "starting it again" in line]

    def errors(self) -> Counter[str]:
        """What the processes logged as errors, by event."""
        return Counter(re.findall(r'"event": ?"([^"]+)"[^\n]*"level": ?"error"', self.text()))

    def manage(self, *words: str) -> str:
        """What the command says if it fails; else nothing."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
        )
        return f"{' '.join(words)}: {done.stdout}{done.stderr}" if done.returncode else ""

    def stop(self) -> list[str]:
        """End it. Returns what ran on."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        stop(self.process, 2 * HANG_LIMIT)
        _, alive = psutil.wait_procs(family, HANG_LIMIT)
        return [f"left by up: {each}" for each in alive]


class Campaign(HeadendCallers):
    """Callers, a person who approves, and faults one after the other, on one event loop."""

    def __init__(
        self, here: Up, token: str, faults: Mapping[str, Fault], seed: int, hands: Executor
    ) -> None:
        self.figures = Figures()
        super().__init__(here.env, here.address, token, self.figures)
        self._faults = faults
        self._chance = random.Random(seed)
        self._hands = hands

    def callers(self) -> list[Callable[[], Awaitable[Any]]]:
        return [
            *super().callers(),
            self.write_once,
            self.write_once,
            self.hold_once,
            self.hold_once,
        ]

    def chosen(self, count: int) -> list[str]:
        """So many faults: each kind as often as the others, in any order."""
        names = [*self._faults] * (count // len(self._faults) + 1)
        chosen = names[:count]
        self._chance.shuffle(chosen)
        return chosen

    async def run(self, names: list[str]) -> Figures:
        """These faults, one after the other; then everything comes to its end undisturbed."""
        approving = asyncio.create_task(self._approve())
        async with self.at_work():
            await self._recovered()
            for name in names:
                await asyncio.sleep(self._chance.uniform(*BETWEEN))
                await self._one(name)
        approving.cancel()
        return self.figures

    async def _one(self, name: str) -> None:
        with ExitStack() as fault:
            await self._by_hand(fault.enter_context, self._faults[name]())
            await asyncio.sleep(self._chance.uniform(*LASTING))
            await self._by_hand(fault.close)
        ended = time.monotonic()
        ready = asyncio.create_task(self._ready())
        await self._recovered()
        self.figures.works.append((name, time.monotonic() - ended))
        self.figures.ready.append(await ready - ended)
        done = f"{len(self.figures.works)} {name}: works after {self.figures.works[-1][1]:.2f} s"
        print(done, file=sys.stderr, flush=True)

    async def _by_hand(self, function: Callable[..., Any], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._hands, function, *arguments)

    async def _recovered(self) -> None:
        """Until a call that was begun since has succeeded."""
        deadline = time.monotonic() + HANG_LIMIT
        while (
            report := await self.write_once(steps=1, pause=0)
        ).state != InvocationState.SUCCEEDED:
            assert time.monotonic() < deadline, report
            await asyncio.sleep(0.05)

    async def _ready(self) -> float:
        async with httpx2.AsyncClient(timeout=HANG_LIMIT, **PLAIN) as client:
            while (await client.get(f"http://{self.address}/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        return time.monotonic()

    async def _approve(self) -> None:
        while True:
            await outside(_approve_all)
            await asyncio.sleep(0.3)


def _approve_all() -> None:
    """Approve what waits. While the database refuses, a person tries again later."""
    try:
        bob = User.objects.get(username="bob")
        for waiting in ApprovalRequest.objects.filter(call__state=InvocationState.PENDING):
            votes.vote(request_id=waiting.pk, user=bob, approve=True, via="web")
    except (Error, SlipsnisseError):
        return


# What must be so


def verdict(figures: Figures, here: Up, bench: Bench) -> tuple[list[str], list[str]]:
    """The figures as sentences, and what must not be. The site still runs, and is ended."""
    refusals.let_go()
    writes = effects(bench)
    repeated = twice(writes)
    disagree = [*disagreements(figures, writes), *headend_disagreements(figures.headend_reports)]
    commands = [here.manage("invariants", "--strict"), here.manage("audit", "verify")]
    deaths = here.deaths()
    orphans = [*here.stop(), *left_running(bench.journal)]
    states = Counter(each.state for each in (*figures.call_reports, *figures.single_reports))
    times = [seconds for _, seconds in figures.works]
    lines = [
        f"faults: {len(times)} {dict(Counter(name for name, _ in figures.works))}",
        f"callers told: {len(figures.run_reports)} of runs {dict(Counter(each.state for each in figures.run_reports))}, "
        f"{sum(states.values())} of calls {dict(states)}, nothing: {figures.without_report}",
        f"clients of headends: {dict(Counter(each.state for each in figures.headend_reports))}, places in use: {places_in_use()}",
        f"effects: {len(writes)}, twice: {len(repeated)}, disagreements: {len(disagree)}, orphans: {len(orphans)}, "
        f"callers never answered: {figures.waiting}, processes that ended: {len(deaths)}",
        f"works again: median {statistics.median(times):.2f} s, worst {max(times):.2f} s (promised {PROMISED:g}); "
        f"ready: median {statistics.median(figures.ready):.2f} s, worst {max(figures.ready):.2f} s",
        *(
            f"  {name}: {' '.join(f'{seconds:.2f}' for other, seconds in figures.works if other == name)}"
            for name in sorted({name for name, _ in figures.works})
        ),
        f"reasons of calls that were not made: {dict(_reasons(figures))}",
        f"errors in the log: {dict(here.errors())}",
    ]
    never = ["callers were never answered"] if figures.waiting else []
    never += ["a place in a queue was never given back"] if places_in_use() else []
    return lines, [
        *repeated,
        *disagree,
        *silent_runs(),
        *orphans,
        *deaths,
        *never,
        *filter(None, commands),
    ]


def _reasons(figures: Figures) -> Counter[str]:
    unmade = [
        report.answer
        for report in (*figures.call_reports, *figures.single_reports)
        if report.state in ("failed", "not_sent")
    ]
    return Counter(
        ", ".join(sorted(set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", text))))[:80] for text in unmade
    )


# By hand


def asking(bench: Bench) -> str:
    """What ``prepare`` makes, and a tool about which a person is asked. Returns the token."""
    token = prepare(bench, "hold")
    prepare_headends()
    User.objects.create_superuser("bob")
    held = Tool.objects.get(name="hold")
    Configuration.objects.update(default_outcome="allow")
    for rule in (  # above those that a new site has
        PolicyRule(name="slow", server=held.server, outcome="allow", priority=900),
        PolicyRule(name="hold", server=held.server, tool=held, outcome="ask", priority=901),
    ):
        rules.save_rule(rule=rule, actor=ACTOR)
    return token


@contextmanager
def database(on_postgres: bool, own_volume: bool) -> Iterator[tuple[str, dict[str, Fault]]]:
    """An empty database of the site's own kind: its address for the site, and its faults."""
    with ExitStack() as stack:
        if on_postgres:
            server = stack.enter_context(cluster(own_volume=own_volume))
            connections.databases["default"].update(settings_for(server.url(postgres.USER), VAR))
            del connections["default"]
            yield server.url(refusals.ROLE), faults_of_postgres(server, own_volume=own_volume)
        else:
            if own_volume:
                stack.enter_context(volume.mounted(VAR, MEGABYTES))
            file = Path(connections["default"].settings_dict["NAME"])
            yield f"sqlite:///{file}", faults_of_sqlite(file, own_volume=own_volume)
        refusals.let_go()


@contextmanager
def site(url: str, folder: Path) -> Iterator[Up]:
    """A site that has started."""
    env = {name: value for name, value in os.environ.items() if name != "CELERY_BROKER_URL"}
    here = Up(env | {"DATABASE_URL": url, "SLIPSNISSE_LOG_FORMAT": "json"}, folder)
    try:
        here.wait()
        yield here
    finally:
        stop(here.process, 2 * HANG_LIMIT)


def main(count: int, seed: int, on_postgres: bool, only: list[str]) -> int:
    """0 when nothing was wrong."""
    own_volume = volume.can_mount()
    models = ScriptedModels(Script())
    with (
        ThreadPoolExecutor(1) as hands,  # a server that it starts ends with this thread
        tempfile.TemporaryDirectory(prefix="slipsnisse-outages-", dir="/tmp") as folder,
        database(on_postgres, own_volume) as (url, faults),
        models_running(models) as base,
        site(url, Path(folder)) as here,
    ):
        Origin.remember()  # the makers of rows look whether the site is new
        bench = Bench(base, models, Path(folder) / "journal")
        campaign = Campaign(
            here,
            asking(bench),
            {n: f for n, f in faults.items() if not only or n in only},
            seed,
            hands,
        )
        figures = asyncio.run(campaign.run(campaign.chosen(count)))
        lines, wrong = verdict(figures, here, bench)
        if wrong:
            kept = Path(tempfile.mkdtemp(prefix="slipsnisse-outages-kept-", dir="/tmp"))
            (kept / "up.log").write_text(here.text())
            (kept / "report.json").write_text(
                json.dumps([str(each) for each in vars(figures).items()])
            )
            wrong.append(f"the log of the site is kept in {kept}")
    print("\n".join([*lines, *wrong]))
    return bool(wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", type=int, nargs="?", default=40)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument(
        "--only", action="append", default=[], help="a kind of fault; may be given several times"
    )
    options = parser.parse_args()
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # what it sees is what is done here
    print(f"{options.faults} faults, seed {options.seed}", flush=True)
    sys.exit(main(options.faults, options.seed, options.postgres, options.only))
