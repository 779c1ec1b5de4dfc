"""Figures of approvals: what is held, how it ends, how long people take, which rules ask for too
much.

Numbers count every request of a period; medians come from the newest ``SAMPLE`` of them. Durations
are seconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Q, QuerySet

from mcpregistry.domain.sample_statistics import find_median
from mcpregistry.models import ApprovalRequest, ApprovalVote
from mcpregistry.queries.approvals import ENDS

SAMPLE = 20_000
RELAX_RATE = 0.95
RELAX_DECISIONS = 20


@dataclass(frozen=True, slots=True)
class RuleFigures:
    """Requests of one rule in a period. ``rate`` is approved of what people decided, 0 to 1."""

    rule: str
    held: int = 0
    approved: int = 0
    rejected: int = 0
    expired: int = 0
    cancelled: int = 0
    void: int = 0
    waiting: int = 0
    seconds: float | None = None

    @property
    def decided(self) -> int:
        """How many requests people decided, either way."""
        return self.approved + self.rejected

    @property
    def rate(self) -> float | None:
        return self.approved / self.decided if self.decided else None

    @property
    def may_relax(self) -> bool:
        """Nearly always approved, often enough to mean something: the rule may ask for too much."""
        return self.rate is not None and self.rate > RELAX_RATE and self.decided >= RELAX_DECISIONS


@dataclass(frozen=True, slots=True)
class ApproverFigures:
    """One person's votes in a period; ``seconds`` is the middle of the times from asking to the
    vote."""

    name: str
    approved: int
    rejected: int
    seconds: float | None

    @property
    def rate(self) -> float:
        return self.approved / (self.approved + self.rejected)


@dataclass(frozen=True, slots=True)
class ApprovalFigures:
    """The figures of a period: all requests together, by rule, and by approver."""

    total: RuleFigures
    rules: list[RuleFigures]
    approvers: list[ApproverFigures]


def compute_figures(*, since: datetime) -> ApprovalFigures:
    """What was asked since then: by rule (the busiest first) and by approver."""
    asked = ApprovalRequest.objects.filter(asked_at__gte=since).order_by()
    times = _times_to_decide(asked)
    counted = asked.values("rule_name").annotate(**_counts()).order_by("rule_name")
    rules = [_of_rule(dict(row), times) for row in counted]
    rules.sort(key=lambda each: -each.held)
    everything = [seconds for each in times.values() for seconds in each]
    total = RuleFigures(rule="", **asked.aggregate(**_counts()), seconds=find_median(everything))
    return ApprovalFigures(total, rules, _list_approvers(since))


def _of_rule(row: dict[str, Any], times: dict[str, list[float]]) -> RuleFigures:
    name = row.pop("rule_name")
    return RuleFigures(rule=name, **row, seconds=find_median(times.get(name, [])))


def _counts() -> dict[str, Count]:
    names = ("approved", "rejected", "expired", "cancelled", "void", "waiting")
    return {"held": Count("id")} | {name: Count("id", filter=ENDS[name]) for name in names}


def _times_to_decide(asked: QuerySet[ApprovalRequest]) -> dict[str, list[float]]:
    """Seconds from asking to a person's decision, by rule; what ran out or was withdrawn has
    none."""
    decided = asked.filter(ENDS["approved"] | ENDS["rejected"], decided_at__isnull=False)
    times: dict[str, list[float]] = defaultdict(list)
    for rule, at, end in decided.order_by("-asked_at").values_list(
        "rule_name", "asked_at", "decided_at"
    )[:SAMPLE]:
        if end is not None:
            times[rule].append((end - at).total_seconds())
    return times


def _list_approvers(since: datetime) -> list[ApproverFigures]:
    votes = ApprovalVote.objects.filter(request__asked_at__gte=since)
    times: dict[str, list[float]] = defaultdict(list)
    for name, at, asked_at in votes.order_by("-at").values_list("name", "at", "request__asked_at")[
        :SAMPLE
    ]:
        times[name].append((at - asked_at).total_seconds())
    rows = (
        votes.order_by()
        .values("name")
        .annotate(
            approved=Count("id", filter=Q(approve=True)),
            rejected=Count("id", filter=Q(approve=False)),
            all=Count("id"),
        )
    )
    return [
        ApproverFigures(
            row["name"], row["approved"], row["rejected"], find_median(times[row["name"]])
        )
        for row in rows.order_by("-all", "name")
    ]
