"""Budgets as people configure them, and how they stand; the one writer of what was spent.

``spend`` and ``load_book`` want the budget's row locked (``lock_budgets``) by the transaction that
calls them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet, Sum

from mcpregistry.db import read_database_now
from mcpregistry.domain import error_texts
from mcpregistry.domain.budgets import (
    Book,
    Level,
    Period,
    Unit,
    find_calendar_period,
    format_amount,
    list_endpoint_payers,
)
from mcpregistry.domain.errors import ConfigInvalid, NotFound
from mcpregistry.domain.notifications.events import NotificationEvent
from mcpregistry.models import Budget, BudgetEntry, BudgetPeriod, BudgetReservation
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.notifications import outbox
from mcpregistry.services.records import audit, signed_books

log = structlog.get_logger(__name__)

Kind = BudgetEntry.Kind


@dataclass(frozen=True, slots=True)
class BudgetStanding:
    """How a budget stands in the period that is now; numbers as the books count them
    (``domain.budgets``)."""

    book: Book
    start: datetime
    ends: datetime

    @property
    def level(self) -> Level:
        return self.book.level


# Configured by people


@transaction.atomic
def save_budget(*, budget: Budget, actor: str) -> Budget:
    """Create or change a budget; what was spent stays spent. Raises ConfigInvalid."""
    before = take_current(budget)
    if (budget.agent is None) == (budget.endpoint is None):
        raise ConfigInvalid(
            "A budget must belong to one agent or to one endpoint.",
            remedy="Choose either an agent or an endpoint.",
        )
    if budget.soft is None and budget.hard is None:
        raise ConfigInvalid(
            "A soft limit or a hard limit is required.",
            remedy="Enter a soft limit, a hard limit or both.",
        )
    if budget.soft is not None and budget.hard is not None and budget.soft > budget.hard:
        raise ConfigInvalid(
            f"The soft limit ({float(budget.soft):.12g}) must not be above the hard limit ({float(budget.hard):.12g}).",
            remedy="Lower the soft limit, or raise the hard limit.",
        )
    _require_whole_amounts(budget)
    if before is not None:
        _refuse_moved_budget(budget, before)
    save_checked(budget)
    audit.record_entry(
        kind="budget.created" if before is None else "budget.changed",
        actor=actor,
        subject=f"budget:{budget.slug}",
        **_name_holder(budget),
        counts=budget.unit,
        period=budget.period,
        time_zone=budget.time_zone,
        soft=_format_limit(budget.soft),
        hard=_format_limit(budget.hard),
        enabled=budget.enabled,
    )
    return budget


def _name_holder(budget: Budget) -> dict[str, str]:
    if budget.agent:
        return {"agent": budget.agent.slug}
    return {"endpoint": budget.endpoint.slug if budget.endpoint else ""}


def _require_whole_amounts(budget: Budget) -> None:
    marks = [mark for mark in (budget.soft, budget.hard) if mark is not None]
    if budget.unit != Unit.MONEY and any(
        mark != mark.to_integral_value() for mark in marks if mark.is_finite()
    ):
        raise ConfigInvalid(
            f"The limits must be whole numbers of {budget.get_unit_display()}.",
            remedy="Enter whole numbers.",
        )


def _refuse_moved_budget(budget: Budget, before: Budget) -> None:
    """Its entries are of one agent or endpoint, in one unit. Where it begins anew otherwise, what
    goes on is summed up once more."""
    if (before.period, before.time_zone) != (budget.period, budget.time_zone):
        BudgetPeriod.objects.filter(budget=before, end__gt=read_database_now()).delete()
    if (before.agent_id, before.endpoint_id, before.unit) != (
        budget.agent_id,
        budget.endpoint_id,
        budget.unit,
    ):
        raise ConfigInvalid(
            "The agent, endpoint and unit of a budget cannot be changed, because the entries of the budget depend on them.",
            remedy="Delete the budget, and add a new one.",
        )


def _format_limit(mark: Any) -> str | None:
    return None if mark is None else f"{mark.normalize():f}"


@transaction.atomic
def delete_budget(*, budget: Budget, actor: str) -> None:
    """Delete a budget with its books. What is out for it goes on, and is counted nowhere. Raises
    NotFound where somebody was quicker.
    """
    rows = Budget.objects.select_for_update().order_by().filter(pk=budget.pk)
    if rows.first() is None:  # locked before its rows, as by whoever spends
        raise NotFound(
            error_texts.say_not_found("budget", budget.slug), remedy=error_texts.NOTHING_TO_DO
        )
    audit.record_entry(
        kind="budget.deleted",
        actor=actor,
        subject=f"budget:{budget.slug}",
        **_name_holder(budget),
        book=budget.book_name,
    )
    budget.delete()


# How they stand


def load_standings(budgets: Iterable[Budget]) -> dict[int, BudgetStanding]:
    """How these budgets stand now, by their keys; in two queries, locking and writing nothing."""
    rows = list(budgets)
    now = read_database_now()
    spans = {row.pk: find_calendar_period(Period(row.period), now, row.zone) for row in rows}
    periods = BudgetPeriod.objects.filter(budget__in=rows, end__gt=now).order_by()
    spent = {(each.budget_id, each.start, each.end): each.spent for each in periods}
    held = BudgetReservation.objects.filter(budget__in=rows).order_by().values("budget")
    reserved = {each["budget"]: each["total"] for each in held.annotate(total=Sum("amount"))}
    return {
        row.pk: BudgetStanding(
            Book(
                spent.get((row.pk, found.start, found.end), 0), reserved.get(row.pk, 0), *row.marks
            ),
            found.start,
            found.end,
        )
        for row, found in ((row, spans[row.pk]) for row in rows)
    }


# For those who spend


def select_budgets_of(payers: Collection[str]) -> QuerySet[Budget]:
    """The budgets of these agents and endpoints that are switched on."""
    of = Q(agent__slug__in=[*payers]) | Q(endpoint__slug__in=list_endpoint_payers(payers))
    return Budget.objects.filter(of, enabled=True)


def lock_budgets(payers: Collection[str], units: Iterable[Unit]) -> list[Budget]:
    """Those of them that count one of these, held for this transaction, always in the same
    order."""
    rows = select_budgets_of(payers).filter(unit__in=[*units]).select_related("agent", "endpoint")
    return list(rows.select_for_update(of=("self",)).order_by("pk"))


def get_or_create_period(budget: Budget, now: datetime) -> BudgetPeriod:
    """The budget's period at ``now``. A clock that was set back finds the one before with what was
    spent in it.

    The signed entries decide what was spent: a row that says something else was changed by hand,
    and is corrected.
    """
    found = find_calendar_period(Period(budget.period), now, budget.zone)
    periods = BudgetPeriod.objects.filter(budget=budget, start=found.start, end=found.end)
    row = signed_books.annotate_signed_spending(periods).first()
    if row is not None:
        if row.spent != row.signed:
            log.warning("budget.corrected", budget=budget.slug, spent=row.spent, signed=row.signed)
            row.spent = row.signed
            row.save(update_fields=["spent"])
        return cast(BudgetPeriod, row)
    # Not 0 where the budget was made to begin anew otherwise in the midst of it, or where the row
    # is lost.
    last = budget.entries.filter(seq=budget.book_seq, start=found.start, end=found.end).first()
    within = budget.entries.filter(at__gte=found.start, at__lt=found.end)
    before = last.spent if last else within.aggregate(total=Sum("amount"))["total"] or 0
    return BudgetPeriod.objects.create(
        budget=budget, start=found.start, end=found.end, spent=before
    )


def load_book(budget: Budget, period: BudgetPeriod, *, without: str = "") -> Book:
    """How the budget stands in that period, ``without`` what is reserved for this reference."""
    held: QuerySet[BudgetReservation] = (
        budget.reservations.exclude(reference=without) if without else budget.reservations.all()
    )
    return Book(period.spent, held.aggregate(total=Sum("amount"))["total"] or 0, *budget.marks)


def spend(
    budget: Budget, kind: str, amount: int, *, agent: str, reference: str, now: datetime
) -> None:
    """Write down what was spent, with what people are to be told of it."""
    period = get_or_create_period(budget, now)
    period.spent += amount
    period.save(update_fields=["spent"])
    entry = BudgetEntry(
        budget=budget,
        kind=kind,
        amount=amount,
        agent_slug=agent,
        reference=reference,
        at=now,
        start=period.start,
        end=period.end,
        spent=period.spent,
    )
    budget.sign(entry)
    entry.save()
    Budget.objects.filter(pk=budget.pk).update(**budget.head)
    announce_limits(budget, period, now)


def announce_limits(
    budget: Budget, period: BudgetPeriod, now: datetime, *, refused: bool = False
) -> None:
    """Owe channels what they have not been told of in this period: that a mark is reached, or that
    something was refused."""
    book = Book(period.spent, 0, *budget.marks)
    if book.soft is not None and book.has_reached_soft_limit() and period.soft_told_at is None:
        period.soft_told_at = now
        _enqueue_message(NotificationEvent.BUDGET_SOFT, budget, period, book.soft, now)
    if (
        book.hard is not None
        and (refused or book.level is Level.SPENT)
        and period.hard_told_at is None
    ):
        period.hard_told_at = now
        _enqueue_message(NotificationEvent.BUDGET_SPENT, budget, period, book.hard, now)
    period.save(update_fields=["soft_told_at", "hard_told_at"])


def _enqueue_message(
    event: NotificationEvent, budget: Budget, period: BudgetPeriod, mark: int, now: datetime
) -> None:
    data = {
        "budget": budget.slug,
        "agent": "",
        "endpoint": "",
        **_name_holder(budget),
        "counts": budget.unit,
        "period": budget.period,
        "spent": format_amount(period.spent, budget.counts),
        "mark": format_amount(mark, budget.counts),
        "ends": period.end.isoformat(),
        "url": f"{settings.SITE_URL}/admin/mcpregistry/budget/{budget.pk}/change/",
    }
    outbox.enqueue_budget(
        event, key=f"{budget.pk}:{period.start:%Y%m%d%H%M}:{budget.period}", data=data, now=now
    )
