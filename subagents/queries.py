"""What pages and programs read of expert tools and runs; each in a fixed number of queries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Avg, Count, Q, Sum
from django.utils import timezone

from mcpregistry.models import Invocation
from subagents.domain.lifecycle import RunState
from subagents.models import Attempt, ExpertTool, Run, ToolCall, Turn


def expert_figures(expert: ExpertTool, *, days: int = 30) -> dict[str, Any]:
    """Of the last days: runs, how they ended, what they cost and saved; the medians over answered runs."""
    since = timezone.now() - timedelta(days=days)
    runs = Run.objects.filter(version__expert=expert, created_at__gte=since)
    totals = runs.aggregate(
        runs=Count("id"), done=Count("id", filter=Q(state=RunState.DONE)),
        failed=Count("id", filter=Q(state=RunState.FAILED)), average_cost=Avg("cost"), cost=Sum("cost"),
        tokens=Sum("input_tokens"),
    )  # fmt: skip
    saved = sorted(
        each["context_saved"]
        for each in runs.filter(state=RunState.DONE).values_list("savings", flat=True)[:2000]
        if "context_saved" in each
    )
    middle = saved[len(saved) // 2] if saved else None
    return totals | {
        "days": days,
        "saved": sum(saved),
        "saved_middle": middle,
        "costs_more": middle is not None and middle < 0,
    }


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a run's timeline: a turn, a failed request, or a tool call."""

    kind: str
    at: Any
    row: Any
    record: Invocation | None = None
    share: float = 0.0  # of the run's whole time, in percent
    offset: float = 0.0


def timeline(run: Run) -> list[Line]:
    """Turns, failed requests and tool calls in order of their beginnings."""
    calls = list(ToolCall.objects.filter(run=run).select_related("stored"))
    records = Invocation.objects.in_bulk([call.invocation for call in calls if call.invocation])
    lines = [
        *(Line("turn", turn.started_at, turn) for turn in Turn.objects.filter(run=run).select_related("model")),
        *(Line("attempt", attempt.at, attempt) for attempt in Attempt.objects.filter(run=run)),
        *(Line("call", call.started_at or run.created_at, call, records.get(call.invocation)) for call in calls),
    ]
    order = {"turn": 0, "attempt": 1, "call": 2}
    return sorted(lines, key=lambda line: (line.at, order[line.kind], getattr(line.row, "index", 0)))


def run_totals(*, days: int = 30) -> dict[str, Any]:
    """For the overview: runs, cost and saved context of all expert tools."""
    since = timezone.now() - timedelta(days=days)
    runs = Run.objects.filter(created_at__gte=since)
    totals = runs.aggregate(runs=Count("id"), cost=Sum("cost"), open=Count("id", filter=Q(finished_at=None)))
    saved = runs.filter(state=RunState.DONE).values_list("savings", flat=True)[:5000]
    return totals | {"days": days, "saved": sum(each.get("context_saved", 0) for each in saved)}
