"""Kills, ends and pauses processes of a site while packages are installed, servers are tested,
tried and checked, and calls are charged.

By hand: ``python -m tests.fault.server_kills 60`` (``--postgres``, ``--seed``). Two workers, two
web processes, the clock and a host's ``runmcp`` are kept running as the site's supervisor does.
Afterwards it compares what callers were told with the records, the journals of the servers, the
folders of packages, the books of energy and the processes in /proc, prints a table, and exits with
1 if anything disagrees.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conftest import VAR, child_env  # before all else: it gives Django a folder of its own

# ruff: isort: split
from django.utils import timezone

from mcpregistry.db import read_database_now
from mcpregistry.domain.installs.states import InstallState
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.downstream.installers import package_tree, programs
from mcpregistry.models import (
    BudgetReservation,
    EnergyReservation,
    Install,
    Invocation,
    Server,
    ServerTest,
    SessionOwner,
    SiteProcess,
)
from mcpregistry.models.install import FOLDER
from mcpregistry.services.servers.connections import forget_stale, make_process_name
from mcpregistry.services.upkeep import processes
from subagents.models import MaintenanceRequest, TrialReport
from tests import valkey
from tests.calls.conftest import broken
from tests.fakes.packages import serving
from tests.fakes.stage import outside
from tests.fault.books import Known, wrong_books
from tests.fault.callers import PATIENCE, Reports
from tests.fault.comparing import disagreements, effects, left_running, silent_runs, twice
from tests.fault.killing import Killer, Site, bench, database, site
from tests.fault.server_callers import (
    AGENT_TEST,
    INSTALL,
    TEST,
    TRIAL,
    ServerCallers,
    Tokens,
    WorkReport,
    prepare_servers,
)
from tests.subagents.kit import Bench

VICTIMS = {"worker": 6, "web": 4, "runmcp": 3, "clock": 2}  # how often each kind is chosen
SIGNALS = {signal.SIGKILL: 8, signal.SIGTERM: 2, signal.SIGSTOP: 2}
PAUSES = (2.0, 13.0)  # seconds; after the second it has counted as dead
BETWEEN = (0.3, 2.5)  # seconds between two of them
REQUEST = "maintenance request"


class Campaign(ServerCallers):
    """Callers and a killer, on one event loop."""

    def __init__(self, here: Site, known: Tokens, seed: int) -> None:
        self.figures = Reports()
        super().__init__(here.env, here.web.address, known, self.figures)
        self.chance = random.Random(seed)
        self.killer = Killer(here, lambda: self.hosts, self.chance)
        self.wrong: list[str] = []
        self.hit: Counter[str] = Counter()

    async def run(self, kills: int) -> None:
        """Kill so many; then everything comes to its end undisturbed, and each kind of work
        succeeds once more."""
        async with self.at_work():
            kinds = self.chance.choices([*VICTIMS], [*VICTIMS.values()], k=kills)
            for number, kind in enumerate(kinds):
                await asyncio.sleep(self.chance.uniform(*BETWEEN))
                await self._strike(kind)
                if number % 20 == 19:
                    print(
                        f"{number + 1} kills, {len(self.work_reports)} pieces of work ended",
                        file=sys.stderr,
                        flush=True,
                    )
            await self.killer.rest()
        self.wrong += await self.work_again()
        deadline = time.monotonic() + PATIENCE
        while await outside(wrong_folders) and time.monotonic() < deadline:
            await asyncio.sleep(1)

    async def _strike(self, kind: str) -> None:
        number = self.chance.choices([*SIGNALS], [*SIGNALS.values()])[0]
        if number == signal.SIGSTOP:
            await self.killer.pause(kind, self.chance.choice(PAUSES))
        else:
            victim = await self.killer.end(kind, number)
            self.hit += await outside(under_way, kind, victim.pid)
            await self.killer.start_again(victim)


def under_way(kind: str, pid: int) -> Counter[str]:
    """What a process that has just ended leaves unfinished."""
    ours = processes.make_host_prefix(kind, pid)
    installs = Install.objects.filter(
        state__in=["resolving", "installing"], worker__startswith=ours
    )
    tests = ServerTest.objects.filter(verdict="running", worker__startswith=ours)
    checks = Server.objects.filter(check_until__isnull=False, check_by__startswith=ours)
    requests = MaintenanceRequest.objects.open().filter(worker=make_process_name(kind, pid))
    calls = Invocation.objects.open().filter(writer__startswith=ours)
    return Counter(
        {
            INSTALL: installs.count(),
            TEST: tests.count(),
            "check": checks.count(),
            REQUEST: requests.count(),
            "call": calls.count(),
        }
    )


# What must be so. Each yields what is not.


def wrong_folders() -> list[str]:
    """Folders of packages that are not what their rows say: what is installed is there whole, and
    nothing else is there."""
    root = Path(VAR, FOLDER)
    rows = {str(row.uid): row for row in Install.objects.all()}
    wrong = [
        f"{name} belongs to no package"
        for name in (os.listdir(root) if root.exists() else [])
        if name not in rows
    ]
    whole: dict[str, set[tuple[tuple[str, int], ...]]] = {}
    for row in rows.values():
        is_installed = row.state == InstallState.INSTALLED
        there = os.listdir(row.place) if os.path.isdir(row.place) else []
        if there != ([row.lock_sha256] if is_installed else []):
            wrong.append(f"package {row.pk} is {row.state}, and its folder holds {there}")
        elif is_installed:
            found = package_tree.verify(row.folder, may_lead_to=frozenset({programs.find_python()}))
            if found != (row.size, row.files):
                wrong.append(
                    f"package {row.pk} has {found} bytes and files instead of {(row.size, row.files)}"
                )
            whole.setdefault(row.lock_sha256, set()).add(_files_of(Path(row.folder)))
    return wrong + [
        f"installations of the lock {lock} differ"
        for lock, trees in whole.items()
        if len(trees) > 1
    ]


def _files_of(folder: Path) -> tuple[tuple[str, int], ...]:
    """The paths and sizes of the files that no installation of the same lock has otherwise."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return tuple(
        (str(path.relative_to(folder)), path.stat().st_size)
        for path in files
        if path.suffix != ".pyc"
    )


