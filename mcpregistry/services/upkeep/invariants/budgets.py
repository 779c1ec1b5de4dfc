"""What must be true of the books of budgets: a period has spent what its entries say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from django.db.models import F, OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce

from mcpregistry.models import BudgetEntry, BudgetPeriod, BudgetReservation, Invocation

_SETTLED_WITHIN = timedelta(minutes=10)


def unbalanced(now: datetime) -> Iterator[str]:
    """Periods that go on, so that retention has kept all of their entries, and whose sum is another."""
    theirs = BudgetEntry.objects.filter(budget=OuterRef("budget"), at__gte=OuterRef("start"), at__lt=OuterRef("end"))
    total = theirs.order_by().values("budget").annotate(total=Sum("amount")).values("total")
    told = BudgetPeriod.objects.filter(end__gt=now).annotate(told=Coalesce(Subquery(total), 0))
    for period in told.exclude(spent=F("told")).select_related("budget"):
        yield f"{period.budget.slug}: the period that began {period.start:%Y-%m-%d %H:%M}"


def unsettled(now: datetime) -> Iterator[str]:
    """What is still set aside for calls that ended long ago."""
    over = Invocation.objects.filter(finished_at__lt=now - _SETTLED_WITHIN).values("pk")
    for held in BudgetReservation.objects.filter(kind=BudgetEntry.Kind.CALL, reference__in=over):
        yield f"call {held.reference}"


RULES: list[tuple[str, Callable[[datetime], Iterator[str]]]] = [
    ("The books of budgets balance.", unbalanced),
    ("What is set aside of budgets is for calls that are out.", unsettled),
]
