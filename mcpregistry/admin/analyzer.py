"""The page *Access analyzer*: grants that allow more than was used, what would take their place,
and one button each.

Lists of grants show the proposals that the clock has stored (``findings``). A single grant is
analyzed immediately, with all its calls.
"""

from __future__ import annotations

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, ngettext

from mcpregistry.admin.base import actor
from mcpregistry.admin.question_page import question
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.canonical import encode_canonical_json, hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.domain.text.undo_texts import explain_undo
from mcpregistry.models import Agent
from mcpregistry.queries.calls import count_known_days
from mcpregistry.services.policy.analyzer import (
    DAYS,
    MOST_CALLS,
    MOST_WHOLE,
    GrantProposal,
    analyse_whole,
    apply_grant_proposal,
    group_stopped_by_tool,
    select_candidates,
)
from mcpregistry.services.policy.findings import PERIODS, Findings, load_findings

GRANTS = 20  # looked at for one page
_CHOICES = 500
_MAY_SEE = ("mcpregistry.view_grant", "mcpregistry.view_invocation")
_MAY_APPLY = ("mcpregistry.add_grant", "mcpregistry.change_grant", "mcpregistry.delete_grant")


def show_analyzer(request: HttpRequest) -> HttpResponse:
    """What is proposed for the grants of one page, with the calls that each proposal would have
    stopped. With ``grant`` in the address: what all calls of this grant prove."""
    if not request.user.has_perms(_MAY_SEE):
        raise PermissionDenied
    days = days_of(request.GET.get("days", ""))
    at = _number(request.GET.get("page", ""))
    rows = select_candidates().order_by("pk")
    agent = request.GET.get("agent", "").replace("\x00", "")
    if agent:
        rows = rows.filter(agent__slug=agent)
    whole = _number(request.GET.get("grant", ""), longest=18)
    if whole:
        rows = rows.filter(pk=whole)
    found = list(rows[at * GRANTS : (at + 1) * GRANTS + 1])
    now = timezone.now()
    shown = found[:GRANTS]
    known = count_known_days(now)
    if whole:
        proven = [(row, analyse_whole(row, days=days, now=now)) for row in shown]
        findings = Findings(
            {row.pk: each for row, each in proven if each}, {row.pk: now for row in shown}
        )
    else:
        findings = load_findings(shown, days=days)
    context = admin.site.each_context(request) | {
        "title": gettext("Access analyzer"),
        "days": days,
        "periods": PERIODS,
        "agent": agent,
        "most": MOST_CALLS,
        "most_whole": MOST_WHOLE,
        "whole": whole,
        "all_agents": Agent.objects.order_by("slug").values_list("slug", flat=True)[:_CHOICES],
        "known": known,
        "known_period": max((each for each in PERIODS if each <= known), default=0),
        "looked_at": len(shown),
        "first": at * GRANTS + 1,
        "last": at * GRANTS + len(shown),
        "as_of": findings.as_of,
        "waiting": len(shown) - len(findings.made),
        "before": at - 1 if at else None,
        "after": at + 1 if len(found) > GRANTS else None,
        "page": at,
        "found": [
            (each, group_stopped_by_tool(each), _pins(each))
            for row in shown
            if (each := findings.proposals.get(row.pk))
        ],
        "may_apply": request.user.has_perms(_MAY_APPLY),
    }
    return TemplateResponse(request, "admin/mcpregistry/analyzer.html", context)


def narrow(request: HttpRequest, grant_id: int) -> HttpResponse:
    """POST: what was proposed of a grant, first said and then done."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not request.user.has_perms((*_MAY_SEE, *_MAY_APPLY)):
        raise PermissionDenied
    grant = get_object_or_404(select_candidates(), pk=grant_id)
    days = days_of(request.POST.get("days", ""))
    now = timezone.now()
    back = _build_back_url(request)
    found = analyse_whole(grant, days=days, now=now)
    key = request.POST.get("key", "")
    pins = request.POST.getlist("pin") if "pins" in request.POST else None
    if found is None or found.key != key:
        messages.error(
            request,
            gettext(
                "Newer calls or changes contradict this proposal, so nothing was changed. This page shows the current "
                "proposal."
            ),
        )
        return HttpResponseRedirect(f"{reverse('analyzer')}?grant={grant.pk}&days={days}")
    sentences = _sentences(found, pins)
    sure = hash_parts("sure", *sentences)
    said = request.POST.get("sure", "")
    if said != sure:
        return _ask_confirmation(request, found, sentences, sure, back)
    try:
        apply_grant_proposal(
            grant=grant,
            key=key,
            days=days,
            now=now,
            actor=actor(request),
            user=request.user,  # type: ignore[arg-type]
            pins=pins,
        )
        messages.success(request, _describe_result(found))
    except SlipsnisseError as error:
        messages.error(request, show_invisible_characters(str(error), 1_000))
    return HttpResponseRedirect(back)


def days_of(text: str) -> int:
    """The days that an address or a form names, if the clock analyzes them; 30 for anything
    else."""
    return next((each for each in PERIODS if str(each) == text), DAYS)


def _ask_confirmation(
    request: HttpRequest, found: GrantProposal, sentences: list[str], sure: str, back: str
) -> HttpResponse:
    names = ("days", "key", "page", "agent", "pins")
    kept = [(name, request.POST[name]) for name in names if name in request.POST]
    kept += [("pin", name) for name in request.POST.getlist("pin")]
    label = gettext("Revoke grant") if found.kind == "withdraw" else gettext("Narrow grant")
    return question(
        request,
        title=f"{label}: {show_invisible_characters(str(found.grant), 200)}",
        label=label,
        icon="compress",
        sentences=sentences,
        sure=sure,
        back=back,
        kept=kept,
    )


def _sentences(found: GrantProposal, pins: list[str] | None) -> list[str]:
    said = [gettext("The grant {grant} is revoked within a second.").format(grant=found.grant)]
    for row in found.after:
        held = row.argument_pins
        if pins is not None:
            held = {
                name: value
                for name, value in held.items()
                if name not in found.pins or name in pins
            }
        only = (
            gettext(", only with {arguments}").format(arguments=encode_canonical_json(held))
            if held
            else ""
        )
        grant = f"{row} ({row.uri})" if row.uri else str(row)
        said.append(gettext("New grant: {grant}{only}.").format(grant=grant, only=only))
    count = found.stops
    if found.after:
        replayed = gettext(
            "Checked calls in the period: {judged:,}. Checked calls that the new grants would have stopped:"
            " {stopped:,}."
        )
        said.append(replayed.format(judged=found.judged, stopped=count))
    return [*said, explain_undo(1 + len(found.after))]


def _describe_result(found: GrantProposal) -> str:
    if not found.after:
        return gettext("The grant is revoked.")
    count = len(found.after)
    return ngettext(
        "{count} narrower grant replaces the grant.",
        "{count} narrower grants replace the grant.",
        count,
    ).format(count=count)


def _pins(found: GrantProposal) -> list[tuple[str, str]]:
    return [(name, encode_canonical_json(value)) for name, value in sorted(found.pins.items())]


def _build_back_url(request: HttpRequest) -> str:
    shown = f"?days={days_of(request.POST.get('days', ''))}&page={_number(request.POST.get('page', ''))}"
    agent = request.POST.get("agent", "")
    known = agent and Agent.objects.filter(slug=agent.replace("\x00", "")).exists()
    return f"{reverse('analyzer')}{shown}{f'&agent={agent}' if known else ''}"


def _number(text: str, longest: int = 5) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= longest else 0
