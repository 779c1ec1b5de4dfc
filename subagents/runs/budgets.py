"""What turns of models spend of budgets: of the expert tool's agent, and of every agent and
endpoint that has led to the run.

All but ``coming`` are called in the transaction that writes the turn's beginning or end, and has
locked the run by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from mcpregistry.domain.budgets import Unit, convert_dollars
from mcpregistry.prepared_queries import Given, Select
from mcpregistry.services.budgets import books, spending
from mcpregistry.services.budgets.books import Kind
from mcpregistry.services.budgets.spending import BudgetSpent, Needs
from subagents.domain.spec import Prices
from subagents.llm.model_values import TokenUsage
from subagents.models import Run

_PAID_BY = Select(
    Run.objects.filter(id=Given("id")).values_list(
        "payers", "version__expert__agent__slug", named=True
    )
)


def coming(run: str, *, worst: Decimal, tokens: int, prices: Prices, twice: bool) -> Needs | None:
    """What the coming turn may spend at worst, in dollars and in tokens. None: nobody who pays for
    the run has a budget.

    ``twice``: another must stay possible after it, or the run could not even say what it has found.
    Raises BudgetSpent for a model of which nobody could tell the money.
    """
    needs = _needs(run, {Unit.MONEY: convert_dollars(worst), Unit.TOKENS: tokens})
    if needs is not None:
        _check_price(needs, prices)
    return needs and replace(needs, twice=twice)


def reserve(run: str, needs: Needs) -> BudgetSpent | None:
    """Set it aside. A refusal: nothing was set aside."""
    return spending.reserve(kind=Kind.TURN, reference=run, needs=needs).refusal


def spend(run: str, reference: str, *, cost: Decimal | None, usage: TokenUsage) -> None:
    """Write down what a turn has spent, or that it has spent nothing; what was set aside for it is
    free again."""
    money = {} if cost is None else {Unit.MONEY: convert_dollars(cost)}
    needs = _needs(run, {**money, Unit.TOKENS: usage.input + usage.output})
    # or nothing that anybody's budgets count, though something may be set aside for it
    if needs is None:
        release(run)
    else:
        spending.spend_turn(run=run, reference=reference, needs=needs)


def record_lost_turn(run: str, fence: int) -> None:
    """The worker that made the turn is dead."""
    spending.lose_turn(run=run, reference=f"{run}:lost:{fence}")


def release(run: str) -> None:
    """The run has ended; no turn of it is out."""
    spending.release(kind=Kind.TURN, reference=run)


def _needs(run: str, amounts: Mapping[Unit, int]) -> Needs | None:
    """None: nobody who pays for the run has a budget."""
    paid = _PAID_BY.get(id=run)
    payers = frozenset([*paid.payers.split(), paid.version__expert__agent__slug])
    units = books.select_budgets_of(payers).order_by().values_list("unit", flat=True)
    wanted = {unit: amounts[unit] for unit in map(Unit, units.distinct()) if unit in amounts}
    return Needs(paid.version__expert__agent__slug, payers, wanted) if wanted else None


def _check_price(needs: Needs, prices: Prices) -> None:
    """What nobody can count must not go past a hard limit."""
    if (
        prices.free
        or (prices.input is not None and prices.output is not None)
        or Unit.MONEY not in needs.amounts
    ):
        return
    limits = books.select_budgets_of(needs.payers).filter(unit=Unit.MONEY, hard__isnull=False)
    if (name := limits.values_list("slug", flat=True).first()) is not None:
        raise BudgetSpent(
            f'The model has no prices, so it cannot be used with the money budget "{name}".',
            remedy="On the page of the model, enter the prices or enable Free.",
        )
