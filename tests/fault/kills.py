"""Kills processes of a busy site at random moments, and says what became of all that was under way.

By hand, with as many kills as wanted: ``python -m tests.fault.kills 300`` (``--postgres``, ``--seed``). The suite makes
a few of workers alone (``tests/subagents/runs/test_kills.py``). Two workers, a web process and a host's ``runmcp`` are
kept running as the site's supervisor does; callers start runs of an expert tool and make calls that write, over REST, stdio
and headends. What a server really received stands in its journal.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import VAR, child_env  # before all else: it gives Django a folder of its own

# ruff: isort: split
import psutil
from django.core.management import call_command
from django.db import connections
from django.utils import timezone

from controlplane import site as processes
from controlplane.children import stop
from controlplane.databases import settings_for
from controlplane.supervisor import PREDECESSOR, Pauses
from mcpregistry.services.servers.connections import forget_stale, process_name
from subagents.domain.lifecycle import Exit
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.running import running as models_running
from subagents.llm.scripted.script import Script
from subagents.models import Run
from tests import forkserver, postgres, valkey
from tests.calls.conftest import broken
from tests.fakes.stage import Web, outside
from tests.fault.callers import Reports, prepare
from tests.fault.comparing import disagreements, effects, servers_left, silent_runs, twice
from tests.fault.headend_callers import HeadendCallers, headend_disagreements, places_in_use, prepare_headends
from tests.origin import Origin
from tests.subagents.kit import Bench
from tests.waiting import HANG_LIMIT, eventually

VICTIMS = {"worker": 7, "web": 2, "runmcp": 2}  # how often each kind is chosen
BETWEEN = (0.3, 2.5)  # seconds between two kills


@dataclass
class Figures(Reports):
    """What was seen. Times are seconds from the kill of a worker that held a run."""

    kills: Counter[str] = field(default_factory=Counter)
    hit: dict[str, float] = field(default_factory=dict)  # run -> when its worker was first killed
    taken_over: list[float] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)


@dataclass
class Verdict:
    """The figures as sentences, and what must not be."""

    lines: list[str]
    wrong: list[str]
    answered: float


class Site:
    """The processes, which are started again when they are killed, and told whom they replace."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env = env
        self._log = (folder / "workers.log").open("ab")
        self.workers: dict[str, forkserver.Process] = {}
        self.web = Web(env)

    def start_worker(self, name: str, predecessor: int = 0) -> None:
        command = [*processes.worker().argv[1:], "--hostname", f"{name}@kills"]
        env = self.env | {forkserver.PRELOAD: "tests.fault.preloaded"}
        env |= {PREDECESSOR: str(predecessor)} if predecessor else {}
        self.workers[name] = forkserver.popen(
            command, env=env, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def start_web(self, predecessor: int = 0) -> None:
        self.web.processes = [each for each in self.web.processes if each.poll() is None]
        self.web.start(**({PREDECESSOR: str(predecessor)} if predecessor else {}))

    def stop(self) -> None:
        for worker in self.workers.values():
            stop(worker, HANG_LIMIT)  # type: ignore[arg-type]  # it has the face of a Popen
        self.web.stop()
        self._log.close()


@contextmanager
def site(env: dict[str, str], folder: Path) -> Iterator[Site]:
    """Two workers, the clock and a web process; the broker is there already."""
    made = Site(env, folder)
    clock = subprocess.Popen(processes.beat().argv, env=env, stdout=made._log, stderr=made._log, start_new_session=True)
    try:
        for name in ("one", "two"):
            made.start_worker(name)
        eventually(lambda: (folder / "workers.log").read_bytes().count(b"ready.") >= len(made.workers))
        made.start_web()
        made.web.wait_ready()
        yield made
    finally:
        made.stop()
        stop(clock, HANG_LIMIT)


class Campaign(HeadendCallers):
    """Callers and a killer, on one event loop."""

    def __init__(self, here: Site, token: str, seed: int) -> None:
        self.figures = Figures()
        super().__init__(here.env, here.web.address, token, self.figures)
        self.site, self.chance = here, random.Random(seed)
        self._watching: set[asyncio.Task[None]] = set()

    def chosen(self, count: int) -> list[str]:
        """So many victims, by kind."""
        return self.chance.choices([*VICTIMS], [*VICTIMS.values()], k=count)

    async def run(self, victims: Sequence[str]) -> Figures:
        """Kill these, one after the other; then everything comes to its end undisturbed."""
        async with self.at_work():
            for number, kind in enumerate(victims):
                await asyncio.sleep(self.chance.uniform(*BETWEEN))
                await self._kill(kind)
                if number % 20 == 19:
                    print(f"{number + 1} kills, {len(self.figures.hit)} runs hit", file=sys.stderr, flush=True)
        await asyncio.gather(*self._watching)
        return self.figures

    # The killer

    async def _kill(self, kind: str) -> None:
        if kind == "runmcp":
            while not self.hosts:
                await asyncio.sleep(0.05)
            await self._killed(kind, self.hosts[0]._pipe.process)
        elif kind == "web":
            victim = self.site.web.processes[-1]
            await self._killed(kind, victim)
            await asyncio.sleep(Pauses().first)
            await asyncio.to_thread(self.site.start_web, victim.pid)
        else:
            await self._kill_worker(self.chance.choice([*self.site.workers]))

    async def _kill_worker(self, name: str) -> None:
        victim = self.site.workers[name]
        at = await self._killed("worker", victim)
        for run, fence in (await outside(_held_by, victim.pid)).items():
            self.figures.hit.setdefault(run, time.time())
            self._watch(self._taken_over(run, fence, at))
        await asyncio.sleep(Pauses().first)
        await asyncio.to_thread(self.site.start_worker, name, victim.pid)

    async def _killed(self, kind: str, victim: Any) -> float:
        """Kill it; what it had started must go with it. Returns when that was, by the steady clock."""
        family = psutil.Process(victim.pid).children(recursive=True)
        victim.kill()
        self.figures.kills[kind] += 1
        self._watch(self._family_gone(kind, family))
        return time.monotonic()

    def _watch(self, what: Any) -> None:
        task = asyncio.ensure_future(what)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _family_gone(self, kind: str, family: list[psutil.Process]) -> None:
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, HANG_LIMIT)
        self.figures.orphans += [f"{kind} left {each}" for each in alive]

    async def _taken_over(self, run: str, fence: int, at: float) -> None:
        while not await outside(_gone_on, run, fence):
            await asyncio.sleep(0.1)
        self.figures.taken_over.append(time.monotonic() - at)


