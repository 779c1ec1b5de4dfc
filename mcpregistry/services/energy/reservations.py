"""What is out will cost: reserved before it is sent, charged by what the record says when it has
ended.

The reservation of a call is also the note that it is still to be charged: it goes in the
transaction that charges, which reads the call's own record. So a process that dies in between loses
nothing, and nothing is charged twice. Whoever finds a reservation of a call that has ended settles
it: its own process, another call that lacks energy, or the clock.

A turn of a model is reserved under its run's id and charged where it is written down, which frees
what was set aside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import OperationalError, connection, transaction
from django.db.models import Exists, OuterRef, Q

from mcpregistry.db import read_database_now
from mcpregistry.domain.energy import OnEmpty
from mcpregistry.domain.lifecycle import SUPPOSED, InvocationState
from mcpregistry.domain.text.display import number_of
from mcpregistry.models import EnergyEntry, EnergyPool, EnergyReservation, Invocation
from mcpregistry.prepared_queries import Given, Insert, Select
from mcpregistry.services.energy import estimates
from mcpregistry.services.energy.estimates import Work
from mcpregistry.services.energy.pools import Kind, charge_pool, lock_pool, lock_pool_or_none

_AT_ONCE = 500
_CALL = EnergyReservation.Kind.CALL
_TURN = EnergyReservation.Kind.TURN


@dataclass(frozen=True, slots=True)
class Shortage:
    """Not enough for a piece of work.

    ``seconds``: until there is even if all that is out costs what was set aside for it,
    ``soonest``: if all of that came back at once; each infinite if never. ``waits``: whether the
    pool lets its work wait, a call for ``wait`` seconds.
    """

    pool: str
    needed: float
    available: float
    seconds: float
    soonest: float
    waits: bool
    wait: float

    @property
    def remedy(self) -> str:
        """When to ask again, for whoever is refused."""
        if math.isinf(self.soonest):
            return "The energy pool never refills to the level that this call needs. Ask an operator to add units to the pool, or to raise its capacity or refill rate."
        if math.isinf(self.seconds):
            at_least = (
                f", in {number_of(math.ceil(self.soonest), 'second')} at the earliest"
                if self.soonest
                else ""
            )
            return f"Call again when the calls in progress have ended{at_least}."
        return f"Call again in {number_of(math.ceil(self.seconds), 'second')}."


@dataclass(frozen=True, slots=True)
class Charged:
    """What a piece of work has cost, as the books have it, and what its pool held then."""

    amount: float
    level: float


@transaction.atomic
def reserve(
    *, pool_id: int, call_id: str, agent: str, work: Work, waited: float = 0.0
) -> Shortage | None:
    """Set aside what the call will cost, once however often it is asked. A Shortage: nothing was
    set aside.

    ``waited``: for how many seconds it has been asking for energy.
    """
    pool = lock_pool_or_none(pool_id)
    if pool is None or _NOTE.fetch_rows(call_id=call_id):
        return None
    amount = estimates.estimate_work(work, pool.rates)
    return _set_aside(pool, amount, kind=_CALL, call_id=call_id, agent_slug=agent, waited=waited)


@transaction.atomic
def reserve_turn(
    *, pool_id: int, run: str, agent: str, input: int, output: int, twice: bool = False
) -> Shortage | None:
    """Set aside what the coming turn of the run will cost, in tokens; what an earlier one has left
    there is replaced.

    In the transaction of whoever holds the run's lease. ``twice``: where nobody waits for energy,
    as much again must be left besides, for the run's last word.
    """
    pool = lock_pool_or_none(pool_id)
    if pool is None:
        return None
    release(run=run)
    amount = pool.rates.price_turn(input=input, cached=0, output=output)
    if (
        twice
        and pool.on_empty == OnEmpty.DENY
        and (short := _retry_after_settling(pool, 2 * amount, read_database_now()))
    ):
        return short
    return (
        _set_aside(pool, amount, kind=_TURN, call_id=run, agent_slug=agent) if amount > 0 else None
    )


def release(*, run: str) -> None:
    """Nothing is set aside any more for a turn of this run."""
    EnergyReservation.objects.filter(call_id=run, kind=_TURN).delete()


def _set_aside(pool: EnergyPool, amount: float, **facts: Any) -> Shortage | None:
    now = read_database_now()
    short = _retry_after_settling(pool, amount, now)
    if short and pool.on_empty != OnEmpty.ALLOW:
        return short
    _SET_ASIDE([{"pool": pool.pk, "amount": amount, "made_at": now, **facts}])
    return None


def _retry_after_settling(pool: EnergyPool, amount: float, now: datetime) -> Shortage | None:
    """Once calls that have ended have given back what they did not use."""
    short = _make_shortage(pool, amount, now)
    return _make_shortage(pool, amount, now) if short and _settle_ended(pool, now) else short


def _make_shortage(pool: EnergyPool, amount: float, now: datetime) -> Shortage | None:
    taken = sum(row.amount for row in _TAKEN.fetch_rows(pool=pool.pk))
    stand = pool.stand
    seconds = stand.seconds_until(amount + taken, now)
    if seconds <= 0:
        return None
    waits = pool.on_empty == OnEmpty.WAIT
    return Shortage(
        pool.slug,
        amount,
        max(0.0, stand.level_at(now) - taken),
        seconds,
        stand.seconds_until(amount, now),
        waits,
        pool.max_wait if waits else 0.0,
    )


@transaction.atomic
def settle(*, call_id: str, until: datetime | None = None) -> bool:
    """Charge the call if its record says that it has ended. Returns False if it is still in
    progress, or was settled already.

    ``until``: when the dead process that had sent it was last known to be alive, if that is known.
    """
    for note in _NOTE.fetch_rows(call_id=call_id):
        return bool(
            _settle_reservations(lock_pool(note.pool_id), [call_id], read_database_now(), until)
        )
    return _correct_charge(call_id)


def settle_due() -> int:
    """Charge every call that has ended without being charged, and correct what was charged for a
    supposed end.

    The clock calls it. Returns how many calls.
    """
    waiting = _select_ended_reservations(EnergyReservation.objects.all()).values_list(
        "call_id", flat=True
    )[:_AT_ONCE]
    known = Invocation.objects.filter(pk=OuterRef("reference"), finished_at__isnull=False).exclude(
        error_code=SUPPOSED
    )
    wrong = (
        _select_assumed_charges()
        .filter(Exists(known))
        .values_list("reference", flat=True)[:_AT_ONCE]
    )
    return sum(settle(call_id=call_id) for call_id in [*waiting, *wrong])


def _select_assumed_charges() -> Any:
    """Entries of calls whose supposed end was charged, and not corrected."""
    corrections = EnergyEntry.objects.filter(kind=Kind.CORRECTION, reference=OuterRef("reference"))
    return EnergyEntry.objects.filter(
        ~Q(reference=""), ~Exists(corrections), kind=Kind.CALL, seconds=None
    )


def _correct_charge(call_id: str) -> bool:
    """Charge the difference if the call was charged by a supposed end, and the real one came
    later."""
    for found in _select_assumed_charges().filter(reference=call_id):
        pool = lock_pool(found.pool_id)
        charged = _select_assumed_charges().filter(pk=found.pk).first()
        call = next(iter(_RECORD.fetch_rows(id=call_id)), None)
        if charged is None or call is None or call.error_code == SUPPOSED:
            return False
        seconds = _measure_work_seconds(call, 0.0)
        amount = 0.0 if seconds is None else _compute_cost(pool, call, seconds)
        facts = {"agent": charged.agent_slug, "reference": call_id, "seconds": seconds or 0.0}
        charge_pool(
            pool, Kind.CORRECTION, amount - charged.amount, now=read_database_now(), **facts
        )
        return True
    return False


@transaction.atomic
def load_charge(*, call_id: str, pool_id: int) -> Charged | None:
    """What the call has cost by the books; it is charged first if it is still to be. None: it has
    not ended yet, or there is no such pool any more. A call that cost nothing has no entry: then
    the level is that of this moment.
    """
    settle(call_id=call_id)
    if entries := _ENTRIES.fetch_rows(reference=call_id):
        return Charged(sum(entry.amount for entry in entries), entries[-1].after)
    if _NOTE.fetch_rows(call_id=call_id):
        return None
    pool = EnergyPool.objects.filter(pk=pool_id).first()
    return Charged(0.0, pool.stand.level_at(read_database_now())) if pool else None


Act = Callable[[], Any]


def run_in_one_transaction(acts: Sequence[Act]) -> list[Any]:
    """Several of these by one commit, in their order: what each returned, or the exception that
    undid it alone.

    Calls of one pool come at the same time, and wait for each other's commits otherwise. Raises
    what undid all of them.
    """
    if len(acts) == 1:
        return [_run_or_return_error(acts[0])]
    with transaction.atomic():
        said = [_run_or_return_error(act) for act in acts]
        # it broke in one of them: what the others were told would not be kept
        if connection.needs_rollback:
            raise OperationalError(
                "The connection to the database was lost, and nothing was saved."
            )
        return said


def _run_or_return_error(act: Act) -> Any:
    """Each is a transaction of its own, or a savepoint within that of all."""
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - whoever asked for it gets it
        return error


def _settle_ended(pool: EnergyPool, now: datetime) -> int:
    calls = list(
        _select_ended_reservations(EnergyReservation.objects.filter(pool=pool)).values_list(
            "call_id", flat=True
        )[:_AT_ONCE]
    )
    return _settle_reservations(pool, calls, now)


def _select_ended_reservations(reservations: Any) -> Any:
    """Those of calls that are not out any more, or of which there is no record any more."""
    out = Invocation.objects.filter(pk=OuterRef("call_id"), finished_at=None)
    return reservations.filter(~Exists(out), kind=_CALL)


def _settle_reservations(
    pool: EnergyPool, calls: list[str], now: datetime, until: datetime | None = None
) -> int:
    """Of a pool that is locked: who comes second finds the reservation gone. ``until``: see
    ``settle``."""
    done = 0
    notes = [each for call in calls for each in _NOTE.fetch_rows(call_id=call)]
    for note in [each for each in notes if each.pool_id == pool.pk]:
        call = next(iter(_RECORD.fetch_rows(id=note.call_id)), None)
        if call is not None and call.finished_at is None:
            continue
        seconds = _measure_work_seconds(call, note.waited, until)
        if call is not None and seconds is not None:
            amount = _compute_cost(pool, call, seconds)
            is_supposed = call.error_code == SUPPOSED
            if is_supposed and until is None:  # how long it worked is not known
                amount = min(amount, note.amount)
            _take(pool, amount, note, None if is_supposed else seconds, now)
        _forget(note.id)
        done += 1
    return done


def _forget(note: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {EnergyReservation._meta.db_table} WHERE id = %s", [note])  # noqa: S608  our own name


# Before and after every call of an agent with a pool, so they are composed once.
_SET_ASIDE = Insert(EnergyReservation)
_NOTE = Select(
    EnergyReservation.objects.filter(call_id=Given("call_id"), kind=_CALL).values_list(
        "id", "pool_id", "call_id", "agent_slug", "amount", "waited", named=True
    )
)
_TAKEN = Select(
    EnergyReservation.objects.filter(pool=Given("pool")).values_list("amount", named=True)
)
_ENTRIES = Select(
    EnergyEntry.objects.filter(
        ~Q(reference=""), kind__in=[Kind.CALL, Kind.CORRECTION], reference=Given("reference")
    )
    .order_by("id")
    .values_list("amount", "after", named=True)
)
_RECORD = Select(
    Invocation.objects.filter(id=Given("id"))
    .order_by()
    .values_list(
        "state",
        "error_code",
        "dispatched_at",
        "finished_at",
        "arguments",
        "result_bytes",
        named=True,
    )
)


def _take(pool: EnergyPool, amount: float, note: Any, seconds: float | None, now: datetime) -> None:
    # a supposed end is written down in any case, so that it can be corrected
    if amount > 0 or seconds is None:
        charge_pool(
            pool,
            Kind.CALL,
            amount,
            now=now,
            agent=note.agent_slug,
            reference=note.call_id,
            seconds=seconds,
        )


def _compute_cost(pool: EnergyPool, call: Any, seconds: float) -> float:
    return pool.rates.price_call(seconds, len(call.arguments.encode()) + call.result_bytes)


def _measure_work_seconds(call: Any, waited: float, until: datetime | None = None) -> float | None:
    """Of its work, by what the record says: none (None) of a call that was never sent; one that
    failed took as long as one that did not. It waited for energy after it was recorded, which is no
    work. ``until``: see ``settle``.
    """
    if (
        call is None
        or call.dispatched_at is None
        or call.finished_at is None
        or call.state == InvocationState.NOT_SENT
    ):
        return None
    end = call.finished_at if until is None else min(until, call.finished_at)
    return max(0.0, float((end - call.dispatched_at).total_seconds()) - waited)
