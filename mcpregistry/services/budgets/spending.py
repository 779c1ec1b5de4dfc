"""What calls and turns of models spend: reserved before they go out, written down when they have
ended.

A call's reservation is the note that it is still to be written down: it goes in the transaction
that does so, which reads the call's own record. So a process that dies in between loses nothing,
and nothing is spent twice. A turn's goes in the transaction that writes the turn. What is out is
held against the hard limit, so that many at once cannot all pass on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from mcpregistry.db import read_database_now
from mcpregistry.domain.budgets import Book, Unit, format_amount
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Budget, BudgetEntry, BudgetPeriod, BudgetReservation, Invocation
from mcpregistry.services.budgets import books
from mcpregistry.services.budgets.books import Kind

_AT_ONCE = 500
UNRECORDED = timedelta(minutes=2)  # for so long a call may be reserved for without a record of it


class BudgetSpent(SlipsnisseError):
    """The hard limit of a budget does not bear it; nothing was sent."""

    code = "BUDGET_SPENT"


@dataclass(frozen=True, slots=True)
class Needs:
    """What is about to be spent at most, and who pays: the agent ``by`` that makes it, the endpoint
    ``door`` by which it came, and whoever has caused it (``payers``: all of them, as
    ``domain.budgets`` names them).

    ``left``: of what something must be left, though it is not known how much will be spent.
    ``hears``: whether the answer has room for what its agent is to be told; else the next one tells
    it. ``twice``: as much again must be left besides, for the last word of whoever asks; it is not
    set aside, and a refusal for it alone is none that people are told of.
    """

    by: str
    payers: frozenset[str]
    amounts: Mapping[Unit, int]
    left: frozenset[Unit] = frozenset()
    hears: bool = False
    twice: bool = False
    door: str = ""

    def is_own_budget(self, budget: Budget) -> bool:
        """Whether it is a budget of which whoever makes it is told, as others are not who have only
        caused it."""
        return budget.payer in (self.by, self.door)


@dataclass(frozen=True, slots=True)
class Remark:
    """What an agent is told of a budget, once in each period (``period``: its key)."""

    said: str
    period: int


@dataclass(frozen=True, slots=True)
class BudgetAnswer:
    """Whether it was reserved (``refusal`` None), and what the agent that makes it should be told,
    once in each period."""

    refusal: BudgetSpent | None = None
    remarks: tuple[Remark, ...] = ()


@transaction.atomic
def reserve(*, kind: str, reference: str, needs: Needs) -> BudgetAnswer:
    """Set aside what is needed of every budget that bears it, or of none. Asked again, the last
    time counts."""
    now = read_database_now()
    found = []
    for budget in books.lock_budgets(needs.payers, [*needs.amounts, *needs.left]):
        more = needs.amounts.get(budget.counts, 0)
        period = books.get_or_create_period(budget, now)
        book = books.load_book(budget, period, without=reference)
        wanted = 2 * more if needs.twice else more
        if not book.can_afford(wanted) and settle_ended(budget, now):
            period = books.get_or_create_period(budget, now)
            book = books.load_book(budget, period, without=reference)
        if not book.can_afford(wanted):
            if not needs.twice:
                books.announce_limits(budget, period, now, refused=True)
            return BudgetAnswer(_make_refusal(budget, period, book, more, needs))
        found.append((budget, period, book, more))
    for budget, _, _, more in found:
        if budget.counts in needs.amounts:
            BudgetReservation.objects.update_or_create(
                kind=kind,
                reference=reference,
                budget=budget,
                defaults={"amount": more, "agent_slug": needs.by, "made_at": now},
            )
    news = [each for each in found if needs.hears and _is_news(*each, needs)]
    return BudgetAnswer(remarks=tuple(_make_remark(*each) for each in news))


@transaction.atomic
def list_remarks(needs: Needs) -> tuple[Remark, ...]:
    """What the agent should be told before a call goes out for which everything was set aside long
    ago."""
    now = read_database_now()
    found = []
    for budget in books.lock_budgets(needs.payers, [*needs.amounts, *needs.left]):
        period = books.get_or_create_period(budget, now)
        found.append((budget, period, books.load_book(budget, period), 0))
    return tuple(_make_remark(*each) for each in found if _is_news(*each, needs))


def restore_remarks(found: Iterable[Remark]) -> None:
    """The answer in which they were to be told came to nothing, so the next one tells them."""
    BudgetPeriod.objects.filter(pk__in=[each.period for each in found]).update(agent_told=False)


def _is_news(budget: Budget, period: BudgetPeriod, book: Book, more: int, needs: Needs) -> bool:
    return (
        needs.is_own_budget(budget) and not period.agent_told and book.has_reached_soft_limit(more)
    )


def _make_remark(budget: Budget, period: BudgetPeriod, book: Book, more: int) -> Remark:
    BudgetPeriod.objects.filter(pk=period.pk).update(agent_told=True)
    used = format_amount(book.spent + book.reserved + more, budget.counts)
    of = f" of {format_amount(book.hard, budget.counts)}" if book.hard is not None else ""
    after = (
        " When the limit is reached, calls are refused until"
        if book.hard is not None
        else " The budget resets at"
    )
    whose = f"'{budget.slug}'" if budget.agent else f"'{budget.slug}' of this endpoint"
    said = f"Used from the budget {whose} in the current {budget.period}: {used}{of}.{after} {_format_moment(period.end)}."
    return Remark(said, period.pk)


def _make_refusal(
    budget: Budget, period: BudgetPeriod, book: Book, more: int, needs: Needs
) -> BudgetSpent:
    assert book.hard is not None
    whose = (
        f"'{budget.slug}'" if budget.payer == needs.by else f"'{budget.slug}' of the {budget.whose}"
    )
    mark = format_amount(book.hard, budget.counts)
    spent = format_amount(book.spent, budget.counts)
    said = f"The budget {whose} allows {mark} each {budget.period}. Spent: {spent}."
    said += (
        f" Reserved for calls in progress: {format_amount(book.reserved, budget.counts)}."
        if book.reserved
        else ""
    )
    said += (
        f" This request may need {format_amount(more, budget.counts)}."
        if more > (budget.counts is Unit.CALLS)
        else ""
    )
    if max(more, 1) > book.hard:
        return BudgetSpent(
            said,
            remedy="Ask an operator for a higher limit. The budget can never cover this request.",
        )
    until = _format_moment(period.end)
    return BudgetSpent(
        said,
        remedy=f"The budget resets at {until}. To continue earlier, ask an operator for a higher limit.",
    )


def _format_moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


# Calls


@transaction.atomic
def settle(*, call_id: str) -> bool:
    """Write down what the call has spent, if its record says that it has ended. False: it goes on,
    or it was done before."""
    held = BudgetReservation.objects.filter(kind=Kind.CALL, reference=call_id).values("budget")
    now = read_database_now()
    done = False
    for budget in _lock_budgets_by_key(held):
        done = bool(_settle_reservations(budget, [call_id], now)) or done
    return done


@transaction.atomic
def release(*, kind: str, reference: str) -> None:
    """It was not made after all, and nothing is spent."""
    BudgetReservation.objects.filter(kind=kind, reference=reference).delete()


def settle_due() -> int:
    """Write down every call that has ended without that; the clock does it. Returns how many."""
    rows = _select_ended_reservations(
        BudgetReservation.objects.filter(kind=Kind.CALL), read_database_now()
    )
    return sum(
        settle(call_id=call_id)
        for call_id in {*rows.values_list("reference", flat=True)[:_AT_ONCE]}
    )


def settle_ended(budget: Budget, now: datetime) -> int:
    """The same for one budget that is locked: who lacks room looks whether there is more."""
    rows = _select_ended_reservations(
        BudgetReservation.objects.filter(kind=Kind.CALL, budget=budget), now
    )
    return _settle_reservations(budget, [*rows.values_list("reference", flat=True)[:_AT_ONCE]], now)


def _lock_budgets_by_key(keys: Any) -> list[Budget]:
    rows = Budget.objects.filter(pk__in=keys).select_related("agent", "endpoint")
    return list(rows.select_for_update(of=("self",)).order_by("pk"))


def _select_ended_reservations(
    rows: QuerySet[BudgetReservation], now: datetime
) -> QuerySet[BudgetReservation]:
    """Those of calls that are over; or that nobody knows, and that were not made just now."""
    record = Invocation.objects.filter(pk=OuterRef("reference"))
    over = rows.filter(Exists(record.filter(finished_at__isnull=False)))
    return over | rows.filter(~Exists(record), made_at__lt=now - UNRECORDED)


def _settle_reservations(budget: Budget, calls: Iterable[str], now: datetime) -> int:
    """Of a budget that is locked: who comes second finds the reservation gone."""
    done = 0
    for held in BudgetReservation.objects.filter(
        budget=budget, kind=Kind.CALL, reference__in=[*calls]
    ):
        call = Invocation.objects.filter(pk=held.reference).first()
        if call is None and held.made_at > now - UNRECORDED:
            continue
        if call is not None and call.finished_at is None:
            continue
        held.delete()
        done += 1
        if (
            held.amount > 0
            and call is not None
            and call.dispatched_at is not None
            and call.state != InvocationState.NOT_SENT
        ):
            books.spend(
                budget,
                Kind.CALL,
                held.amount,
                agent=held.agent_slug,
                reference=held.reference,
                now=now,
            )
    return done


# Turns of models


def spend_turn(*, run: str, reference: str, needs: Needs) -> None:
    """Write down what a turn of the run has spent (``needs.amounts``), in the transaction that
    writes the turn down."""
    release(kind=Kind.TURN, reference=run)
    now = read_database_now()
    for budget in books.lock_budgets(needs.payers, [*needs.amounts]):
        if (amount := needs.amounts[budget.counts]) > 0:
            books.spend(budget, Kind.TURN, amount, agent=needs.by, reference=reference, now=now)


def lose_turn(*, run: str, reference: str) -> None:
    """Whoever made a turn of the run has died in it: its provider may well charge the money that
    was set aside for it."""
    held = {
        each.budget_id: each
        for each in BudgetReservation.objects.filter(kind=Kind.TURN, reference=run)
    }
    if not held:
        return
    now = read_database_now()
    for budget in _lock_budgets_by_key(list(held)):
        if budget.counts is Unit.MONEY and held[budget.pk].amount > 0:
            told = {"agent": held[budget.pk].agent_slug, "reference": reference}
            books.spend(budget, BudgetEntry.Kind.LOST, held[budget.pk].amount, now=now, **told)
    release(kind=Kind.TURN, reference=run)
