"""What calls of each tool took, by their records: reckoned anew by the clock, so that no call waits
for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from datetime import datetime, timedelta
from typing import Any

from django.db.models import FloatField, OuterRef, Q, Subquery
from django.db.models.functions import Length

from mcpregistry.domain.energy import LOOKED_AT, Sample, summarize_samples
from mcpregistry.domain.lifecycle import SUPPOSED, InvocationState
from mcpregistry.models import EnergyEntry, Invocation, Tool, ToolUsage

_NEWS = timedelta(minutes=10)
_TOOLS_AT_ONCE = 100


def count_due(now: datetime) -> int:
    """Reckon anew what calls took of the tools that were called of late; the clock does it. Returns
    how many."""
    asked = (
        _select_sent_calls()
        .filter(received_at__gt=now - _NEWS)
        .order_by()
        .values_list("server_slug", "tool_name")
        .distinct()
    )
    return sum(_count_tool_usage(server, tool, now) for server, tool in asked[:_TOOLS_AT_ONCE])


def _count_tool_usage(server: str, name: str, now: datetime) -> bool:
    tool = Tool.objects.filter(server__slug=server, name=name).first()
    usage = summarize_samples(_load_samples(server, name)) if tool else None
    if tool is None or usage is None:
        return False
    facts: Mapping[str, Any] = {
        "calls": usage.calls,
        "seconds": usage.seconds,
        "length": usage.length,
        "median": usage.median,
        "p95": usage.p95,
        "line": list(astuple(usage.line)) if usage.line else None,
        "counted_at": now,
    }
    ToolUsage.objects.update_or_create(tool=tool, defaults=dict(facts))
    return True


def _load_samples(server: str, tool: str) -> list[Sample]:
    """Of its newest calls, the oldest first. Where a call has waited for energy, the books know
    what it worked."""
    worked = EnergyEntry.objects.filter(
        ~Q(reference=""), kind=EnergyEntry.Kind.CALL, reference=OuterRef("pk")
    )
    calls = (
        _select_sent_calls()
        .filter(server_slug=server, tool_name=tool)
        .exclude(arguments="")
        .order_by("-received_at", "-id")
    )
    rows = calls.annotate(
        size=Length("arguments"),
        worked=Subquery(worked.values("seconds")[:1], output_field=FloatField()),
    ).values_list("size", "result_bytes", "dispatched_at", "finished_at", "worked")[:LOOKED_AT]
    return [
        (size, (end - sent).total_seconds() if worked is None else worked, size + answer)
        for size, answer, sent, end, worked in reversed(list(rows))
    ]


def _select_sent_calls() -> Any:
    """Calls that were sent and have ended with any result. A supposed end is left out: it does not
    tell how long the call worked."""
    ended = Invocation.objects.filter(dispatched_at__isnull=False, finished_at__isnull=False)
    return ended.exclude(state=InvocationState.NOT_SENT).exclude(error_code=SUPPOSED)
