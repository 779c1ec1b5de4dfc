"""Read agents with their grants and budgets, for a snapshot. There can be thousands, so equal
values are made once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast

from mcpregistry.domain.snapshot_specs import AgentSpec, Grants, GrantSpec
from mcpregistry.models import Agent, Budget, Grant
from mcpregistry.services.configuration.capabilities import Meanings, list_meanings


def read_grants() -> tuple[dict[int, list[GrantSpec]], dict[int, list[GrantSpec]]]:
    """Return the grants of agents and of endpoints, by their keys."""
    by_agent: dict[int, list[GrantSpec]] = defaultdict(list)
    by_endpoint: dict[int, list[GrantSpec]] = defaultdict(list)
    columns = (
        "agent_id",
        "endpoint_id",
        "server_id",
        "tool_id",
        "expires_at",
        "kind",
        "uri",
        "pins",
    )
    rows = Grant.objects.order_by("id").annotate(pins=_cast_to_text("argument_pins"))
    # of thousands of agents, many are granted the same
    alike: dict[tuple[Any, ...], GrantSpec] = {}
    for agent, endpoint, *granted in rows.values_list(*columns):
        spec = alike.get(tuple(granted))
        if spec is None:
            server, tool, until, kind, uri, pins = granted
            spec = GrantSpec(
                server, tool, json.loads(pins), until.timestamp() if until else None, kind, uri
            )
            alike[tuple(granted)] = spec
        if agent is not None:
            by_agent[agent].append(spec)
        elif endpoint is not None:
            by_endpoint[endpoint].append(spec)
    return by_agent, by_endpoint


def read_agents(
    grants: dict[int, list[GrantSpec]], budgets: dict[int, set[str]]
) -> dict[str, AgentSpec]:
    """Return the enabled agents by their short names."""
    columns = ("id", "slug", "calls_per_minute", "hold_seconds", "energy_pool_id", "written")
    enabled = Agent.objects.filter(enabled=True).annotate(written=_cast_to_text("capabilities"))
    rows = list(enabled.values_list(*columns))
    capabilities = {text: json.loads(text) for text in {row[-1] for row in rows}}
    known = list_meanings(name for names in capabilities.values() for name in names)
    clear = {text: _select_unambiguous(names, known) for text, names in capabilities.items()}
    return {
        slug: AgentSpec(
            id=key,
            slug=slug,
            capabilities=clear[text],
            calls_per_minute=rate,
            grants=Grants(grants[key]),
            hold_seconds=hold,
            energy_pool=pool,
            budgets=frozenset(budgets[key]),
        )
        for key, slug, rate, hold, pool, text in rows
    }


def _cast_to_text(column: str) -> Cast:
    """Return a column of JSON as the text that is stored. Most rows have the same, so that few
    texts have to be parsed."""
    return Cast(column, TextField())


def _select_unambiguous(names: Iterable[str], known: Meanings) -> frozenset[str]:
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
