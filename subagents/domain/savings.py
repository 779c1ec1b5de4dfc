"""What a run kept out of the caller's context (all counts in tokens of one tokenizer), negative
when it cost more.

R: results that the sub-agent read, C: its tool calls, U: what went back to the caller with its
question, D: definitions of the whitelisted tools, d: the definition of the expert tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from subagents.domain.spec import Prices


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of one run that ``savings`` works on, in tokens of one tokenizer; ``turns`` in
    turns."""

    results: int
    calls: int
    returned: int
    definitions: int
    own_definition: int
    input_tokens: int
    turns: int


def savings(counted: Counted) -> dict[str, float | int]:
    """The figures that a run's page shows.

    ``context_saved`` stays saved for the rest of the caller's session; ``definitions_saved`` on
    every turn; ``compression`` and ``reread_tax`` are ratios.
    """
    moved = counted.results + counted.calls
    return {
        "context_saved": moved - counted.returned,
        "definitions_saved": counted.definitions - counted.own_definition,
        "compression": round(moved / counted.returned, 2) if counted.returned else 0.0,
        "reread_tax": round(counted.input_tokens / moved, 2) if moved else 0.0,
        "results": counted.results,
        "calls": counted.calls,
        "returned": counted.returned,
    }


def money_saved(
    counted: Counted, *, cost: Decimal, callers: Prices, base_context: int = 30_000
) -> Decimal | None:
    """An estimate: had the caller made the same calls itself, over as many turns, on its own model.

    Its context grows evenly while it works; what it holds already is read again on every turn, from
    the cache where that has a price. None when the model has no prices. Negative where it would
    have been cheaper.
    """
    if callers.input is None or callers.output is None:
        return None
    read_again = callers.cache_read if callers.cache_read is not None else callers.input
    million = Decimal(1_000_000)
    grown = (counted.results + counted.calls) * (counted.turns + 1) // 2
    alone = (
        base_context * counted.turns * read_again
        + grown * callers.input
        + counted.calls * callers.output
    )
    with_expert = base_context * read_again + counted.returned * callers.input
    return (alone - with_expert) / million - cost
