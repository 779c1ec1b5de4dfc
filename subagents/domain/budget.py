"""What a turn may cost before it is made, what it did cost after it, and which limit a run has
reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from subagents.domain.lifecycle import Exit
from subagents.domain.spec import ExpertSpec, Prices

_MILLION = Decimal(1_000_000)
_GUESS = 500  # tokens of an answer
LEAST = 256  # tokens of an answer; for fewer it is not worth asking
# of the run's time, for its last turn; the longest in seconds
_RESERVE = 0.2
_LONGEST_RESERVE = 15.0


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used so far. ``seconds`` do not count waiting for people."""

    steps: int = 0
    calls: int = 0
    tokens: int = 0
    cost: Decimal = Decimal(0)
    energy: float = 0.0
    seconds: float = 0.0


def price(
    prices: Prices, *, input: int, output: int, cached: int = 0, cache_write: int = 0
) -> Decimal | None:
    """Dollars for one turn; ``input`` includes the cached tokens. None when the model's price is
    unknown.

    A cache price that nobody has entered is taken as the full input price: never cheaper than it
    is.
    """
    if prices.free:
        return Decimal(0)
    if prices.input is None or prices.output is None:
        return None
    read = prices.cache_read if prices.cache_read is not None else prices.input
    write = prices.cache_write if prices.cache_write is not None else prices.input
    fresh = max(0, input - cached - cache_write)
    total = fresh * prices.input + cached * read + cache_write * write + output * prices.output
    return total / _MILLION


def cache_saved(prices: Prices, *, cached: int, cache_write: int) -> Decimal | None:
    """Dollars that one turn cost less through the provider's cache; negative where it only wrote.
    None: not known."""
    fresh = price(prices, input=cached + cache_write, output=0)
    paid = price(
        prices, input=cached + cache_write, output=0, cached=cached, cache_write=cache_write
    )
    return None if fresh is None or paid is None else fresh - paid


def of_kind(prices: Prices, kind: str) -> Prices:
    """With Anthropic's cache prices where nobody has entered them: a tenth of the input's to read,
    5/4 to write."""
    if kind != "anthropic" or prices.input is None:
        return prices
    read = prices.input / 10 if prices.cache_read is None else prices.cache_read
    write = prices.input * 5 / 4 if prices.cache_write is None else prices.cache_write
    return replace(prices, cache_read=read, cache_write=write)


def reserve(prices: Prices, *, estimated_input: int, max_output: int) -> Decimal:
    """The worst that a turn can cost, in dollars; it is set aside before the model is asked.

    Zero for a model without prices, which no money budget accepts.
    """
    worst = Prices(
        prices.input,
        prices.output,
        cache_write=max(
            (p for p in (prices.input, prices.cache_write) if p is not None), default=None
        ),
        free=prices.free,
    )
    cost = price(worst, input=estimated_input, output=max_output, cache_write=estimated_input)
    return cost if cost is not None else Decimal(0)


def find_reached_limit(spec: ExpertSpec, spent: Spent) -> Exit | None:
    """The limit that allows no further turn with tools, or None. The step that concludes is not
    counted."""
    if time_left(spec, spent) <= 0:
        return Exit.TIME_LIMIT
    if spent.steps >= spec.max_steps - 1:
        return Exit.MAX_TURNS
    if spec.max_tokens is not None and spent.tokens >= spec.max_tokens:
        return Exit.BUDGET
    if spec.max_energy is not None and spent.energy >= spec.max_energy:
        return Exit.BUDGET
    if spent.calls >= spec.max_calls:
        return Exit.BUDGET
    return None


def time_left(spec: ExpertSpec, spent: Spent) -> float:
    """Seconds for turns with tools and for calls; the rest is kept for the turn that concludes."""
    return spec.max_seconds - min(_LONGEST_RESERVE, _RESERVE * spec.max_seconds) - spent.seconds


def likely_output(earlier: Sequence[int], *, most: int) -> int:
    """Tokens that the coming answer will probably have: by the run's earlier ones, and a guess that
    counts as one."""
    return min(most, (_GUESS + sum(earlier)) // (1 + len(earlier)))


def affordable(spec: ExpertSpec, spent: Spent, worst: Decimal) -> bool:
    """Whether the money budget bears the worst case of one more turn."""
    return spec.max_cost is None or spent.cost + worst <= spec.max_cost


def output_room(spec: ExpertSpec, spent: Spent, *, input: int, most: int, last: bool) -> int:
    """Tokens that the coming answer may have, of at most ``most``; zero where the token budget does
    not bear it.

    Unless it is the last, one more turn must stay possible, which reads all of that again.
    """
    if spec.max_tokens is None:
        return most
    left = spec.max_tokens - spent.tokens
    room = left - input if last else (left - 2 * input - LEAST) // 2
    return min(room, most) if room >= min(LEAST, most) else 0