def wrong_work(reports: Sequence[WorkReport], looks: Counter[str]) -> Iterator[str]:
    """Work whose record says something else than its caller was told, that failed without a reason,
    or that was done twice."""
    for report in reports:
        if report.state == "failed" and not report.reason:
            yield f"{report} has no reason"
        if report.kind == INSTALL:
            rows = list(Install.objects.filter(slug=report.text).values_list("pk", "state"))
            if rows not in ([(int(report.key), report.state)], [(int(report.key), "removed")]):
                yield f"{report}, but the records are {rows}"
        elif report.kind == TEST:
            yield from _wrong_test(report, looks[report.text])
        else:
            row = MaintenanceRequest.objects.get(pk=report.key)
            if row.state != report.state or TrialReport.objects.filter(request=row).count() > 1:
                yield f"{report}, but the record says {row.state}"


def _wrong_test(report: WorkReport, received: int) -> Iterator[str]:
    """``received``: how often the server got the call of this test."""
    test = ServerTest.objects.get(pk=report.key)
    calls = list(
        Invocation.objects.filter(request_id=f"test-{test.pk}").values_list("state", flat=True)
    )
    if test.verdict != report.state:
        yield f"{report}, but the record says {test.verdict}"
    if received > 1 or len(calls) > 1:
        yield f"{report}: its call was made {received} times, and recorded {len(calls)} times"
    if report.state == "passed" and (received, calls) != (1, [InvocationState.SUCCEEDED]):
        yield f"{report}, but its call was received {received} times and is recorded as {calls}"
    if received and not calls:
        yield f"{report}: its call was made without a record"


def leftovers() -> Iterator[str]:
    """Leases and reservations that nobody gives back, and work that has not ended, on a site that
    has stopped."""
    now = read_database_now()
    left = {
        "energy is set aside": EnergyReservation.objects.all(),
        "budgets are reserved": BudgetReservation.objects.all(),
        "calls are open": Invocation.objects.open(),
        "tests have no verdict": ServerTest.objects.exclude(verdict__in=["passed", "failed"]),
        "checks of servers have not ended": Server.objects.filter(check_until__gt=now),
        "packages are being worked on": Install.objects.exclude(
            state__in=["waiting", "installed", "failed", "removed"]
        ),
        "packages are leased": Install.objects.exclude(lease_until=None),
        "maintenance requests are open": MaintenanceRequest.objects.open(),
        "servers are kept for a request": MaintenanceRequest.objects.exclude(working_on=None),
        "sessions are owned": SessionOwner.objects.filter(lease_until__gt=now),
        "processes count as alive": SiteProcess.objects.filter(lease_until__gt=now),
    }
    for what, rows in left.items():
        if found := list(rows[:3]):
            yield f"{what}: {found}"


