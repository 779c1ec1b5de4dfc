"""What calls of tools will cost: shown before they are made, and set aside when they are.

Made of the tool's definition and of what its last calls took, which the clock reckons from their records. What an operator
has entered counts more than both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import FloatField, OuterRef, Q, Subquery
from django.db.models.functions import Length

from mcpregistry.domain.energy import LOOKED_AT, Rates, Sample, Usage, estimate, foretold, usage_of
from mcpregistry.domain.lifecycle import State
from mcpregistry.domain.specs import ToolSpec
from mcpregistry.models import Agent, EnergyEntry, EnergyPool, Invocation, Tool, ToolUsage
from mcpregistry.prepared_queries import Given, Select

_NEWS = timedelta(minutes=10)
_TOOLS_AT_ONCE = 100
_USAGE = Select(
    ToolUsage.objects.filter(tool=Given("tool")).values_list(
        "tool_id", "calls", "seconds", "length", "median", "p95", "line", named=True
    )
)


@dataclass(frozen=True, slots=True)
class Work:
    """A call that is about to be made: its tool, and the length of its arguments in bytes."""

    tool: ToolSpec
    argument_bytes: int


def of_work(work: Work, rates: Rates) -> float:
    """Units that the call will cost; one small query, before every call of an agent with a pool."""
    tool = work.tool
    if tool.energy > 0:
        return tool.energy
    usage = next((_usage(row) for row in _USAGE.rows(tool=tool.id)), None)
    return foretold(_guess(tool), usage, rates, work.argument_bytes)


def _usage(row: Any) -> Usage:
    return ToolUsage(
        **{name: getattr(row, name) for name in ("calls", "seconds", "length", "median", "p95", "line")}
    ).usage


def _guess(tool: ToolSpec) -> float:
    return estimate(tool.data, operators=tool.energy, destructive=tool.destructive, open_world=tool.open_world)


def of_specs(tools: Iterable[ToolSpec], pool_id: int | None) -> dict[int, float]:
    """Units of a call of each tool, by its key, for whoever draws on this pool: a query for all of them, one for it."""
    listed, pool = list(tools), EnergyPool.objects.filter(pk=pool_id).first()
    rates = pool.rates if pool else Rates()
    known = {row.tool_id: row.usage for row in ToolUsage.objects.filter(tool__in=[tool.id for tool in listed])}
    return {
        tool.id: tool.energy or foretold(_guess(tool), known.get(tool.id), rates) for tool in listed
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """Units of a call, and of what they were made."""

    units: float
    why: str


def of_tool(tool: Tool, rates: Rates | None = None, *, argument_bytes: int | None = None) -> Estimate | None:
    """For pages and REST, of a tool read with ``usage`` and its definitions. None: it has no definition yet.

    ``rates``: of the pool that would be charged; without one those that a new pool has.
    """
    if tool.call_energy:
        return Estimate(tool.call_energy, "an operator's estimate")
    definition = tool.pinned or tool.latest
    if definition is None:
        return None
    usage = tool.usage.usage if hasattr(tool, "usage") else None
    guess = estimate(definition.data, destructive=tool.destructive, open_world=tool.open_world)
    why = f"from its last {usage.calls} calls" if usage and usage.calls > 1 else "from its definition"
    return Estimate(foretold(guess, usage, rates or Rates(), argument_bytes), why)


def rates_of(agent: str) -> Rates:
    """Those of the pool that the agent draws on, or those that a new pool has."""
    row = Agent.objects.select_related("energy_pool").filter(slug=agent).first()
    return row.energy_pool.rates if row and row.energy_pool else Rates()


def count_due(now: datetime) -> int:
    """Reckon anew what calls took of the tools that were called of late; the clock does it. Returns how many."""
    asked = _sent().filter(received_at__gt=now - _NEWS).order_by().values_list("server_slug", "tool_name").distinct()
    return sum(_counted(server, tool, now) for server, tool in asked[:_TOOLS_AT_ONCE])


def _counted(server: str, name: str, now: datetime) -> bool:
    tool = Tool.objects.filter(server__slug=server, name=name).first()
    usage = usage_of(_samples(server, name)) if tool else None
    if tool is None or usage is None:
        return False
    facts: Mapping[str, Any] = {
        "calls": usage.calls, "seconds": usage.seconds, "length": usage.length, "median": usage.median, "p95": usage.p95,
        "line": list(astuple(usage.line)) if usage.line else None, "counted_at": now,
    }  # fmt: skip
    ToolUsage.objects.update_or_create(tool=tool, defaults=dict(facts))
    return True


def _samples(server: str, tool: str) -> list[Sample]:
    """Of its newest calls, the oldest first. Where a call has waited for energy, the books know what it worked."""
    worked = EnergyEntry.objects.filter(~Q(reference=""), kind=EnergyEntry.Kind.CALL, reference=OuterRef("pk"))
    calls = _sent().filter(server_slug=server, tool_name=tool).exclude(arguments="").order_by("-received_at", "-id")
    rows = calls.annotate(
        size=Length("arguments"), worked=Subquery(worked.values("seconds")[:1], output_field=FloatField())
    ).values_list("size", "result_bytes", "dispatched_at", "finished_at", "worked")[:LOOKED_AT]
    return [
        (size, (end - sent).total_seconds() if worked is None else worked, size + answer)
        for size, answer, sent, end, worked in reversed(list(rows))
    ]


def _sent() -> Any:
    """Calls that were sent and have ended, whatever came of them."""
    return Invocation.objects.filter(dispatched_at__isnull=False, finished_at__isnull=False).exclude(
        state=State.NOT_SENT
    )
