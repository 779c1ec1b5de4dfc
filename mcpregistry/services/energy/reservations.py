"""What calls that are out will cost: reserved before they are sent, charged by what the record says when they have ended.

A reservation is also the note that a call is still to be charged: it goes in the transaction that charges, which reads
the call's own record. So a process that dies in between loses nothing, and nothing is charged twice. Whoever finds a
reservation of a call that has ended settles it: its own process, another call that lacks energy, or the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Sum

from mcpregistry.db import database_now
from mcpregistry.domain.energy import OnEmpty
from mcpregistry.domain.lifecycle import State
from mcpregistry.models import EnergyPool, EnergyReservation, Invocation
from mcpregistry.services.energy.pools import Kind, charge, locked

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Shortage:
    """Not enough for a call. ``seconds``: until there is, infinite if never; ``wait``: for how long it may wait."""

    pool: str
    needed: float
    available: float
    seconds: float
    wait: float


@transaction.atomic
def reserve(*, pool_id: int, call_id: str, agent: str, amount: float) -> Shortage | None:
    """Set ``amount`` units aside for the call, once however often it is asked. A Shortage: nothing was set aside."""
    pool = EnergyPool.objects.select_for_update().filter(pk=pool_id).first()
    if pool is None or EnergyReservation.objects.filter(call_id=call_id).exists():
        return None
    now = database_now()
    short = _shortage(pool, amount, now)
    if short and _settle_ended(pool, now):
        short = _shortage(pool, amount, now)
    if short and pool.on_empty != OnEmpty.ALLOW:
        return short
    EnergyReservation.objects.create(pool=pool, call_id=call_id, agent_slug=agent, amount=amount, made_at=now)
    return None


def _shortage(pool: EnergyPool, amount: float, now: datetime) -> Shortage | None:
    held = EnergyReservation.objects.filter(pool=pool).aggregate(total=Sum("amount"))["total"] or 0.0
    needed = amount + held
    seconds = pool.stand.seconds_until(needed, now)
    if seconds <= 0:
        return None
    available = max(0.0, pool.stand.level_at(now) - needed + amount)
    return Shortage(pool.slug, amount, available, seconds, pool.max_wait if pool.on_empty == OnEmpty.WAIT else 0.0)


@transaction.atomic
def settle(*, call_id: str) -> bool:
    """Charge the call if its record says that it has ended. False: it goes on, or was settled already."""
    pool_id = EnergyReservation.objects.filter(call_id=call_id).values_list("pool_id", flat=True).first()
    if pool_id is None:
        return False
    pool = locked(pool_id)
    return bool(_settled(pool, [call_id], database_now()))


def settle_due() -> int:
    """Charge every call that has ended without being charged; the clock does it. Returns how many."""
    waiting = _ended(EnergyReservation.objects.all()).values_list("call_id", flat=True)[:_AT_ONCE]
    return sum(settle(call_id=call_id) for call_id in waiting)


def _settle_ended(pool: EnergyPool, now: datetime) -> int:
    calls = list(_ended(EnergyReservation.objects.filter(pool=pool)).values_list("call_id", flat=True)[:_AT_ONCE])
    return _settled(pool, calls, now)


def _ended(reservations: Any) -> Any:
    """Those of calls that are not out any more, or of which there is no record any more."""
    out = Invocation.objects.filter(pk=OuterRef("call_id"), finished_at=None)
    return reservations.filter(~Exists(out))


def _settled(pool: EnergyPool, calls: list[str], now: datetime) -> int:
    """Of a pool that is locked: who comes second finds the reservation gone."""
    done = 0
    for held in EnergyReservation.objects.filter(pool=pool, call_id__in=calls):
        call = Invocation.objects.filter(pk=held.call_id).first()
        if call is not None and call.finished_at is None:
            continue
        if (amount := _cost(pool, call)) > 0:
            charge(pool, Kind.CALL, amount, now=now, agent=held.agent_slug, reference=held.call_id)
        held.delete()
        done += 1
    return done


def _cost(pool: EnergyPool, call: Invocation | None) -> float:
    """By what the record says: a call that was never sent costs nothing, one that failed as much as one that did not."""
    if call is None or call.dispatched_at is None or call.finished_at is None or call.state == State.NOT_SENT:
        return 0.0
    seconds = (call.finished_at - call.dispatched_at).total_seconds()
    return pool.rates.of_call(seconds, len(call.arguments.encode()) + call.result_bytes)