def table(rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with columns."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]


def kills_table(killer: Killer, kinds: Sequence[str]) -> list[str]:
    """How many processes of each kind got each signal."""
    rows = [[number.name, *(killer.kills[kind, number] for kind in kinds)] for number in SIGNALS]
    return table([["signal", *kinds], *rows])


def verdict(campaign: Campaign, made: Bench) -> tuple[list[str], list[str]]:
    """The figures as tables, and what must not be."""
    forget_stale(timezone.now())
    killer = campaign.killer
    figures = campaign.figures
    writes = effects(made)
    looks = Counter(p["arguments"].get("text", "") for p in made.sent() if p["name"] == "look")
    received = {p["arguments"].get("text") for p in made.sent()}
    found = {
        "what callers of tools were told": [*disagreements(figures, writes), *silent_runs()],
        "what callers of installs, tests and trials were told": list(
            wrong_work(campaign.work_reports, looks)
        ),
        "effects that happened twice": twice(writes),
        "packages on disk": wrong_folders(),
        "books of energy": wrong_books(Known(killer.dead, killer.paused, received)),
        "leases, reservations, open work": list(leftovers()),
        "processes left": [*killer.wrong, *left_running(made.journal, Path(VAR, FOLDER))],
        "work that cannot be started again": campaign.wrong,
        "callers never answered": [f"{figures.waiting} callers"] if figures.waiting else [],
        "invariants": broken(),
    }
    told = {
        kind: Counter(each.state for each in campaign.work_reports if each.kind == kind)
        for kind in (INSTALL, TEST, TRIAL, AGENT_TEST)
    }
    told |= {
        "call": Counter(each.state for each in figures.call_reports),
        "run": Counter(each.state for each in figures.run_reports),
    }
    ends = [[kind, counts.total(), _words(counts)] for kind, counts in told.items()]
    ends.append(["call or run whose host died", figures.without_report, "told nothing"])
    ends.append(["check", campaign.checks_asked, ""])
    lines = [
        *kills_table(killer, [*VICTIMS]),
        "",
        *table([["work", "ended", "as"], *ends]),
        "",
        f"under way when their process was killed or ended: {_words(campaign.hit)}",
        f"effects: {len(writes)}; reasons of failures: {_words(_reasons(campaign.work_reports))}",
        "",
        *table(
            [["compared", "disagreements"], *([what, len(each)] for what, each in found.items())]
        ),
    ]
    return lines, [f"{what}: {each}" for what, many in found.items() for each in many]


def _reasons(reports: Sequence[WorkReport]) -> Counter[str]:
    return Counter(each.reason[:60] for each in reports if each.state == "failed")


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "none"


# By hand


def main(kills: int, seed: int, on_postgres: bool) -> int:
    """0 when nothing was wrong."""
    began = time.monotonic()
    with database(on_postgres), valkey.running(VAR), bench(VAR) as made, serving() as packages:
        known = prepare_servers(made, packages)
        indexes = {
            "SLIPSNISSE_PYPI_INDEX": f"{packages.address}/simple",
            "SLIPSNISSE_NPM_REGISTRY": f"{packages.address}/npm/",
        }
        with site(child_env() | indexes, VAR, web=2) as here:
            campaign = Campaign(here, known, seed)
            asyncio.run(campaign.run(kills))
        lines, wrong = verdict(campaign, made)
    kind = "PostgreSQL" if on_postgres else "SQLite"
    print("\n".join([f"{kind}: {kills} kills in {time.monotonic() - began:.0f} s", *lines, *wrong]))
    return bool(wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kills", type=int, nargs="?", default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    print(f"{options.kills} kills, seed {options.seed}", flush=True)
    sys.exit(main(options.kills, options.seed, options.postgres))
