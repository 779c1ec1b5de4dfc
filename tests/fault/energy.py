"""Many processes that charge one pool, and that use and take the sub-agent's count, at the same
time: nothing is lost or doubled.

By hand, as large as wanted: ``python -m tests.fault.energy`` (``--postgres``, ``--processes 8``,
``--charges 500``, ``--polls 1000``). The suite does a little of it
(``tests/fault/test_energy.py``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.conftest import child_env  # before all else: it gives Django a folder of its own

# ruff: isort: split
from django.db.models import Sum
from django.utils import timezone

from mcpregistry.models import Agent, EnergyEntry, EnergyPool, EnergyReservation
from mcpregistry.services.access import agents
from mcpregistry.services.energy import pools
from mcpregistry.services.upkeep.invariants import energy as rules
from subagents import energy
from subagents.domain.maintenance import Kind
from subagents.maintenance import queue
from subagents.models import MaintenanceRequest
from tests import forkserver
from tests.fault.spender import AGENT, SLUG, UNIT

CAPACITY = 10_000.0


def prepare() -> None:
    """A pool that does not refill, of an agent whose calls cost one unit each and that has asked
    for maintenance."""
    pool = EnergyPool(slug=SLUG, capacity=CAPACITY, regeneration=0.0, per_second=0.0, per_call=1.0)
    pool = pools.save_pool(pool=pool, actor="test")
    agent = agents.save_agent(agent=Agent(slug=AGENT, energy_pool=pool), actor="test")
    for number in range(3):
        queue.ask(
            kind=Kind.SEARCH,
            actor="test",
            agent=agent,
            params={"query": f"q{number}", "fields": {}},
        )


@dataclass(frozen=True)
class Found:
    """What was to be seen afterwards; ``wrong`` is empty when nothing was."""

    lines: list[str]
    wrong: list[str]


def campaign(
    processes: int, charges: int, polls: int, of_all: tuple[int, int] | None = None
) -> Found:
    """All of it at the same time, on the database of this process. ``of_all``: charges and polls,
    with those of before."""
    began = time.monotonic()
    env = child_env()
    roles = [("spend", charges)] * processes + [("use", polls), ("poll", polls)]
    children = [
        forkserver.popen(["-m", "tests.fault.spender", role, str(times)], env=env)
        for role, times in roles
    ]
    ends = [child.wait() for child in children]
    took = time.monotonic() - began
    return _verdict(*(of_all or (processes * charges, polls)), ends, took)


def _verdict(calls: int, polls: int, ends: Sequence[int], took: float) -> Found:
    energy.charge_used()
    pool = EnergyPool.objects.get(slug=SLUG)
    entries = EnergyEntry.objects.filter(pool=pool)
    charged = entries.filter(kind=EnergyEntry.Kind.CALL)
    polled = (
        entries.filter(kind=EnergyEntry.Kind.MAINTENANCE).aggregate(total=Sum("amount"))["total"]
        or 0.0
    )
    counts = MaintenanceRequest.objects.aggregate(
        used=Sum("energy_total"), left=Sum("energy_unreported")
    )
    fell = CAPACITY - pool.level
    checks = {
        f"children ended with {sorted(set(ends))}": set(ends) == {0},
        f"{charged.count()} of {calls} calls were charged": charged.count() == calls,
        f"the level fell by {fell:g}, the work cost {calls + polls * UNIT:g}": abs(
            fell - calls - polls * UNIT
        )
        < 1e-6,
        f"used {counts['used']:g}, taken {polled:g}, left {counts['left']:g}": abs(
            counts["used"] - polled
        )
        < 1e-6
        and abs(counts["left"]) < 1e-6
        and counts["used"] == polls * UNIT,
        f"{EnergyReservation.objects.count()} reservations are left": not EnergyReservation.objects.exists(),
        "the books balance": list(rules.find_unbalanced_pools(timezone.now())) == [],
    }
    lines = [f"{'ok ' if right else 'BAD'} {said}" for said, right in checks.items()]
    lines.append(
        f"    in {took:.1f} s: {calls / took:.0f} charged calls a second beside {polls / took:.0f} polls"
    )
    return Found(lines, [said for said, right in checks.items() if not right])


def main() -> int:
    """By hand: an empty database, the campaign, what was found."""
    from tests.fault.killing import database

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--charges", type=int, default=500, help="of each process")
    parser.add_argument("--polls", type=int, default=1_000, help="racing as many increments")
    options = parser.parse_args()
    with database(options.postgres):
        prepare()
        found = campaign(options.processes, options.charges, options.polls)
    print("\n".join(["PostgreSQL" if options.postgres else "SQLite", *found.lines]))
    return bool(found.wrong)


if __name__ == "__main__":
    sys.exit(main())
