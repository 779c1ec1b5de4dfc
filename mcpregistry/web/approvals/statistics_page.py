"""Figures of approvals: what is held, how it ends, how long people take, and which rules ask for
too much."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from mcpregistry.queries import approval_figures as queries
from mcpregistry.queries.approval_figures import ApproverFigures, RuleFigures
from mcpregistry.web.approvals.history import stream_csv
from mcpregistry.web.pages import page, show

_PERIODS = {1: _("24 hours"), 7: _("7 days"), 30: _("30 days"), 90: _("90 days")}


@page("view_approvalrequest")
def figures(request: HttpRequest) -> HttpResponse:
    """The page, for the last 24 hours up to 90 days."""
    days = _days(request)
    context = {
        "title": _("Approval statistics"),
        "figures": _load_figures(days),
        "days": days,
        "periods": _PERIODS,
        "relax_rate": queries.RELAX_RATE,
        "relax_decisions": queries.RELAX_DECISIONS,
    }
    return show(request, "approvals/figures.html", context)


@page("view_approvalrequest")
def as_json(request: HttpRequest) -> HttpResponse:
    """The same figures for programs; rates are 0 to 1, times are seconds."""
    days = _days(request)
    found = _load_figures(days)
    return JsonResponse(
        {
            "days": days,
            "total": _rule(found.total),
            "rules": [_rule(each) for each in found.rules],
            "approvers": [asdict(each) | {"rate": each.rate} for each in found.approvers],
        }
    )


@page("view_approvalrequest")
def as_csv(request: HttpRequest) -> HttpResponse:
    """The same figures for spreadsheets."""
    found = _load_figures(_days(request))
    columns = (
        "kind",
        "name",
        "held",
        "waiting",
        "approved",
        "rejected",
        "expired",
        "cancelled",
        "void",
        "rate",
        "median seconds",
        "may be relaxed",
    )
    lines = [*map(_rule_line, found.rules), *map(_approver_line, found.approvers)]
    return stream_csv("approval-figures", columns, lines)  # type: ignore[return-value]


def _days(request: HttpRequest) -> int:
    given = request.GET.get("days", "")
    return int(given) if given in {str(days) for days in _PERIODS} else 30


def _load_figures(days: int) -> queries.ApprovalFigures:
    return queries.compute_figures(since=timezone.now() - timedelta(days=days))


def _rule(each: RuleFigures) -> dict[str, Any]:
    return asdict(each) | {"decided": each.decided, "rate": each.rate, "may_relax": each.may_relax}


def _rule_line(each: RuleFigures) -> tuple[Any, ...]:
    return (
        "rule",
        each.rule,
        each.held,
        each.waiting,
        each.approved,
        each.rejected,
        each.expired,
        each.cancelled,
        each.void,
        each.rate,
        each.seconds,
        "yes" if each.may_relax else "no",
    )


def _approver_line(each: ApproverFigures) -> tuple[Any, ...]:
    return (
        "approver",
        each.name,
        "",
        "",
        each.approved,
        each.rejected,
        "",
        "",
        "",
        each.rate,
        each.seconds,
        "",
    )
