"""The first page of the site: what a new site still needs, what waits for people, how calls go and
what fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.navigation import waiting
from controlplane.unclaimed_work import MODELS, find_unclaimed_work
from mcpregistry.domain.installs.states import InstallState
from mcpregistry.domain.sample_statistics import round_up
from mcpregistry.queries import attention, overview, servers, usage
from mcpregistry.queries.failures import patterns_since
from mcpregistry.queries.row_counts import counts
from mcpregistry.services.upkeep import completeness
from subagents.queries import (
    count_draft_providers,
    query_runs_for_people,
    query_silent_agents,
    run_totals,
)

_CHART_HEIGHT = 100.0
_MOST_NAMED = 10

_USAGE = {"day": "24h", "week": "7d", "month": "30d"}  # what usage calls these periods


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Unfold's ``DASHBOARD_CALLBACK``: adds to the context what this person may see.

    ``templates/admin/index.html`` shows it.
    """
    now = timezone.now()
    may = request.user.has_perm
    context |= {
        "title": _("Overview"),
        "seen": may("mcpregistry.view_server") or may("mcpregistry.view_invocation"),
    }
    if may("mcpregistry.view_server"):
        found = overview.read_first_steps(cast(User, request.user), now=now)
        context |= {
            "servers": servers.count_servers(),
            "steps": None if found.done else steps(found),
        }
    context["incomplete"] = completeness.explain_interrupted_migration() if context["seen"] else ""
    context["needs"] = needs(request, now, context.get("servers"))
    if may("subagents.view_run"):
        context["expert_runs"] = run_totals()
    return context | (_traffic(request, now) if may("mcpregistry.view_invocation") else {})


@dataclass(frozen=True, slots=True)
class FirstStep:
    """One of the first steps of a site: where it is taken, and whether it has been."""

    title: str
    hint: str
    link: str
    done: bool


def steps(found: overview.FirstSteps) -> list[FirstStep]:
    """In the order in which they are taken."""
    return [
        FirstStep(
            _("Add a server"),
            _("Paste the command or the address from the server's README."),
            reverse("admin:mcpregistry_server_set_up"),
            found.server,
        ),
        FirstStep(
            _("Approve its definitions"),
            _("Agents can use its tools after a user has approved their definitions."),
            reverse("definitions:inbox"),
            found.definitions,
        ),
        FirstStep(
            _("Grant it to an agent"),
            _("Agents see only the tools that are granted to them."),
            reverse("admin:mcpregistry_grant_add"),
            found.grant,
        ),
        FirstStep(
            _("Connect a host"),
            _("Use Claude Code, Cursor, VS Code or another program that supports MCP."),
            reverse("connect"),
            found.connected,
        ),
        FirstStep(
            _("See the first call"),
            _("Choose a tool and try it, or ask the model in your host to use it."),
            reverse("admin:mcpregistry_tool_changelist"),
            found.called,
        ),
        FirstStep(
            _("Decide on a call"),
            _(
                "A rule can hold calls until a user approves them. Held calls are listed under Approvals."
            ),
            reverse("approvals:queue"),
            found.approved,
        ),
    ]


@dataclass(frozen=True, slots=True)
class Need:
    """Something that waits for a person: how much, of what, and where it is seen to. ``name``: of
    the only one, if it is shown."""

    count: int
    one: str
    many: str
    link: str
    grave: bool = False
    name: str = ""

    @property
    def words(self) -> str:
        return self.one if self.count == 1 else self.many


def needs(request: HttpRequest, now: datetime, known: servers.ServerCounts | None) -> list[Need]:
    """What waits for this person, the most pressing first; only what they may see."""
    waits = waiting(request)
    also = _count_needs(request, now)
    of = _lists()
    down, drafts = (known.down, known.drafts) if known else (0, 0)
    every = [
        Need(
            waits.calls,
            _("call is held for a decision"),
            _("calls are held for a decision"),
            reverse("approvals:queue"),
            True,
        ),
        Need(
            down,
            _("server is down"),
            _("servers are down"),
            f"{of['server']}?state=unavailable",
            True,
        ),
        *_list_unclaimed_work(request),
        Need(
            also.get("pools", 0),
            _("energy pool is empty"),
            _("energy pools are empty"),
            reverse("admin:mcpregistry_energypool_changelist"),
            True,
        ),
        Need(
            also.get("runs", 0),
            _("run waits for a decision"),
            _("runs wait for a decision"),
            reverse("admin:subagents_run_changelist"),
        ),
        Need(
            waits.definitions,
            _("definition waits for approval"),
            _("definitions wait for approval"),
            reverse("definitions:inbox"),
        ),
        Need(
            waits.proposals,
            _("proposal of the sub-agent waits for a decision"),
            _("proposals of the sub-agent wait for a decision"),
            reverse("admin:subagents_proposal_changelist") + "?state__exact=waiting",
        ),
        Need(
            also.get("packages", 0),
            _("package waits for approval"),
            _("packages wait for approval"),
            reverse("admin:mcpregistry_install_changelist")
            + f"?state__exact={InstallState.WAITING}",
        ),
        Need(
            drafts,
            _("server is a draft: confirm its launch"),
            _("servers are drafts: confirm their launches"),
            f"{of['server']}?lifecycle__exact=draft",
        ),
        *(_list_incomplete_servers() if known and known.incomplete else ()),
        Need(
            also.get("providers", 0),
            _("provider is a draft: confirm it to use its models"),
            _("providers are drafts: confirm them to use their models"),
            reverse("admin:subagents_provider_changelist"),
        ),
        Need(
            also.get("agents", 0),
            _("hosted agent does not answer: its selected conversation has ended"),
            _("hosted agents do not answer: their selected conversations have ended"),
            reverse("admin:subagents_effortagent_changelist"),
        ),
        Need(
            also.get("registries", 0),
            _("registry could not be read"),
            _("registries could not be read"),
            reverse("admin:mcpregistry_registrysource_changelist"),
        ),
        Need(
            also.get("tokens", 0),
            _("token expires within two weeks"),
            _("tokens expire within two weeks"),
            f"{of['token']}?validity=soon",
        ),
        Need(
            also.get("grants", 0),
            _("grant expires within two weeks"),
            _("grants expire within two weeks"),
            f"{of['grant']}?validity=soon",
        ),
    ]
    return [need for need in every if need.count]


