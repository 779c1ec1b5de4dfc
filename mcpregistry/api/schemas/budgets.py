"""Budgets of agents and endpoints: what goes in and what comes out."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.access import Long
from mcpregistry.api.schemas.basics import Slug, StrictInput, Text
from mcpregistry.domain.budgets import Level, Period, Unit, convert_to_decimal
from mcpregistry.models import Budget, BudgetEntry
from mcpregistry.services.budgets.books import BudgetStanding

Mark = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]


class BudgetChange(StrictInput):
    """Changes of a budget. You can leave out any key. The amount spent so far is kept."""

    nullable = frozenset({"soft", "hard"})

    def columns(self) -> dict[str, Any]:
        """What was sent, as the columns have it."""
        given = self.get_sent_values()
        return given | {
            name: Decimal(str(given[name]))
            for name in self.nullable & given.keys()
            if given[name] is not None
        }

    slug: Slug | None = None
    description: Long | None = None
    enabled: bool | None = None
    period: (
        Annotated[Period, Field(strict=False, description="How often the budget resets.")] | None
    ) = None
    soft: (
        Annotated[
            Mark,
            Field(
                description="Soft limit: when it is reached, notifications are sent and the agent "
                "is warned. If null, there is no warning."
            ),
        ]
        | None
    ) = None
    hard: (
        Annotated[
            Mark,
            Field(
                description="Hard limit: calls that would exceed it are refused. If null, no call is refused."
            ),
        ]
        | None
    ) = None
    time_zone: (
        Annotated[
            Text,
            Field(
                max_length=63,
                description="Time zone in which the periods begin, for example Europe/Oslo.",
            ),
        ]
        | None
    ) = None


class BudgetNew(BudgetChange):
    """A new budget of an agent or an endpoint. ``soft`` and ``hard`` are US dollars, tokens or
    calls, depending on ``unit``.
    """

    slug: Slug
    agent: (
        Annotated[
            Slug,
            Field(
                description="Counts all calls of this agent, and all calls of the expert tools that it uses."
            ),
        ]
        | None
    ) = None
    endpoint: (
        Annotated[
            Slug,
            Field(
                description="Counts all calls that come through this endpoint, by any agent. Use it instead of agent."
            ),
        ]
        | None
    ) = None
    unit: Annotated[Unit, Field(strict=False)]


class BudgetOut(Schema):
    """A budget and its current state. Amounts are US dollars, tokens or calls, depending on
    ``unit``."""

    slug: str
    description: str
    agent: str = Field(description="The agent of the budget. Empty for a budget of an endpoint.")
    endpoint: str = Field(description="The endpoint of the budget. Empty for a budget of an agent.")
    enabled: bool
    unit: Unit
    period: Period
    soft: float | None
    hard: float | None
    time_zone: str
    spent: float = Field(description="Amount spent in the current period.")
    reserved: float = Field(
        description="Maximum amount that running calls and turns can still spend."
    )
    level: Level
    period_start: datetime
    period_end: datetime = Field(description="When the budget resets.")


class SpentOut(Schema):
    """One amount that was spent."""

    id: int
    kind: str
    amount: float
    agent: str = Field(description="The agent that made the call or started the run.")
    reference: str = Field(description="Id of the call, or of the run with the number of its turn.")
    at: datetime


def budget_out(row: Budget, standing: BudgetStanding) -> BudgetOut:
    """The budget as its answer."""
    book = standing.book
    unit = row.counts
    return BudgetOut(
        slug=row.slug,
        description=row.description,
        agent=row.agent.slug if row.agent else "",
        endpoint=row.endpoint.slug if row.endpoint else "",
        enabled=row.enabled,
        unit=unit,
        period=Period(row.period),
        soft=_float(row.soft),
        hard=_float(row.hard),
        time_zone=row.time_zone,
        spent=float(convert_to_decimal(book.spent, unit)),
        reserved=float(convert_to_decimal(book.reserved, unit)),
        level=standing.level,
        period_start=standing.start,
        period_end=standing.ends,
    )


def _float(mark: Decimal | None) -> float | None:
    return None if mark is None else float(mark)


def build_spent_out(row: BudgetEntry) -> SpentOut:
    """The entry as its answer; ``row.budget`` is read."""
    return SpentOut(
        id=row.pk,
        kind=row.kind,
        amount=float(convert_to_decimal(row.amount, row.budget.counts)),
        agent=row.agent_slug,
        reference=row.reference,
        at=row.at,
    )
