"""Pools and their books: configured by people, charged by whatever costs energy.

``charge_pool`` is the one writer of a level. It locks the pool's row, so that many processes take
one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.db import DEFAULT_DB_ALIAS, transaction

from mcpregistry.db import read_database_now
from mcpregistry.domain.energy import EnergyLevel
from mcpregistry.domain.errors import ConfigInvalid, Conflict, NotFound
from mcpregistry.models import Agent, EnergyEntry, EnergyPool
from mcpregistry.models.signed_books import HEAD_COLUMNS
from mcpregistry.prepared_queries import Given, Insert, Select, Update
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit, signed_books

log = structlog.get_logger(__name__)

Kind = EnergyEntry.Kind


@dataclass(frozen=True, slots=True)
class PoolStanding:
    """How a pool stands now. ``reserved``: for calls that are out; ``seconds_to_full`` None: it
    never will be."""

    level: float
    reserved: float
    state: EnergyLevel
    seconds_to_full: float | None


@transaction.atomic
def save_pool(*, pool: EnergyPool, actor: str) -> EnergyPool:
    """Create or change a pool; what it held until now is kept, up to its capacity. Raises
    ``ConfigInvalid``."""
    take_current(pool, own=("level", "level_at"))
    if pool.resume < pool.critical:
        raise ConfigInvalid(
            f"The resume level ({pool.resume:.12g}) must not be below the critical level ({pool.critical:.12g}).",
            remedy="Set the resume level to the critical level or above.",
        )
    now = read_database_now()
    new = pool._state.adding
    if new:
        pool.level = pool.capacity
        pool.level_at = now
    else:
        _keep_level(pool, now)
    save_checked(pool)
    audit.record_entry(
        kind="energy.pool_created" if new else "energy.pool_changed",
        actor=actor,
        subject=f"energy:{pool.slug}",
        capacity=pool.capacity,
        regeneration=pool.regeneration,
        on_empty=pool.on_empty,
    )
    return pool


def _keep_level(pool: EnergyPool, now: datetime) -> None:
    """What came back so far came by the earlier rate; an entry tells where the books go on."""
    found = lock_pool(pool.pk)
    _take_signed_level(found)
    before = found.stand.level_at(now)
    pool.take_head_of(found)
    pool.level = min(pool.capacity, before)
    pool.level_at = now
    facts = {
        "kind": Kind.SETTING,
        "amount": before - pool.level,
        "before": before,
        "after": pool.level,
        "at": now,
    }
    _make_signed_entry(pool, facts).save()


@transaction.atomic
def delete_pool(*, pool: EnergyPool, actor: str) -> None:
    """Delete a pool with its books. Raises Conflict while agents draw on it."""
    if names := list(Agent.objects.filter(energy_pool=pool).values_list("slug", flat=True)[:5]):
        raise Conflict(
            f"Cannot delete this energy pool: agents use it ({', '.join(names)}).",
            remedy="First edit these agents, and choose another pool or no pool.",
        )
    audit.record_entry(
        kind="energy.pool_deleted", actor=actor, subject=f"energy:{pool.slug}", book=pool.book_name
    )
    pool.delete()


def lock_pool(pool_id: int) -> EnergyPool:
    """The pool, held for this transaction. Raises NotFound."""
    pool = lock_pool_or_none(pool_id)
    if pool is None:
        raise NotFound(
            "The energy pool does not exist any more.",
            remedy="To see the existing pools, open the page Energy or use GET /api/v1/energy.",
        )
    return pool


def lock_pool_or_none(pool_id: int) -> EnergyPool | None:
    """The same; None: there is none any more."""
    pool = next(
        (
            EnergyPool.from_db(DEFAULT_DB_ALIAS, _COLUMNS, [*row])
            for row in _HELD.fetch_rows(id=pool_id)
        ),
        None,
    )
    if pool is not None and pool.stand.is_ahead(now := read_database_now()):
        _reset_future_level(pool, now)
    return pool


# Before and after every call of an agent with a pool, so it is composed once.
_COLUMNS = [field.attname for field in EnergyPool._meta.concrete_fields]
_HELD = Select(
    EnergyPool.objects.select_for_update().filter(id=Given("id")).values_list(*_COLUMNS, named=True)
)
_LEVEL = Update(EnergyPool.objects.filter(id=Given("id")), "level", "level_at", *HEAD_COLUMNS)
_ENTRY = Insert(EnergyEntry)
_ENTRY_COLUMNS = ("seq", "prev", "hash", "key_id", *EnergyEntry.SIGNED)


def _reset_future_level(pool: EnergyPool, now: datetime) -> None:
    """The clock was far ahead when the level was written: nothing would come back until it is as
    late as that again."""
    _take_signed_level(pool)
    pool.level_at = now
    facts = {
        "kind": Kind.CLOCK,
        "amount": 0.0,
        "before": pool.level,
        "after": pool.level,
        "at": now,
    }
    _make_signed_entry(pool, facts).save()
    EnergyPool.objects.filter(pk=pool.pk).update(level=pool.level, level_at=now, **pool.head)


def _take_signed_level(pool: EnergyPool) -> None:
    """Where the books go on from, the level is that of the last entry: a row that says something
    else was changed by hand."""
    last = EnergyEntry.objects.filter(pool=pool.pk, seq=pool.book_seq).first()
    if last is not None and not signed_books.is_level_of(pool, last):
        log.warning("energy.corrected", pool=pool.slug, level=pool.level, signed=last.after)
        pool.level = last.after
        pool.level_at = max(pool.level_at, last.at)


def _make_signed_entry(pool: EnergyPool, facts: Mapping[str, Any]) -> EnergyEntry:
    """The next entry of the pool's book. Whoever saves it saves the pool as well, which names it
    now."""
    entry = EnergyEntry(pool=pool, **facts)
    pool.sign(entry)
    return entry


def charge_pool(
    pool: EnergyPool,
    kind: EnergyEntry.Kind,
    amount: float,
    *,
    now: datetime,
    agent: str = "",
    reference: str = "",
    seconds: float | None = None,
) -> EnergyEntry:
    """Take ``amount`` units of a pool that this transaction holds (``lock_pool``), and write it
    down."""
    before = pool.stand.level_at(now)
    stand = pool.stand.take_units(amount, now)
    pool.level = stand.level
    pool.level_at = stand.at
    facts = {
        "kind": kind,
        "amount": amount,
        "before": before,
        "after": pool.level,
        "agent_slug": agent,
        "reference": reference,
        "seconds": seconds,
        "at": now,
    }
    entry = _make_signed_entry(pool, facts)
    _LEVEL(id=pool.pk, level=pool.level, level_at=pool.level_at, **pool.head)
    if kind == Kind.GRANT:  # whose key is told
        entry.save()
    else:
        _ENTRY([{name: getattr(entry, name) for name in _ENTRY_COLUMNS} | {"pool": pool.pk}])
    return entry


def charge_turn(
    *, pool_id: int, agent: str, reference: str, input: int, cached: int, output: int
) -> None:
    """Take what a turn of a model has cost, in the transaction that writes it down. A pool that is
    gone takes nothing."""
    pool = lock_pool_or_none(pool_id)
    amount = pool.rates.price_turn(input=input, cached=cached, output=output) if pool else 0.0
    if pool and amount > 0:
        charge_pool(
            pool, Kind.TURN, amount, now=read_database_now(), agent=agent, reference=reference
        )


@transaction.atomic
def grant(*, pool_id: int, amount: float, actor: str) -> EnergyEntry:
    """A person gives units, up to the capacity. Raises ConfigInvalid and NotFound."""
    if not 0 < amount <= 1e9:
        raise ConfigInvalid(
            f"The number of units must be above 0 and at most 1,000,000,000 (got {amount:.12g}).",
            remedy="Enter a number up to the capacity of the pool.",
        )
    pool = lock_pool(pool_id)
    entry = charge_pool(pool, Kind.GRANT, -amount, now=read_database_now())
    audit.record_entry(
        kind="energy.granted",
        actor=actor,
        subject=f"energy:{pool.slug}",
        amount=amount,
        level=round(entry.after, 3),
    )
    return entry


def load_pool_standing(pool: EnergyPool) -> PoolStanding:
    """How it stands now; pages, REST and owners ask. Locks nothing. ``pool``: of a query
    ``with_reserved``."""
    now = read_database_now()
    level = pool.stand.level_at(now)
    full = pool.stand.seconds_until(pool.capacity, now)
    reserved = pool.reserved  # type: ignore[attr-defined]
    refilled_in = full if full != float("inf") else None
    return PoolStanding(level, reserved, pool.word(level), refilled_in)
