"""The first page of the site: the state of servers, what waits for a person, what failed last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from mcpregistry.models import Agent, Server
from mcpregistry.queries import approvals, calls, definitions, servers
from subagents.queries import run_totals

_CHART_HEIGHT = 100.0


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Unfold's ``DASHBOARD_CALLBACK``: adds to the context what this person may see.

    ``templates/admin/index.html`` shows it.
    """
    now, may = timezone.now(), request.user.has_perm
    context["title"] = "Overview"
    if may("mcpregistry.view_server"):
        context |= {
            "servers": servers.server_counts(),
            "waiting": definitions.waiting_count(),
            "next_step": next_step(),
        }
    if may("mcpregistry.view_approvalrequest"):
        context["held"] = approvals.waiting_total()
    if may("subagents.view_run"):
        context["expert_runs"] = run_totals()
    if may("mcpregistry.view_invocation"):
        context |= {
            "figures": calls.call_figures(now=now),
            "bars": bars(calls.calls_per_hour(now=now)),
            "failures": calls.latest_calls(failed=True, limit=8),
        }
    return context


def next_step() -> str:
    """What a site that is not yet in use needs next; empty once an agent could call something."""
    if not Server.objects.exists():
        return "server"
    if not Server.objects.active().exists():
        return "confirm"
    return "" if Agent.objects.filter(grants__isnull=False).exists() else "grant"


def bars(hours: Sequence[calls.Hour]) -> list[dict[str, Any]]:
    """Bars of a chart 100 units high: ``good`` and ``bad`` are heights, ``x`` counts from 0."""
    most = max((hour.calls for hour in hours), default=0) or 1
    return [
        {
            "x": x,
            "hour": hour,
            "bad": hour.errors * _CHART_HEIGHT / most,
            "good": (hour.calls - hour.errors) * _CHART_HEIGHT / most,
            "top": _CHART_HEIGHT - hour.calls * _CHART_HEIGHT / most,
            "middle": _CHART_HEIGHT - hour.errors * _CHART_HEIGHT / most,
        }
        for x, hour in enumerate(hours)
    ]
