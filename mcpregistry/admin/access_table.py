"""The page *Who can call what*: agents by tools on an endpoint. It reads; ticks of who may grant
become narrow grants."""

from __future__ import annotations

from dataclasses import dataclass
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
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from mcpregistry.admin.annotations_page import RISK_COLOURS
from mcpregistry.admin.base import actor
from mcpregistry.admin.question_page import question
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.offer_kinds import KINDS, TOOL
from mcpregistry.domain.policy.risk import RiskLevel, assess_risk
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Endpoint, Grant, Server, Tool
from mcpregistry.services.access import grants
from mcpregistry.services.policy.table import (
    AccessTable,
    Cell,
    CellStanding,
    TableFilter,
    propose_narrowest_grants,
    select_tools,
)

# on one page
TOOLS = 40
AGENTS = 8
_CHOICES = 500  # that a field lists
_MAY_SEE = tuple(f"mcpregistry.view_{model}" for model in ("agent", "tool", "grant", "policyrule"))
_MAY_GRANT = "mcpregistry.add_grant"
_SIGNS = {
    CellStanding.ALLOW: "check_circle",
    CellStanding.ASK: "front_hand",
    CellStanding.DENY: "block",
    CellStanding.HIDDEN: "visibility_off",
    CellStanding.ABSENT: "do_not_disturb_on",
}


@dataclass(frozen=True, slots=True)
class Square:
    """One cell as the page draws it: where "Why?" is asked, and what a tick sends."""

    cell: Cell
    sign: str
    why: str
    tick: str


def show_access_table(request: HttpRequest) -> HttpResponse:
    """The table, by a GET that can be linked to: of an endpoint, and there of one agent, server,
    risk or tool."""
    if not request.user.has_perms(_MAY_SEE):
        raise PermissionDenied
    endpoints = Endpoint.objects.order_by("slug")
    chosen = _choose_endpoint(endpoints, _text(request.GET, "endpoint"))
    context: dict[str, Any] = {
        "title": gettext("Who can call what"),
        "endpoints": endpoints.values_list("slug", flat=True)[:_CHOICES],
        "endpoint": chosen,
        "said": request.GET,
        "servers": Server.objects.order_by("slug").values_list("slug", flat=True)[:_CHOICES],
        "all_agents": Agent.objects.order_by("slug").values_list("slug", flat=True)[:_CHOICES],
        "risks": list(RiskLevel),
        "kinds": list(KINDS),
        "narrowed": _find_narrowed_tool(request.GET),
        "standings": _legend(),
        "may_grant": request.user.has_perm(_MAY_GRANT),
    }
    if chosen is not None:
        context |= _build_table(request.GET, chosen)
    return TemplateResponse(
        request, "admin/mcpregistry/who.html", admin.site.each_context(request) | context
    )


