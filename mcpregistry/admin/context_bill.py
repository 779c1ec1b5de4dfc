"""The page *Context bill*: what an agent's list of tools costs on every turn, and what of it can be
hidden."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    QueryDict,
)
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext

from mcpregistry.admin.base import actor
from mcpregistry.admin.question_page import question
from mcpregistry.calls.context_bill import DAYS, Bill, build_bill, choose_grant_holder
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.domain.text.undo_texts import explain_undo
from mcpregistry.models import Agent, Endpoint, Tool
from mcpregistry.queries.calls import count_known_days
from mcpregistry.services.policy import hiding

_PERIODS = (7, DAYS, 90)  # days
_SHOWN = 200
_CHOICES = 500
_KEPT = ("agent", "endpoint", "days", "from")
_MAY_SEE = tuple(f"mcpregistry.view_{model}" for model in ("agent", "tool", "grant", "invocation"))
_MAY_HIDE = ("mcpregistry.add_grant", "mcpregistry.change_grant", "mcpregistry.delete_grant")


def page(request: HttpRequest) -> HttpResponse:
    """The bill of one agent on one endpoint, by a GET that can be linked to."""
    if not request.user.has_perms(_MAY_SEE):
        raise PermissionDenied
    agents, endpoints = (
        rows.filter(enabled=True).order_by("slug") for rows in (Agent.objects, Endpoint.objects)
    )
    agent = _choose_row(agents, _text(request.GET, "agent"), "local")
    endpoint = _choose_row(endpoints, _text(request.GET, "endpoint"), "default")
    days = _days_of(request.GET.get("days", ""))
    now = timezone.now()
    holder = None
    found = None
    if agent and endpoint:
        holder = choose_grant_holder(agent, endpoint, by_list=_by_list(request.GET))
        found = build_bill(agent, endpoint, now=now, days=days, holder=holder)
    context = admin.site.each_context(request) | {
        "title": gettext("Context bill"),
        "agents": _names(agents),
        "endpoints": _names(endpoints),
        "agent": agent,
        "endpoint": endpoint,
        "days": days,
        "periods": _PERIODS,
        "bill": found,
        "shown": found.lines[:_SHOWN] if found else (),
        "left_out": max(0, len(found.lines) - _SHOWN) if found else 0,
        "may_hide": request.user.has_perms(_MAY_HIDE),
        "by_list": holder is not agent,
        "known": count_known_days(now),
        "then": found.total - found.wasted if found else 0,
    }
    return TemplateResponse(request, "admin/mcpregistry/context_bill.html", context)


def _days_of(text: str) -> int:
    """The days that an address or a form names, 1 to 365; 30 for anything else."""
    return (
        int(text)
        if text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= 365
        else DAYS
    )


def hide(request: HttpRequest) -> HttpResponse:
    """POST: the ticked tools, or all that were never used, are taken out of the agent's grants or
    the endpoint's list."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not request.user.has_perms((*_MAY_SEE, *_MAY_HIDE)):
        raise PermissionDenied
    said = request.POST
    agent = Agent.objects.filter(slug=_text(said, "agent")).first()
    endpoint = Endpoint.objects.filter(slug=_text(said, "endpoint")).first()
    if agent is None or endpoint is None:
        return HttpResponseRedirect(reverse("context-bill"))
    holder = choose_grant_holder(agent, endpoint, by_list=_by_list(said))
    found = build_bill(
        agent, endpoint, now=timezone.now(), days=_days_of(said.get("days", "")), holder=holder
    )
    back = f"{reverse('context-bill')}?{urlencode([(name, _text(said, name)) for name in _KEPT])}"
    if found is None:
        return HttpResponseRedirect(back)
    tools = _find_ticked_tools(said, found)
    if not tools:
        messages.warning(request, gettext("First, select the tools to hide."))
        return HttpResponseRedirect(back)
    try:
        return _hide_tools(
            request, holder, tools, _sentences(holder, agent, endpoint, found, tools), back
        )
    except SlipsnisseError as error:
        messages.error(request, show_invisible_characters(str(error), 1_000))
        return HttpResponseRedirect(back)


def _hide_tools(
    request: HttpRequest,
    holder: Agent | Endpoint,
    tools: list[Tool],
    sentences: list[str],
    back: str,
) -> HttpResponse:
    sure = hash_parts("sure", *sentences, *(str(tool.pk) for tool in tools))
    if request.POST.get("sure") != sure:
        chosen = (
            [("unused", "1")]
            if "unused" in request.POST
            else [("tick", str(tool.pk)) for tool in tools]
        )
        kept = [*((name, _text(request.POST, name)) for name in _KEPT), *chosen]
        return question(
            request,
            title=gettext("Hide tools from {holder}").format(holder=holder),
            label=gettext("Hide tools"),
            icon="visibility_off",
            sentences=sentences,
            sure=sure,
            back=back,
            kept=kept,
        )
    gone, made = hiding.hide_tools(holder, tools, actor=actor(request), user=request.user)  # type: ignore[arg-type]
    done = gettext(
        "Hidden tools: {tools}. Revoked grants: {gone}. New grants for the other tools: {made}."
    )
    messages.success(request, done.format(tools=len(tools), gone=gone, made=made))
    return HttpResponseRedirect(back)


def _sentences(
    holder: Agent | Endpoint, agent: Agent, endpoint: Endpoint, found: Bill, tools: list[Tool]
) -> list[str]:
    named = ", ".join(str(tool) for tool in tools[:10])
    if len(tools) > 10:
        named = gettext("{tools} and {count} more").format(tools=named, count=len(tools) - 10)
    if holder is agent:
        whose = gettext("the grants of the agent {name}, on all endpoints").format(name=holder)
    else:
        whose = gettext("the list of the endpoint {name}, for all agents").format(name=holder)
    then = found.count_without({tool.pk for tool in tools})
    return [
        gettext("These tools are removed from {whose}: {tools}.").format(whose=whose, tools=named),
        gettext(
            "A grant of a whole server is replaced by grants of its other approved tools. Tools that the "
            "server adds later must be granted separately."
        ),
        gettext(
            "Each turn of {agent} on {endpoint} then has about {then:,} tokens of definitions instead of {now:,}."
        ).format(agent=agent, endpoint=endpoint, then=then, now=found.total),
        explain_undo(hiding.count_grant_changes(holder, tools)),
    ]


def _find_ticked_tools(said: QueryDict, found: Bill) -> list[Tool]:
    """Those that were ticked; of "unused" all that were not called. What is not on the bill is left
    out."""
    known = {line.tool_id for line in found.lines if not line.own and line.tool_id > 0}
    ticked = {
        int(key)
        for key in said.getlist("tick")
        if key.isascii() and key.isdecimal() and len(key) < 19
    }
    wanted = {line.tool_id for line in found.unused} if "unused" in said else ticked
    return list(
        Tool.offers.filter(pk__in=wanted & known)
        .select_related("server")
        .order_by("server__slug", "name")
    )


def _choose_row(rows: QuerySet[Any], wanted: str, usual: str) -> Any:
    named = {row.slug: row for row in rows.filter(slug__in=[wanted, usual])}
    return named.get(wanted) or named.get(usual) or rows.first()


def _names(rows: QuerySet[Any]) -> QuerySet[Any, str]:
    return rows.values_list("slug", flat=True)[:_CHOICES]


def _by_list(said: QueryDict) -> bool:
    return said.get("from") == "endpoint"


def _text(said: QueryDict, name: str) -> str:
    return str(said.get(name, "")).replace("\x00", "")[:200]
