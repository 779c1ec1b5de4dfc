"""What a model advises on a trial: it may only make what is proposed stricter, and raise concerns
for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mcpregistry.domain.text.canonical import plain
from mcpregistry.domain.trials.report import Finding, Row

STRICTER = ("allow", "ask", "hide")  # each lets less through than the one before


def stricter(rows: Sequence[Row], advised: Mapping[str, Mapping[str, str]]) -> list[Row]:
    """The rows with each rule that ``advised`` (``rule`` and ``why``, by tool) makes stricter;
    nothing becomes looser."""
    return [_stricter(row, advised.get(row["tool"])) for row in rows]


def _stricter(row: Row, advised: Mapping[str, str] | None) -> Row:
    if advised is None or STRICTER.index(advised["rule"]) <= STRICTER.index(row["rule"]):
        return row
    return Row(
        tool=row["tool"],
        hash=row["hash"],
        rule=advised["rule"],
        why=f"advised by a model: {advised['why']}",
    )


def concerns(said: Iterable[str]) -> list[Finding]:
    """What a model is concerned about, as findings that people should read."""
    return [
        Finding(
            severity="alarm", kind="model", tool="", text=plain(f"Concern of a model: {each}", 500)
        )
        for each in said
    ]
