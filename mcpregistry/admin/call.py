"""Calls: what was asked, decided, sent and answered. Looked at, never edited."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin
from mcpregistry.domain.lifecycle import State
from mcpregistry.domain.text.display import printable
from mcpregistry.models import Agent, Conversation, Invocation, Server
from mcpregistry.queries import audit
from mcpregistry.templatetags.slipsnisse import milliseconds, pretty

CALL_COLOURS = {
    State.SUCCEEDED.value: "success",
    State.TOOL_ERROR.value: "danger",
    State.NOT_SENT.value: "danger",
    State.UNKNOWN.value: "danger",
    State.DENIED.value: "warning",
    State.REJECTED.value: "warning",
    State.EXPIRED.value: "warning",
    State.PENDING.value: "info",
    State.DISPATCHED.value: "info",
}
_PERIODS = {
    "hour": ("Last hour", timedelta(hours=1)),
    "day": ("Last 24 hours", timedelta(days=1)),
    "week": ("Last 7 days", timedelta(days=7)),
    "month": ("Last 30 days", timedelta(days=30)),
}
_SHORT = 4_000


class PeriodFilter(admin.SimpleListFilter):
    """Calls received in the last hour, day, week or month."""

    title = "time"
    parameter_name = "period"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(key, label) for key, (label, _) in _PERIODS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        _, length = _PERIODS.get(self.value() or "", ("", None))
        return queryset.filter(received_at__gte=timezone.now() - length) if length else queryset


class CallServerFilter(admin.SimpleListFilter):
    """Choices come from the servers there are: reading them from the calls would scan all of them."""

    title = "server"
    parameter_name = "server"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(slug, slug) for slug in Server.objects.order_by("slug").values_list("slug", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(server_slug=self.value()) if self.value() else queryset


class CallAgentFilter(admin.SimpleListFilter):
    """Calls of one agent; the choices are the agents there are, as in ``CallServerFilter``."""

    title = "agent"
    parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(slug, slug) for slug in Agent.objects.order_by("slug").values_list("slug", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(agent_slug=self.value()) if self.value() else queryset


class ConversationFilter(admin.SimpleListFilter):
    """The calls of the one conversation that a link names: to choose among thousands here would help nobody."""

    title = "conversation"
    parameter_name = "conversation"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        named = request.GET.get(self.parameter_name)
        return [(named, printable(named, 40))] if named else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(conversation=self.value()) if self.value() else queryset


@admin.register(Invocation)
class InvocationAdmin(ReadOnlyAdmin):
    """Calls, read only. Long arguments and results are cut unless the whole is asked for."""

    list_display = (
        "shown_name",
        "shown_state",
        "shown_agent",
        "shown_server",
        "duration",
        "energy",
        "error_code",
        "received_at",
    )
    list_filter = ("state", PeriodFilter, CallServerFilter, CallAgentFilter, ConversationFilter, "origin")
    search_fields = ("=id", "exposed_name", "tool_name", "error_code", "=request_id", "=requester", "=conversation__id")
    search_help_text = "Call id, tool, error code, conversation or the person who asked"
    sortable_by = ("received_at",)
    fields = ("origin", "shown_host", "shown_request", "server_revision", "definition_hash", "binding", "writer")
    change_form_outer_before_template = "admin/mcpregistry/call.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Invocation]:
        return super().get_queryset(request).with_energy().defer("arguments", "result")  # type: ignore[attr-defined]

    @display(description="called")
    def shown_name(self, call: Invocation) -> str:
        return printable(call.exposed_name, 80)

    @display(description="state", label=CALL_COLOURS)
    def shown_state(self, call: Invocation) -> str:
        return call.state.replace("_", " ") if call.state not in CALL_COLOURS else call.state

    @display(description="agent")
    def shown_agent(self, call: Invocation) -> str:
        return printable(call.agent_slug)

    @display(description="server")
    def shown_server(self, call: Invocation) -> str:
        return printable(call.server_slug)

    @display(description="host")
    def shown_host(self, call: Invocation) -> str:
        return printable(call.host_name)

    @display(description="request id")
    def shown_request(self, call: Invocation) -> str:
        return printable(call.request_id)

    @display(description="took")
    def duration(self, call: Invocation) -> str:
        return milliseconds(call.duration_ms)

    @display(description="energy")
    def energy(self, call: Invocation) -> str:
        units = call.energy_consumed  # type: ignore[attr-defined]
        return "" if units is None else f"{units:.2f}"

    def overview(self, request: HttpRequest, row: Invocation) -> dict[str, Any]:
        whole = request.GET.get("all") == "1"
        return {
            "call": row,
            "conversation": Conversation.objects.filter(pk=row.conversation_id).first()
            if row.conversation_id
            else None,
            "state_colour": CALL_COLOURS.get(row.state, ""),
            "limit": max(len(row.arguments), len(row.result)) * 8 + 1 if whole else _SHORT,
            "whole": whole,
            "cut": not whole and max(len(pretty(row.arguments)), len(pretty(row.result))) > _SHORT,
            "entries": audit.audit_of_call(row)[:100],
        }
