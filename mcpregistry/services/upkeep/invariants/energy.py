"""What must be true of the books of energy: each entry goes on where the one before it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise

from mcpregistry.db import stream_rows
from mcpregistry.models import EnergyEntry, EnergyPool
from mcpregistry.services.records import signed_books
from mcpregistry.services.records.signed_books import CLOSE


def find_unbalanced_pools(now: datetime) -> Iterator[str]:
    """Entries since a pool was last changed that do not follow from the one before, and levels not
    told by the last."""
    yield from signed_books.find_head_problems(EnergyPool.BOOK)
    for pool in EnergyPool.objects.all():
        entries = EnergyEntry.objects.filter(pool=pool).order_by("id")
        changed = entries.filter(kind=EnergyEntry.Kind.SETTING).last()
        yield from _find_gaps(
            pool, list(stream_rows(entries.filter(pk__gte=changed.pk) if changed else entries))
        )


def _find_gaps(pool: EnergyPool, entries: list[EnergyEntry]) -> Iterator[str]:
    at = entries[0].at if entries else None
    for last, entry in pairwise(entries):
        assert at is not None
        passed = max(0.0, (entry.at - at).total_seconds())
        is_clock = entry.kind == EnergyEntry.Kind.CLOCK
        passed = 0.0 if is_clock else passed
        # by whom the clock was behind, it refilled nothing
        at = entry.at if is_clock else max(at, entry.at)
        before = min(pool.capacity, last.after + pool.regeneration * passed)
        after = min(pool.capacity, max(0.0, entry.before - entry.amount))
        if abs(entry.before - before) + abs(entry.after - after) > CLOSE * max(1.0, pool.capacity):
            yield f"{pool.slug}: entry {entry.pk}"


def find_broken_energy_chains(now: datetime) -> Iterator[str]:
    """Entries that were changed, or follow from another one than the one before."""
    return signed_books.find_broken_chains(EnergyPool.BOOK)


RULES: list[tuple[str, Callable[[datetime], Iterator[str]]]] = [
    ("The entries of each energy pool add up.", find_unbalanced_pools),
    ("Every energy entry is signed and follows the one before it.", find_broken_energy_chains),
]
