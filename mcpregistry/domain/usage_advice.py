"""What a tool's own figures advise: grown slower, much slower than its server's others, large
results, one error often.

Only where there are calls enough to mean something, and only where the difference is beyond what
the buckets blur.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcpregistry.domain.usage import UsageTally

ENOUGH = 30  # calls that nobody was asked about
# times as long as before, and milliseconds more
_SLOWER = 2.0
_NOTICED = 200.0
_MUCH_SLOWER = 5.0  # than the others of its server
_LARGE = 20_000  # characters of a result, about 5,000 tokens
# failures with one code, and of all calls
_OFTEN = 10
_SHARE = 0.2
FEWEST = min(ENOUGH, _OFTEN)  # calls of which anything is said at all


@dataclass(frozen=True, slots=True)
class Advice:
    """What is odd, in words with the figures, and what to do about it."""

    kind: str
    words: str
    remedy: str


def advise_on_usage(tally: UsageTally, *, before: UsageTally, others: UsageTally) -> list[Advice]:
    """``before``: the same tool in the period before; ``others``: how long the other tools of its
    server took, now."""
    found = (
        _advise_slower_tool(tally, before),
        _advise_slowest_tool(tally, others),
        _advise_large_results(tally),
        _advise_common_error(tally),
    )
    return [each for each in found if each is not None]


def _advise_slower_tool(tally: UsageTally, before: UsageTally) -> Advice | None:
    if tally.timed < ENOUGH or before.timed < ENOUGH:
        return None
    now = tally.p95 or 0.0
    then = before.p95 or 0.0
    if now < _SLOWER * then or now - then < _NOTICED:
        return None
    words = (
        f"95 % of its {tally.timed:,} calls took up to {_format_milliseconds(now)}. In the previous period, 95 % of {before.timed:,} calls "
        f"took up to {_format_milliseconds(then)}."
    )
    return Advice(
        "grown slower",
        words,
        "Check whether the server, its upstream service or the arguments have changed.",
    )


def _advise_slowest_tool(tally: UsageTally, others: UsageTally) -> Advice | None:
    if tally.timed < ENOUGH or others.timed < ENOUGH:
        return None
    now = tally.p50 or 0.0
    theirs = others.p50 or 0.0
    if now < _MUCH_SLOWER * theirs or now - theirs < _NOTICED:
        return None
    words = f"Its median call took {_format_milliseconds(now)}. The median of the server's other tools is {_format_milliseconds(theirs)}."
    return Advice(
        "slower than the other tools of its server",
        words,
        "Request less data in each call, or call the tool as a task.",
    )


def _advise_large_results(tally: UsageTally) -> Advice | None:
    if tally.sent < ENOUGH or tally.size < _LARGE * tally.sent:
        return None
    each = tally.size / tally.sent
    words = (
        f"An average result has {each:,.0f} characters, which is about {each / 4:,.0f} tokens for a model "
        f"({tally.sent:,} calls)."
    )
    return Advice(
        "large results",
        words,
        "Use arguments to request less data, or let an expert tool summarize the results.",
    )


def _advise_common_error(tally: UsageTally) -> Advice | None:
    if not tally.codes:
        return None
    code, count = max(tally.codes.items(), key=lambda item: (item[1], item[0]))
    if count < _OFTEN or count < _SHARE * tally.calls:
        return None
    words = f"{count:,} of {tally.calls:,} calls failed with {code}."
    return Advice("one error often", words, "Check what the failed calls have in common.")


def _format_milliseconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
