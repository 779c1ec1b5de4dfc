"""What a run kept out of the caller's context (all counts in tokens of one tokenizer), negative when it cost more.

R: results that the sub-agent read, C: its tool calls, U: what went back to the caller with its question,
D: definitions of the whitelisted tools, d: the definition of the expert tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Counted:
    results: int
    calls: int
    returned: int
    definitions: int
    own_definition: int
    input_tokens: int
    turns: int


def savings(counted: Counted) -> dict[str, float | int]:
    """``context_saved`` stays saved for the rest of the caller's session; ``definitions_saved`` on every turn."""
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
    counted: Counted, *, cost: Decimal, input_price: Decimal, output_price: Decimal, base_context: int = 30_000
) -> Decimal:
    """An estimate: had the caller made the same calls itself, over as many turns, on its own model.

    Prices are dollars for a million tokens. Its context grows evenly while it works; what it holds
    already is read again on every turn.
    """
    million = Decimal(1_000_000)
    grown = (counted.results + counted.calls) * (counted.turns + 1) // 2
    alone = ((base_context * counted.turns + grown) * input_price + counted.calls * output_price) / million
    with_expert = cost + ((base_context + counted.returned) * input_price) / million
    return alone - with_expert
