"""Whether the books of energy and budgets follow from their signed entries, and reach as far as
they were sealed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from mcpregistry.db import read_database_now, stream_rows
from mcpregistry.models import Budget, BudgetEntry, BudgetPeriod, EnergyEntry, EnergyPool
from mcpregistry.models.audit import GENESIS, AuditArchive, AuditEntry

_PAGE = 500
CLOSE = 1e-6  # of a pool's capacity: sums of floating point
DELETIONS = ("energy.pool_deleted", "budget.deleted")

Heads = dict[str, tuple[int, str]]  # of each book: how many entries, and the hash of the last


@dataclass(frozen=True, slots=True)
class BookTables:
    """The tables of one kind of books; ``column`` of an entry names its book."""

    book: Any
    entry: Any
    column: str

    def entries(self, book: object) -> QuerySet[Any]:
        """The signed entries of a book, in order."""
        entries: QuerySet[Any] = self.entry.objects.filter(**{self.column: book}, seq__gt=0)
        return entries.order_by("seq")


TABLES = {
    EnergyPool.BOOK: BookTables(EnergyPool, EnergyEntry, "pool"),
    Budget.BOOK: BookTables(Budget, BudgetEntry, "budget"),
}


# Seals


def find_moved_heads(since: datetime | None, told: Heads) -> Heads:
    """The heads of books with entries after ``since`` that are not told yet."""
    found: Heads = {}
    for tables in TABLES.values():
        rows = tables.book.objects.filter(book_seq__gt=0)
        rows = rows.filter(book_at__gt=since) if since else rows
        for row in stream_rows(rows.order_by()):
            found[row.book_name] = (row.book_seq, row.book_hash)
    return {name: head for name, head in found.items() if told.get(name) != head}


def find_lost_heads(
    heads: Iterable[tuple[str, tuple[int, str]]], surely_there: Collection[str]
) -> Iterator[str]:
    """One sentence for each book that does not reach as far as it was sealed.

    ``surely_there``: books whose deletion, if there was one, the log itself tells of: it is not in
    an archive yet.
    """
    by_book: dict[str, list[tuple[int, str]]] = {}
    for name, head in heads:
        by_book.setdefault(name, []).append(head)
    for name, own in by_book.items():
        tables, key = _parse_book_name(name)
        if not is_gone(name):
            yield from _find_lost_entries(name, tables.entries(key), own)
        elif not is_deletion_recorded(name) and (
            name in surely_there or not AuditArchive.objects.exists()
        ):
            yield f"The budget or energy pool {name} is missing, although a checkpoint covers it and no audit entry records its deletion."


def _find_lost_entries(
    name: str, entries: QuerySet[Any], heads: list[tuple[int, str]]
) -> Iterator[str]:
    """Of a book that is there."""
    first = entries.values_list("seq", flat=True).first()
    sealed = iter(heads)
    while page := list(islice(sealed, _PAGE)):
        found = dict(entries.filter(seq__in=[seq for seq, _ in page]).values_list("seq", "hash"))
        for seq, head in page:
            if seq in found and found[seq] != head:
                yield f"{name}: entry {seq} was changed, although a checkpoint covers it."
            elif seq not in found and (first is None or first < seq):
                # else retention has taken it away
                yield f"{name}: entry {seq} is missing, although a checkpoint covers it."


def is_deletion_recorded(name: str) -> bool:
    """Whether the log tells that the book was deleted."""
    told = AuditEntry.objects.filter(kind__in=DELETIONS, body__contains=f'"{name}"')
    return bool(told.exists())


def is_gone(name: str) -> bool:
    """Whether there is no such book any more."""
    tables, key = _parse_book_name(name)
    return not tables.book.objects.filter(pk=key).exists()


def _parse_book_name(name: str) -> tuple[BookTables, str]:
    kind, _, key = name.partition(":")
    return TABLES[kind], key


# Balances


def find_balance_problems() -> Iterator[str]:
    """One sentence for each book whose balance is not that of its last entry. Reads one entry of
    each."""
    for kind in TABLES:
        yield from find_head_problems(kind)
    yield from find_unbalanced_periods(read_database_now())


def find_head_problems(kind: str) -> Iterator[str]:
    """One sentence for each book of this kind that does not end with its last entry, or whose level
    is another.

    Each book is read with its last entry in one query, because others add entries in the meantime.
    """
    tables = TABLES[kind]
    last = (
        tables.entry.objects.filter(**{tables.column: OuterRef("pk")}, seq__gt=0)
        .order_by("-seq")
        .values("pk")[:1]
    )
    for book in stream_rows(tables.book.objects.annotate(last=Subquery(last)).order_by("pk")):
        entry = tables.entry.objects.filter(pk=book.last).first() if book.last else None
        if problem := _explain_head_problem(book, entry):
            yield f"{book.slug}: {problem}"


def _explain_head_problem(book: Any, entry: Any) -> str:
    named = (book.book_seq, book.book_hash, book.book_at)
    # seals follow ``book_at``
    if named != ((entry.seq, entry.hash, entry.at) if entry else (0, GENESIS, None)):
        return "the newest entry is not the one that the budget or energy pool refers to"
    if entry is None:
        return ""
    if problem := entry.problem(book.book_name):
        return f"entry {entry.pk}: {problem}"
    if isinstance(book, EnergyPool) and not is_level_of(book, entry):
        return "the level does not match the newest entry"
    return ""


def is_level_of(pool: EnergyPool, entry: EnergyEntry) -> bool:
    """Whether the level follows from the entry. An earlier time than the entry's would let energy
    come back twice."""
    return (
        abs(entry.after - pool.level) <= CLOSE * max(1.0, pool.capacity)
        and pool.level_at >= entry.at
    )


def find_unbalanced_periods(now: datetime) -> Iterator[str]:
    """Periods of budgets that go on, and have spent something else than the entries of their budget
    say."""
    going_on = annotate_signed_spending(BudgetPeriod.objects.filter(end__gt=now))
    for period in going_on.exclude(spent=F("signed")).select_related("budget"):
        yield f"{period.budget.slug}: the period since {period.start:%Y-%m-%d %H:%M} UTC does not match the entries"


def annotate_signed_spending(periods: QuerySet[BudgetPeriod]) -> QuerySet[Any]:
    """Each with ``signed``: what it has spent by the last entry of its budget.

    If that is of another period, because somebody has changed where periods begin, the sum of the
    entries counts.
    """
    same = BudgetEntry.objects.filter(budget=OuterRef("budget"))
    last = same.filter(
        seq=OuterRef("budget__book_seq"), start=OuterRef("start"), end=OuterRef("end")
    ).values("spent")
    within = (
        same.filter(at__gte=OuterRef("start"), at__lt=OuterRef("end")).order_by().values("budget")
    )
    total = within.annotate(total=Sum("amount")).values("total")
    return periods.annotate(signed=Coalesce(Subquery(last), Subquery(total), 0))


# Chains


def find_broken_chains(kind: str, after: Heads | None = None) -> Iterator[str]:
    """One sentence for each signed entry that does not follow from the one before it.

    Reads all of them, or those after the heads in ``after``.
    """
    tables = TABLES[kind]
    for book in tables.book.objects.order_by("pk"):
        before = None
        (since, _) = (after or {}).get(book.book_name, (0, ""))
        changed = _find_last_change(book)
        for entry in stream_rows(tables.entries(book.pk).filter(seq__gte=since)):
            problem = entry.problem(book.book_name) or _explain_break(before, entry)
            if before and not problem and changed <= before.seq < book.book_seq:
                problem = _explain_gain(book, before, entry)
            if problem:
                yield f"{book.slug}: entry {entry.pk}: {problem}"
            before = entry


def _explain_break(before: Any, entry: Any) -> str:
    if before is None:
        return ""
    if (entry.seq, entry.prev) != (before.seq + 1, before.hash):
        return "it does not follow the entry before it"
    is_same_period = isinstance(entry, BudgetEntry) and (entry.start, entry.end) == (
        before.start,
        before.end,
    )
    if is_same_period and entry.spent != before.spent + entry.amount:
        return "the total in this entry is not the total in the entry before it plus the amount of this entry"
    return ""


def _find_last_change(book: Any) -> int:
    """The number of the entry from which on energy comes back at the rate that the pool has now."""
    settings = EnergyEntry.objects.filter(
        pool=book.pk, kind=EnergyEntry.Kind.SETTING, seq__lte=book.book_seq
    )
    last = (
        settings.order_by("-seq").values_list("seq", flat=True).first()
        if isinstance(book, EnergyPool)
        else 0
    )
    return last or 0


def _explain_gain(book: Any, before: Any, entry: Any) -> str:
    """Whether a pool held more than can have come back. It may hold less, because clocks differ."""
    if not isinstance(book, EnergyPool):
        return ""
    passed = max(0.0, (entry.at - before.at).total_seconds())
    most = min(book.capacity, before.after + book.regeneration * passed)
    if entry.before > most + CLOSE * max(1.0, book.capacity):
        return "since the entry before it, more units were added than the pool refills in this time"
    return ""
