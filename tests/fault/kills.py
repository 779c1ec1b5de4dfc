"""Kills processes of a busy site at random moments, and says what became of all that was under way.

By hand, with as many kills as wanted: ``python -m tests.fault.kills 300`` (``--postgres``,
``--seed``). The suite makes a few of workers alone (``tests/subagents/runs/test_kills.py``). Two
workers, a web process and a host's ``runmcp`` are kept running as the site's supervisor does;
callers start runs of an expert tool and make calls that write, over REST, stdio and headends. What
a server really received stands in its journal.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.conftest import VAR, child_env  # before all else: it gives Django a folder of its own

# ruff: isort: split
from django.utils import timezone

from mcpregistry.services.servers.connections import forget_stale, make_process_name
from subagents.domain.lifecycle import Exit
from subagents.models import Run
from tests import valkey
from tests.calls.conftest import broken
from tests.fakes.stage import outside
from tests.fault.callers import Reports, prepare
from tests.fault.comparing import disagreements, effects, left_running, silent_runs, twice
from tests.fault.headend_callers import (
    HeadendCallers,
    headend_disagreements,
    places_in_use,
    prepare_headends,
)
from tests.fault.killing import Killer, Site, bench, database, site
from tests.subagents.kit import Bench

VICTIMS = {"worker": 7, "web": 2, "runmcp": 2}  # how often each kind is chosen
BETWEEN = (0.3, 2.5)  # seconds between two kills


@dataclass
class Figures(Reports):
    """What was seen. Times are seconds from the kill of a worker that held a run."""

    hit: dict[str, float] = field(default_factory=dict)  # run -> when its worker was first killed
    taken_over: list[float] = field(default_factory=list)


@dataclass
class Verdict:
    """The figures as sentences, and what must not be."""

    lines: list[str]
    wrong: list[str]
    answered: float


class Campaign(HeadendCallers):
    """Callers and a killer, on one event loop."""

    def __init__(self, here: Site, token: str, seed: int) -> None:
        self.figures = Figures()
        super().__init__(here.env, here.web.address, token, self.figures)
        self.chance = random.Random(seed)
        self.killer = Killer(here, lambda: self.hosts, self.chance)

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
                    print(
                        f"{number + 1} kills, {len(self.figures.hit)} runs hit",
                        file=sys.stderr,
                        flush=True,
                    )
        await self.killer.rest()
        return self.figures

    # The killer

    async def _kill(self, kind: str) -> None:
        victim = await self.killer.end(kind)
        if kind == "worker":
            at = time.monotonic()
            for run, fence in (await outside(_held_by, victim.pid)).items():
                self.figures.hit.setdefault(run, victim.at)
                self.killer.watch(self._taken_over(run, fence, at))
        await self.killer.start_again(victim)

    async def _taken_over(self, run: str, fence: int, at: float) -> None:
        while not await outside(_gone_on, run, fence):
            await asyncio.sleep(0.1)
        self.figures.taken_over.append(time.monotonic() - at)


def _held_by(pid: int) -> dict[str, int]:
    """Runs (and their fences) that the dead worker had."""
    return dict(
        Run.objects.open()
        .filter(worker=make_process_name("worker", pid))
        .values_list("pk", "fence")
    )


def _gone_on(run: str, fence: int) -> bool:
    return not Run.objects.open().filter(pk=run, fence=fence).exists()


# What must be so


def verdict(campaign: Campaign, bench: Bench) -> Verdict:
    """Compare what callers were told, the records and the server's journal."""
    forget_stale(timezone.now())
    figures = campaign.figures
    kills = campaign.killer.kills
    orphans = [*campaign.killer.wrong, *left_running(bench.journal)]
    writes = effects(bench)
    repeated = twice(writes)
    disagree = [*disagreements(figures, writes), *headend_disagreements(figures.headend_reports)]
    hit = Run.objects.filter(pk__in=figures.hit)
    ends = Counter(hit.values_list("exit", flat=True))
    # the others were cancelled, because their client had left
    stayed = len(figures.hit) - ends[Exit.CANCELLED]
    answered = ends[Exit.ANSWER] / stayed if stayed else 1.0
    times = sorted(
        run.finished_at.timestamp() - figures.hit[run.pk]
        for run in hit
        if run.exit == Exit.ANSWER and run.finished_at
    )
    lines = [
        f"kills: {kills.total()} { ({kind: count for (kind, _), count in kills.items()}) }",
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
    return Verdict(
        lines, [*repeated, *disagree, *silent_runs(), *orphans, *never, *broken()], answered
    )


def _percentiles(times: list[float]) -> str:
    if len(times) < 2:
        return f"{times} s"
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    return f"p50 {cuts[9]:.1f} s, p95 {cuts[18]:.1f} s, max {max(times):.1f} s"


# By hand


def main(kills: int, seed: int, on_postgres: bool) -> int:
    """0 when nothing was wrong and nine of ten runs that were hit and not cancelled answered."""
    with database(on_postgres), valkey.running(VAR), bench(VAR) as made:
        token = prepare(made)
        prepare_headends()
        with site(child_env(), VAR) as here:
            campaign = Campaign(here, token, seed)
            asyncio.run(campaign.run(campaign.chosen(kills)))
        found = verdict(campaign, made)
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
