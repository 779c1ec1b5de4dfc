"""Calls: what was asked, decided, sent and answered. Looked at, never edited."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.call_list import CallListAdmin
from mcpregistry.admin.name_filters import by_name
from mcpregistry.admin.result_parts import ResultPart, parts_of
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Conversation, Invocation, Tool
from mcpregistry.queries import audit, call_story
from mcpregistry.queries.related_calls import kin_of
from mcpregistry.templatetags.slipsnisse import milliseconds, pretty

CALL_COLOURS = {
    InvocationState.SUCCEEDED.value: "success",
    InvocationState.TOOL_ERROR.value: "danger",
    InvocationState.NOT_SENT.value: "danger",
    InvocationState.UNKNOWN.value: "danger",
    InvocationState.DENIED.value: "warning",
    InvocationState.REJECTED.value: "warning",
    InvocationState.EXPIRED.value: "warning",
    InvocationState.PENDING.value: "info",
    InvocationState.DISPATCHED.value: "info",
}
_PERIODS = {
    "hour": (_("Last hour"), timedelta(hours=1)),
    "day": (_("Last 24 hours"), timedelta(days=1)),
    "week": (_("Last 7 days"), timedelta(days=7)),
    "month": (_("Last 30 days"), timedelta(days=30)),
    "quarter": (_("Last 90 days"), timedelta(days=90)),
}
_SHORT = 4_000


class PeriodFilter(admin.SimpleListFilter):
    """Calls received in the last hour, day, week or month."""

    title = _("time")
    parameter_name = "period"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(key, str(label)) for key, (label, _length) in _PERIODS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        _, length = _PERIODS.get(self.value() or "", ("", None))
        return queryset.filter(received_at__gte=timezone.now() - length) if length else queryset


class CallStateFilter(admin.SimpleListFilter):
    """Calls in one state, each by its index (``Calls.in_state``)."""

    title = _("state")
    parameter_name = "state__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (state.value, state.value.replace("_", " "))
            for state in InvocationState
            if state is not InvocationState.RECEIVED
        ]  # none is kept in that

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.in_state(self.value()) if self.value() else queryset  # type: ignore[attr-defined]


class OriginFilter(admin.SimpleListFilter):
    """Calls by the door that they came through; the doors are known, so no calls are read for
    them."""

    title = _("origin")
    parameter_name = "origin"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("stdio", "stdio"),
            ("http", gettext("MCP over HTTP")),
            ("rest", gettext("REST, or “Try tool” in the admin")),
            ("run", gettext("Run")),
            ("test", gettext("Server test")),
            ("trial", gettext("Trial")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(origin=self.value()) if self.value() else queryset


class ConversationFilter(admin.SimpleListFilter):
    """The calls of the one conversation that a link names: to choose among thousands here would
    help nobody."""

    title = _("conversation")
    parameter_name = "conversation"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        named = request.GET.get(self.parameter_name)
        return [(named, show_invisible_characters(named, 40))] if named else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(conversation=self.value()) if self.value() else queryset


@admin.register(Invocation)
class InvocationAdmin(CallListAdmin):
    """Calls, read only. Long arguments and results are cut unless the whole is asked for."""

    list_display = (
        "shown_name",
        "shown_state",
        "shown_agent",
        "shown_server",
        "duration",
        "size",
        "energy",
        "error_code",
        "received_at",
    )
    list_filter = (
        CallStateFilter,
        PeriodFilter,
        by_name("server", "server_slug"),
        by_name("agent", "agent_slug"),
        ConversationFilter,
        OriginFilter,
    )
    sortable_by = ("received_at", "duration", "size")
    fields = ("server_revision", "definition_hash", "binding", "writer")
    change_form_outer_before_template = "admin/mcpregistry/call.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Invocation]:
        return super().get_queryset(request).with_energy().defer("arguments", "result")  # type: ignore[attr-defined]

    @display(description=_("called as"))
    def shown_name(self, call: Invocation) -> str:
        return show_invisible_characters(call.exposed_name, 80)

    @display(description=_("state"), label=CALL_COLOURS)
    def shown_state(self, call: Invocation) -> tuple[str, str]:
        return call.state, call.state.replace("_", " ")

    @display(description=_("agent"))
    def shown_agent(self, call: Invocation) -> str:
        return show_invisible_characters(call.agent_slug)

    @display(description=_("server"))
    def shown_server(self, call: Invocation) -> str:
        return show_invisible_characters(call.server_slug)

    @display(description=_("duration"), ordering=Coalesce("duration_ms", 0.0))
    def duration(self, call: Invocation) -> str:
        return milliseconds(call.duration_ms)

    @display(description=_("result"), ordering="result_bytes")
    def size(self, call: Invocation) -> str:
        return filesizeformat(call.result_bytes) if call.result_bytes else "-"

    @display(description=_("energy"))
    def energy(self, call: Invocation) -> str:
        units = call.energy_consumed  # type: ignore[attr-defined]
        return "-" if units is None else f"{units:.2f}"

    def overview(self, request: HttpRequest, row: Invocation) -> dict[str, Any]:
        whole = request.GET.get("all") == "1"
        entries = list(audit.query_audit_of_call(row)[:100])
        return {
            "call": row,
            "parts": _parts(row),
            "story": call_story.list_story_steps(
                row, entries, people=request.user.has_perm("mcpregistry.view_approvalrequest")
            ),
            "kin": [kin for kin in kin_of(row) if request.user.has_perm(kin.permission)],
            "links": _list_links(request, row),
            "may_rule": bool(row.server_slug)
            and request.user.has_perm("mcpregistry.add_policyrule"),
            "conversation": Conversation.objects.filter(pk=row.conversation_id).first()
            if row.conversation_id
            else None,
            "state_colour": CALL_COLOURS.get(row.state, ""),
            "limit": max(len(row.arguments), len(row.result)) * 8 + 1 if whole else _SHORT,
            "whole": whole,
            "cut": not whole and max(len(pretty(row.arguments)), len(pretty(row.result))) > _SHORT,
            "entries": entries,
        }


def _parts(call: Invocation) -> list[ResultPart]:
    """What the call answered with, part by part; none where its result is no JSON object or is
    erased."""
    try:
        result = json.loads(call.result) if call.result else None
    except (ValueError, RecursionError):
        return []
    return parts_of(result) if isinstance(result, dict) else []


def _list_links(request: HttpRequest, call: Invocation) -> list[tuple[str, str, str]]:
    """(icon, words, address) of what belongs to the call, as far as this person may see it."""
    may = request.user.has_perm
    found: list[tuple[str, str, str]] = []
    tool = (
        Tool.offers.of_record(call.server_slug, call.tool_name).first()
        if call.server_slug
        else None
    )
    rows: list[tuple[str, str, Any]] = [
        ("build", gettext("Tool"), tool),
        ("dns", gettext("Server"), tool and tool.server),
    ]
    rows += [("smart_toy", gettext("Agent"), Agent.objects.filter(slug=call.agent_slug).first())]
    for icon, words, row in rows:
        name = f"mcpregistry_{row._meta.model_name}" if row else ""
        if row and may(f"mcpregistry.view_{row._meta.model_name}"):
            found.append((icon, words, reverse(f"admin:{name}_change", args=[row.pk])))
    if tool and may("mcpregistry.view_policyrule"):
        asked = {"agent": call.agent_slug, "endpoint": call.endpoint_slug, "tool": str(tool)}
        asked |= {"arguments": call_story.arguments_of(call)}
        found.append(
            (
                "help",
                gettext("Explain decision"),
                f"{reverse('admin:mcpregistry_policyrule_why')}?{urlencode(asked)}",
            )
        )
    if tool and may("mcpregistry.call_tool") and may("mcpregistry.view_tool"):
        asked = {
            "agent": call.agent_slug,
            "endpoint": call.endpoint_slug,
            "raw": call_story.arguments_of(call),
        }
        found.append(
            (
                "play_arrow",
                gettext("Try tool"),
                f"{reverse('admin:mcpregistry_tool_try', args=[tool.pk])}?{urlencode(asked)}",
            )
        )
    return found