def _list_unclaimed_work(request: HttpRequest) -> Iterator[Need]:
    for each in find_unclaimed_work({model for model in MODELS if _may_view(request, model)}):
        # these are listed on a page of their own
        of_calls = each.model == "mcpregistry.approvalrequest"
        name = (
            "approvals:history" if of_calls else f"admin:{each.model.replace('.', '_')}_changelist"
        )
        words = _("%(work)s; run manage.py doctor") % {"work": each.words}
        yield Need(each.count, words, words, reverse(name), True)


def _list_incomplete_servers() -> Iterator[Need]:
    """A row for each server of which something is left out; beyond a few, the others in one row."""
    found = attention.list_incomplete_servers()
    for each in found[:_MOST_NAMED]:
        link = f"{reverse('admin:mcpregistry_server_change', args=[each.pk])}#left-out"
        words = _(
            "offers items that are not passed on to hosts: see why, then correct the server or its limits"
        )
        yield Need(1, words, "", link, name=each.slug)
    more = len(found) - _MOST_NAMED
    link = f"{reverse('definitions:inbox')}#left-out"
    one = _("more server offers items that are not passed on to hosts: see why")
    yield Need(
        max(0, more),
        one,
        _("more servers offer items that are not passed on to hosts: see why"),
        link,
    )


def _may_view(request: HttpRequest, model: str) -> bool:
    return request.user.has_perm(model.replace(".", ".view_"))


def _count_needs(request: HttpRequest, now: datetime) -> dict[str, int]:
    """Count what this person may see: all in one query, and the pools in another one."""
    soon = overview.query_ending_soon(now, cast(User, request.user))
    wanted: list[tuple[str, str, QuerySet[Any]]] = [
        ("runs", "subagents.run", query_runs_for_people()),
        ("packages", "mcpregistry.install", attention.query_waiting_packages()),
        ("agents", "subagents.effortagent", query_silent_agents()),
        ("registries", "mcpregistry.registrysource", attention.query_unread_registries(now)),
        *((name, f"mcpregistry.{name[:-1]}", rows) for name, rows in soon.items()),
    ]
    found = counts({name: rows for name, model, rows in wanted if _may_view(request, model)})
    if request.user.has_perm("mcpregistry.view_energypool"):
        found["pools"] = attention.count_empty_pools(now)
    if request.user.has_perm("subagents.view_provider"):
        found["providers"] = count_draft_providers()
    return found


def _lists() -> dict[str, str]:
    return {
        name: reverse(f"admin:mcpregistry_{name}_changelist")
        for name in ("server", "token", "grant")
    }


def _traffic(request: HttpRequest, now: datetime) -> dict[str, Any]:
    period = overview.PERIODS.get(request.GET.get("period", ""), overview.PERIODS["day"])
    found = overview.count_traffic(period, now=now)
    first = period.first(now)
    newest = usage.lately(found.live_from, first, now=now)
    ahead = overview.ahead(period, now=now, newest=newest) if found.calls > overview.FEW else None
    return {
        "period": period,
        "usage_period": _USAGE[period.name],
        "periods": overview.PERIODS.values(),
        "traffic": found,
        "times": usage.times_since(first, newest, ahead),
        "bars": bars(found),
        "scale": round_up(found.most),
        "half": round_up(found.most) // 2,
        "failures": patterns_since(first, newest, wanted=usage.UsageFilter(), most=8).rows,
        "busiest": overview.busiest(period, now=now, newest=newest, counted=ahead),
        "slowest": overview.list_slowest_tools(period, now=now),
    }


def bars(found: overview.Traffic) -> list[dict[str, Any]]:
    """Bars of a chart 100 units high: ``good`` and ``bad`` are heights, ``x`` counts from 0."""
    most = round_up(found.most)
    return [
        {
            "x": x,
            "bar": bar,
            "bad": bar.errors * _CHART_HEIGHT / most,
            "good": (bar.calls - bar.errors) * _CHART_HEIGHT / most,
            "top": _CHART_HEIGHT - bar.calls * _CHART_HEIGHT / most,
            "middle": _CHART_HEIGHT - bar.errors * _CHART_HEIGHT / most,
        }
        for x, bar in enumerate(found.bars)
    ]
