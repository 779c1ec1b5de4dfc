"""What a model advises on a trial: it may only make what is proposed stricter, and raise concerns
for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.domain.trials.report import ProposedToolRule, TrialFinding

STRICTER = ("allow", "ask", "hide")  # each lets less through than the one before


def apply_stricter_rules(
    rows: Sequence[ProposedToolRule], advised: Mapping[str, Mapping[str, str]]
) -> list[ProposedToolRule]:
    """The rows with each rule that ``advised`` (``rule`` and ``why``, by tool) makes stricter;
    nothing becomes looser."""
    return [_make_row_stricter(row, advised.get(row["tool"])) for row in rows]


def _make_row_stricter(
    row: ProposedToolRule, advised: Mapping[str, str] | None
) -> ProposedToolRule:
    if advised is None or STRICTER.index(advised["rule"]) <= STRICTER.index(row["rule"]):
        return row
    return ProposedToolRule(
        tool=row["tool"],
        hash=row["hash"],
        rule=advised["rule"],
        why=f"advised by a model: {advised['why']}",
    )


def list_model_concerns(said: Iterable[str]) -> list[TrialFinding]:
    """What a model is concerned about, as findings that people should read."""
    return [
        TrialFinding(
            severity="alarm",
            kind="model",
            tool="",
            text=clean_text(f"Concern of a model: {each}", 500),
        )
        for each in said
    ]
