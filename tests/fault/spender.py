"""One of several processes that charge a pool, use the sub-agent's energy or take its count: for
``tests.fault.energy``.

Started by ``tests.forkserver``, so Django is set up.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from django.db.models import F
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.snapshot_specs import ToolSpec
from mcpregistry.ids import make_ordered_id
from mcpregistry.models import EnergyPool, Invocation
from mcpregistry.services.energy import reservations
from mcpregistry.services.energy.estimates import Work
from subagents import energy
from subagents.models import MaintenanceRequest

AGENT = "spender"
SLUG = "shared"
UNIT = 0.5  # what the sub-agent uses at once
_WORK = Work(ToolSpec(0, 0, "t", "", {}, idempotent=False, energy=1.0), 2)


def spend(times: int) -> None:
    """Calls that were made and have ended: each set aside once and charged once, however often that
    is tried."""
    pool = EnergyPool.objects.get(slug=SLUG)
    for _ in range(times):
        now = timezone.now()
        call = Invocation.objects.create(
            id=make_ordered_id(),
            state=InvocationState.SUCCEEDED,
            agent_slug=AGENT,
            tool_name="t",
            exposed_name="t",
            origin="http",
            writer="w",
            received_at=now,
            dispatched_at=now,
            finished_at=now + timedelta(seconds=1),
            arguments="{}",
        )
        assert (
            reservations.reserve(pool_id=pool.pk, call_id=call.pk, agent=AGENT, work=_WORK) is None
        )
        reservations.settle(call_id=call.pk)
        reservations.settle(call_id=call.pk)


def use(times: int) -> None:
    """What the background sub-agent does while it works: it adds to its own count, as
    ``request_lease`` does."""
    keys = list(MaintenanceRequest.objects.values_list("pk", flat=True))
    for at in range(times):
        row = MaintenanceRequest.objects.filter(pk=keys[at % len(keys)])
        row.update(
            energy_total=F("energy_total") + UNIT, energy_unreported=F("energy_unreported") + UNIT
        )


def poll(times: int) -> None:
    """What the clock does: it takes that count and charges it."""
    for _ in range(times):
        energy.charge_used()


ROLES = {"spend": spend, "use": use, "poll": poll}


if __name__ == "__main__":
    ROLES[sys.argv[1]](int(sys.argv[2]))
