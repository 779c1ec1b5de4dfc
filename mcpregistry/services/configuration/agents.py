"""Read agents with their grants and budgets, for a snapshot. There can be thousands, so unusual values are read apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.db.models import QuerySet

from mcpregistry.domain.specs import AgentSpec, Grants, GrantSpec
from mcpregistry.models import Agent, Budget, Grant
from mcpregistry.models.access import everything
from mcpregistry.services.configuration.capabilities import Meanings, meanings


def read_grants() -> tuple[dict[int, list[GrantSpec]], dict[int, list[GrantSpec]]]:
    """Return the grants of agents and of endpoints, by their keys."""
    by_agent: dict[int, list[GrantSpec]] = defaultdict(list)
    by_endpoint: dict[int, list[GrantSpec]] = defaultdict(list)
    columns = ("id", "agent_id", "endpoint_id", "server_id", "tool_id", "expires_at", "kind", "uri")
    pinned = _unusual(Grant.objects.order_by(), "argument_pins", {})
    alike: dict[tuple[Any, ...], GrantSpec] = {}  # of thousands of agents, many are granted the same
    for key, agent, endpoint, *granted in Grant.objects.order_by("id").values_list(*columns):
        spec = alike.get(tuple(granted)) if key not in pinned else None
        if spec is None:
            server, tool, until, kind, uri = granted
            spec = GrantSpec(server, tool, pinned.get(key, {}), until.timestamp() if until else None, kind, uri)
            if key not in pinned:
                alike[tuple(granted)] = spec
        if agent is not None:
            by_agent[agent].append(spec)
        elif endpoint is not None:
            by_endpoint[endpoint].append(spec)
    return by_agent, by_endpoint


def read_agents(grants: dict[int, list[GrantSpec]], budgets: dict[int, set[str]]) -> dict[str, AgentSpec]:
    """Return the enabled agents by their short names."""
    enabled = Agent.objects.filter(enabled=True)
    capabilities = _unusual(enabled.order_by(), "capabilities", everything())
    known = meanings({*everything(), *(name for names in capabilities.values() for name in names)})
    usual = _clear(everything(), known)
    columns = ("id", "slug", "calls_per_minute", "hold_seconds", "energy_pool_id")
    return {
        slug: AgentSpec(
            id=key,
            slug=slug,
            capabilities=_clear(capabilities[key], known) if key in capabilities else usual,
            calls_per_minute=rate,
            grants=Grants(grants[key]),
            hold_seconds=hold,
            energy_pool=pool,
            budgets=frozenset(budgets[key]),
        )
        for key, slug, rate, hold, pool in enabled.values_list(*columns)
    }


def _unusual(rows: QuerySet[Any], column: str, usual: object) -> dict[int, Any]:
    """Return a column of JSON by the key of its row, of the few rows that have another value than the usual one.

    To parse the JSON of every row costs more than to read all other columns.
    """
    return dict(rows.exclude(**{column: usual}).values_list("pk", column))


def _clear(names: Iterable[str], known: Meanings) -> frozenset[str]:
    """The capabilities that only one tool has."""
    return frozenset(known[name][0] for name in names if len(known[name]) == 1)


def read_budgets() -> tuple[dict[int, set[str]], dict[int, set[str]]]:
    """What the budgets of agents and of endpoints count, by their keys."""
    by_agent: dict[int, set[str]] = defaultdict(set)
    by_endpoint: dict[int, set[str]] = defaultdict(set)
    for budget in Budget.objects.filter(enabled=True).order_by():
        if budget.agent_id is not None:
            by_agent[budget.agent_id].add(budget.unit)
        elif budget.endpoint_id is not None:
            by_endpoint[budget.endpoint_id].add(budget.unit)
    return by_agent, by_endpoint
