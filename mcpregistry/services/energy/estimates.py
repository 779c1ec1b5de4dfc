"""What calls of tools will cost: shown before they are made, and set aside when they are.

Made of the tool's definition and of what its last calls took, which the clock reckons (``usage``).
What an operator has entered counts more than both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.energy import EnergyRates, ToolCost, estimate_call_cost, estimate_first_cost
from mcpregistry.domain.snapshot_specs import ToolSpec
from mcpregistry.models import Agent, EnergyPool, Tool, ToolUsage
from mcpregistry.prepared_queries import Given, Select

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


def estimate_work(work: Work, rates: EnergyRates) -> float:
    """Units that the call will cost; one small query, before every call of an agent with a pool."""
    tool = work.tool
    if tool.energy > 0:
        return tool.energy
    usage = next((_load_usage(row) for row in _USAGE.fetch_rows(tool=tool.id)), None)
    return estimate_call_cost(_guess_cost(tool), usage, rates, work.argument_bytes)


def _load_usage(row: Any) -> ToolCost:
    return ToolUsage(
        **{
            name: getattr(row, name)
            for name in ("calls", "seconds", "length", "median", "p95", "line")
        }
    ).usage


def _guess_cost(tool: ToolSpec) -> float:
    return estimate_first_cost(
        tool.data, operators=tool.energy, destructive=tool.destructive, open_world=tool.open_world
    )


def estimate_specs(tools: Iterable[ToolSpec], pool_id: int | None) -> dict[int, float]:
    """Units of a call of each tool, by its key, for whoever draws on this pool: a query for all of
    them, one for it."""
    listed = list(tools)
    pool = EnergyPool.objects.filter(pk=pool_id).first() if pool_id is not None else None
    rates = pool.rates if pool else EnergyRates()
    known = {
        row.tool_id: row.usage
        for row in ToolUsage.objects.filter(tool__in=[tool.id for tool in listed])
    }
    return {
        tool.id: tool.energy or estimate_call_cost(_guess_cost(tool), known.get(tool.id), rates)
        for tool in listed
    }


@dataclass(frozen=True, slots=True)
class Estimate:
    """Units of a call, and of what they were made."""

    units: float
    why: str


def estimate_tool(
    tool: Tool, rates: EnergyRates | None = None, *, argument_bytes: int | None = None
) -> Estimate | None:
    """For pages and REST, of a tool read with ``usage`` and its definitions. None: it has no
    definition yet.

    ``rates``: of the pool that would be charged; without one those that a new pool has.
    """
    if tool.call_energy:
        return Estimate(tool.call_energy, "estimated by an operator")
    definition = tool.pinned or tool.latest
    if definition is None:
        return None
    usage = tool.usage.usage if hasattr(tool, "usage") else None
    guess = estimate_first_cost(
        definition.data, destructive=tool.destructive, open_world=tool.open_world
    )
    why = (
        f"from its last {usage.calls} calls" if usage and usage.calls > 1 else "from its definition"
    )
    return Estimate(estimate_call_cost(guess, usage, rates or EnergyRates(), argument_bytes), why)


def load_rates_by_agent(agents: Iterable[str]) -> dict[str, EnergyRates]:
    """Of each agent that draws on a pool the pool's: one query."""
    rows = Agent.objects.filter(slug__in=set(agents), energy_pool__isnull=False).select_related(
        "energy_pool"
    )
    return {row.slug: row.energy_pool.rates for row in rows if row.energy_pool}


Asked = tuple[str, str, str]  # agent, server, tool


def estimate_waiting_calls(calls: Collection[Asked]) -> dict[Asked, float]:
    """Units of calls that wait, for a list of them: three queries, however long it is. Without
    those of unknown tools."""
    rates = load_rates_by_agent(agent for agent, _, _ in calls)
    wanted = {each[1:] for each in calls}
    alike = Tool.objects.filter(
        server__slug__in={server for server, _ in wanted}, name__in={name for _, name in wanted}
    )
    # of every server by every name: more than wanted
    keys = alike.order_by().values_list("pk", "server__slug", "name")
    names = {pk: (server, name) for pk, server, name in keys if (server, name) in wanted}
    rows = (
        Tool.objects.filter(pk__in=names).order_by("pk").select_related("pinned", "latest", "usage")
    )
    tools = {names[row.pk]: row for row in rows}
    found = {
        each: estimate_tool(tools[each[1:]], rates.get(each[0]))
        for each in set(calls)
        if each[1:] in tools
    }
    return {each: estimate.units for each, estimate in found.items() if estimate is not None}
