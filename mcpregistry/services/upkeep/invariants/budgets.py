"""What must be true of the books of budgets: a period has spent what its entries say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from mcpregistry.models import Budget, BudgetEntry, BudgetReservation, Invocation
from mcpregistry.services.records import signed_books

_SETTLED_WITHIN = timedelta(minutes=10)


def find_unbalanced_budgets(now: datetime) -> Iterator[str]:
    """Current periods that do not match their last entry, and budgets that do not end with their
    last entry."""
    yield from signed_books.find_head_problems(Budget.BOOK)
    yield from signed_books.find_unbalanced_periods(now)


def find_broken_budget_chains(now: datetime) -> Iterator[str]:
    """Entries that were changed, or follow from another one than the one before."""
    return signed_books.find_broken_chains(Budget.BOOK)


def find_unsettled_reservations(now: datetime) -> Iterator[str]:
    """What is still set aside for calls that ended long ago."""
    over = Invocation.objects.filter(finished_at__lt=now - _SETTLED_WITHIN).values("pk")
    for held in BudgetReservation.objects.filter(kind=BudgetEntry.Kind.CALL, reference__in=over):
        yield f"call {held.reference}"


RULES: list[tuple[str, Callable[[datetime], Iterator[str]]]] = [
    ("The entries of each budget add up.", find_unbalanced_budgets),
    ("Every budget entry is signed and follows the one before it.", find_broken_budget_chains),
    ("Budgets are reserved only for calls in progress.", find_unsettled_reservations),
]