def give(request: HttpRequest) -> HttpResponse:
    """POST: what the ticked cells need, first said and then done."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not request.user.has_perms((*_MAY_SEE, _MAY_GRANT)):
        raise PermissionDenied
    endpoint = Endpoint.objects.filter(slug=_text(request.POST, "endpoint")).first()
    back = f"{reverse('who')}?{_text(request.POST, 'from')}"
    pairs = _find_pairs(request.POST.getlist("tick"))
    if endpoint is None or not pairs:
        messages.warning(request, gettext("First, select the tools to grant."))
        return HttpResponseRedirect(back)
    table = AccessTable(endpoint, [tool for _, tool in pairs], timezone.now())
    try:
        rows = propose_narrowest_grants(table, pairs)
        sentences = _sentences(table, pairs)
    except SlipsnisseError as error:
        messages.error(request, show_invisible_characters(str(error), 1_000))
        return HttpResponseRedirect(back)
    if not rows:
        messages.info(request, gettext("All selected tools are already granted."))
        return HttpResponseRedirect(back)
    sure = hash_parts("sure", *sentences)
    said = request.POST.get("sure", "")
    return (
        _save_grants(request, rows, back)
        if said == sure
        else _ask_confirmation(request, endpoint, sentences, sure, back)
    )


def _save_grants(request: HttpRequest, rows: list[Grant], back: str) -> HttpResponse:
    try:
        made = grants.save_all(rows, actor=actor(request), user=request.user)  # type: ignore[arg-type]
        messages.success(
            request,
            ngettext(
                "{count} grant added, for one tool only.",
                "{count} grants added, each for one tool only.",
                made,
            ).format(count=made),
        )
    except SlipsnisseError as error:
        messages.error(request, show_invisible_characters(str(error), 1_000))
    return HttpResponseRedirect(back)


def _ask_confirmation(
    request: HttpRequest, endpoint: Endpoint, sentences: list[str], sure: str, back: str
) -> HttpResponse:
    kept = [("endpoint", endpoint.slug), ("from", _text(request.POST, "from"))]
    kept += [("tick", value) for value in request.POST.getlist("tick")]
    return question(
        request,
        title=gettext("Grant selected tools"),
        label=gettext("Grant tools"),
        icon="add_task",
        sentences=sentences,
        sure=sure,
        back=back,
        kept=kept,
    )


_THEN = {
    CellStanding.ALLOW: _("its calls run without approval"),
    CellStanding.ASK: _("each of its calls waits for an approval"),
    CellStanding.DENY: _("a rule denies its calls"),
}


def _sentences(table: AccessTable, pairs: list[tuple[Agent, Tool]]) -> list[str]:
    found = []
    for agent, tool in pairs:
        cell = table.build_cell(agent, tool)
        if "agent" in cell.lacks:
            found.append(
                gettext(
                    "{agent} can use {tool}, and only this tool, until the grant is revoked."
                ).format(agent=agent, tool=tool)
            )
        if "endpoint" in cell.lacks:
            found.append(
                gettext(
                    "{endpoint} lists {tool} for every agent that has a grant for this tool."
                ).format(endpoint=table.endpoint, tool=tool)
            )
        if cell.then:
            found.append(
                gettext("On {endpoint}, {agent} then sees {tool}, and {then}.").format(
                    endpoint=table.endpoint, agent=agent, tool=tool, then=_THEN[cell.then]
                )
            )
    return list(dict.fromkeys(found))


def _find_pairs(ticked: list[str]) -> list[tuple[Agent, Tool]]:
    """The agents and tools that these ticks ("agent.tool", by their keys) mean; what is gone is
    left out."""
    keys = [
        (int(a), int(t))
        for a, _, t in (each.partition(".") for each in ticked)
        if _key(a) and _key(t)
    ]
    agents = Agent.objects.in_bulk({agent for agent, _ in keys})
    tools = Tool.offers.select_related("server", "latest").in_bulk([tool for _, tool in keys])
    return [
        (agents[agent], tools[tool]) for agent, tool in keys if agent in agents and tool in tools
    ]


def _key(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def _build_table(said: QueryDict, endpoint: Endpoint) -> dict[str, Any]:
    tools_at = _number(said, "page")
    agents_at = _number(said, "agents")
    tools = list(
        select_tools(_read_filter(said)).order_by("server__slug", "name", "pk")[tools_at * TOOLS :][
            : TOOLS + 1
        ]
    )
    rows = Agent.objects.order_by("slug")
    if agent := _text(said, "agent"):
        rows = rows.filter(slug=agent)
    agents = list(rows[agents_at * AGENTS :][: AGENTS + 1])
    more_tools = len(tools) > TOOLS
    more_agents = len(agents) > AGENTS
    tools = tools[:TOOLS]
    agents = agents[:AGENTS]
    table = AccessTable(endpoint, tools, timezone.now())
    lines = [
        (tool, (risk := assess_risk(tool).level), RISK_COLOURS[risk], _squares(table, tool, agents))
        for tool in tools
    ]
    return {
        "agents": agents,
        "lines": lines,
        "here": said.urlencode(),
        "tickable": any(square.tick for *_, squares in lines for _, square in squares),
        "pages": _build_page_links(said, "page", tools_at, more_tools),
        "turns": _build_page_links(said, "agents", agents_at, more_agents),
    }


def _squares(table: AccessTable, tool: Tool, agents: list[Agent]) -> list[tuple[Agent, Square]]:
    why = reverse("admin:mcpregistry_policyrule_why")
    found = []
    for agent, cell in zip(agents, table.build_row(tool, agents), strict=True):
        asked = urlencode(
            {
                "agent": agent.slug,
                "endpoint": table.endpoint.slug,
                "tool": f"{tool.server.slug}::{tool.key}",
            }
        )
        tick = f"{agent.pk}.{tool.pk}" if cell.lacks else ""
        found.append((agent, Square(cell, _SIGNS[cell.standing], f"{why}?{asked}", tick)))
    return found


def _read_filter(said: QueryDict) -> TableFilter:
    kind = _text(said, "kind")
    tool = _text(said, "tool")
    return TableFilter(
        kind=kind if kind in KINDS else TOOL,
        server=_text(said, "server"),
        risk=_text(said, "risk"),
        search=_text(said, "search"),
        tool=int(tool) if _key(tool) else None,
    )


def _build_page_links(said: QueryDict, name: str, at: int, more: bool) -> dict[str, str]:
    """Where the page before and the one after are, as far as there are any."""
    found = {}
    for word, number, there in (("before", at - 1, at > 0), ("after", at + 1, more)):
        if there:
            moved = said.copy()
            moved[name] = str(number)
            found[word] = f"?{moved.urlencode()}"
    return found


def _choose_endpoint(endpoints: QuerySet[Endpoint], wanted: str) -> Endpoint | None:
    found = {each.slug: each for each in endpoints.filter(slug__in=[wanted, "default"])}
    return found.get(wanted) or found.get("default") or endpoints.first()


def _find_narrowed_tool(said: QueryDict) -> Tool | None:
    """The one tool that the table was narrowed to, by the link from its page."""
    tool = _text(said, "tool")
    return Tool.offers.select_related("server").filter(pk=int(tool)).first() if _key(tool) else None


def _legend() -> list[tuple[CellStanding, str, str]]:
    meant = {
        CellStanding.ALLOW: gettext("runs without approval"),
        CellStanding.ASK: gettext("waits for an approval"),
        CellStanding.DENY: gettext("is denied by a rule"),
        CellStanding.HIDDEN: gettext("is not visible to the agent"),
        CellStanding.ABSENT: gettext("is not available to any agent now"),
    }
    return [(each, _SIGNS[each], meant[each]) for each in CellStanding]


def _number(said: QueryDict, name: str) -> int:
    text = _text(said, name)
    return int(text) if _key(text) and len(text) < 6 else 0


def _text(said: QueryDict, name: str) -> str:
    return str(said.get(name, "")).replace("\x00", "")[:2_000]