def _held_by(pid: int) -> dict[str, int]:
    """Runs (and their fences) that the dead worker had."""
    return dict(Run.objects.open().filter(worker=process_name("worker", pid)).values_list("pk", "fence"))


def _gone_on(run: str, fence: int) -> bool:
    return not Run.objects.open().filter(pk=run, fence=fence).exists()


# What must be so


def verdict(figures: Figures, bench: Bench) -> Verdict:
    """Compare what callers were told, the records and the server's journal."""
    forget_stale(timezone.now())
    orphans = [*figures.orphans, *servers_left(bench)]
    writes = effects(bench)
    repeated = twice(writes)
    disagree = [*disagreements(figures, writes), *headend_disagreements(figures.headend_reports)]
    hit = Run.objects.filter(pk__in=figures.hit)
    ends = Counter(hit.values_list("exit", flat=True))
    stayed = len(figures.hit) - ends[Exit.CANCELLED]  # the others were cancelled, because their client had left
    answered = ends[Exit.ANSWER] / stayed if stayed else 1.0
    times = sorted(
        run.finished_at.timestamp() - figures.hit[run.pk] for run in hit if run.exit == Exit.ANSWER and run.finished_at
    )
    lines = [
        f"kills: {sum(figures.kills.values())} {dict(figures.kills)}",
        f"runs: {Run.objects.count()}, hit by the death of their worker: {len(figures.hit)}, of these answered: "
        f"{answered:.1%} {dict(ends)}",
        f"from kill to take-over: {_percentiles(figures.taken_over)}; from kill to answer: {_percentiles(times)}",
        f"callers told: {len(figures.run_reports)} of runs, {len(figures.call_reports)} of calls "
        f"{dict(Counter(report.state for report in figures.call_reports))}, nothing (their process died): {figures.without_report}",
        f"clients of headends: {dict(Counter(each.state for each in figures.headend_reports))}, places in use: {places_in_use()}",
        f"writes received: {len(writes)}, effects twice: {len(repeated)}, disagreements: {len(disagree)}, "
        f"orphans: {len(orphans)}, callers never answered: {figures.waiting}",
    ]
    never = ["callers were never answered"] if figures.waiting else []
    never += ["a place in a queue was never given back"] if places_in_use() else []
    return Verdict(lines, [*repeated, *disagree, *silent_runs(), *orphans, *never, *broken()], answered)


def _percentiles(times: list[float]) -> str:
    if len(times) < 2:
        return f"{times} s"
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    return f"p50 {cuts[9]:.1f} s, p95 {cuts[18]:.1f} s, max {max(times):.1f} s"


# By hand


@contextmanager
def database(on_postgres: bool) -> Iterator[None]:
    """An empty database of the site's own kind."""
    with ExitStack() as stack:
        if on_postgres:
            server = stack.enter_context(postgres.running())
            connections.databases["default"].update(settings_for(server.url, VAR))
            del connections["default"]
        call_command("migrate", verbosity=0)
        Origin.remember()  # the makers of rows look whether the site is new
        yield
        connections.close_all()


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """What ``prepare`` needs: scripted models that answer on this machine."""
    models = ScriptedModels(Script())
    with models_running(models) as base:
        yield Bench(base, models, folder / "journal")


def main(kills: int, seed: int, on_postgres: bool) -> int:
    """0 when nothing was wrong and nine of ten runs that were hit and not cancelled answered."""
    with database(on_postgres), valkey.running(VAR), bench(VAR) as made:
        token = prepare(made)
        prepare_headends()
        with site(child_env(), VAR) as here:
            campaign = Campaign(here, token, seed)
            figures = asyncio.run(campaign.run(campaign.chosen(kills)))
        found = verdict(figures, made)
    print("\n".join([*found.lines, *found.wrong]))
    return bool(found.wrong or found.answered < 0.9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    print(f"{options.kills} kills, seed {options.seed}", flush=True)
    sys.exit(main(options.kills, options.seed, options.postgres))
