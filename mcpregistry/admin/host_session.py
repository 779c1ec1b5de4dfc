"""Sessions of hosts: which programs are connected to which endpoint, and the button that ends
one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import CappedPaginator, ReadOnlyAdmin, Verb, actor
from mcpregistry.admin.name_filters import by_name
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import HostSession
from mcpregistry.queries import host_sessions as queries
from mcpregistry.services import host_sessions

STATE_COLOURS = {"open": "success", "idle": "info", "ended": "warning"}


def _end(request: HttpRequest, row: HostSession) -> str:
    host_sessions.end_by_hand(session=row, actor=actor(request))
    return gettext(
        "The session and its dedicated connections have ended in all processes. The host can connect "
        "again. To prevent this, revoke its token."
    )


@admin.register(HostSession)
class HostSessionAdmin(ReadOnlyAdmin):
    """Hosts of the older era, or on a WebSocket, and what they have open. Other modern hosts are
    seen by their calls."""

    paginator = CappedPaginator
    show_full_result_count = False
    list_display = (
        "shown_host",
        "agent",
        "endpoint",
        "shown_state",
        "shown_door",
        "own",
        "begun",
        "last_used",
    )
    list_filter = (by_name("agent", "agent_slug"), by_name("endpoint", "endpoint_slug"))
    search_fields = ("id__startswith", "agent_slug", "endpoint_slug", "host_name")
    search_help_text = _(
        "First characters of the session ID, or the name of the agent, endpoint or host"
    )
    ordering = ("-seen_at",)
    sortable_by = ("begun", "last_used")
    fields = ("log_level",)
    change_form_outer_before_template = "admin/mcpregistry/host_session.html"
    verbs = (
        Verb(
            "end",
            _("End session"),
            "change_hostsession",
            "stop_circle",
            _("End the session. Its host can connect again."),
            _end,
            applies=lambda row: row.ended_at is None,
            style="danger",
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[HostSession]:
        return queries.with_connections(super().get_queryset(request))

    def overview(self, request: HttpRequest, row: HostSession) -> dict[str, Any]:
        return {
            "session": queries.describe_session(row),
            "state_colour": STATE_COLOURS.get(queries.state(row), ""),
        }

    @display(description=_("agent"))
    def agent(self, row: HostSession) -> str:
        return row.agent_slug

    @display(description=_("endpoint"))
    def endpoint(self, row: HostSession) -> str:
        return row.endpoint_slug

    @display(description=_("start"), ordering="created_at")
    def begun(self, row: HostSession) -> datetime:
        return row.created_at

    @display(description=_("last use"), ordering="seen_at")
    def last_used(self, row: HostSession) -> datetime:
        return row.seen_at

    @display(description=_("host"))
    def shown_host(self, row: HostSession) -> str:
        return show_invisible_characters(queries.host(row), 100)

    @display(description=_("state"), label=STATE_COLOURS)
    def shown_state(self, row: HostSession) -> str:
        return queries.state(row)

    @display(description=_("transport"))
    def shown_door(self, row: HostSession) -> str:
        return ", ".join(
            filter(None, (row.door, show_invisible_characters(row.protocol_version, 20)))
        )

    @display(description=_("dedicated connections"))
    def own(self, row: HostSession) -> str:
        return show_invisible_characters(", ".join(queries.servers(row)), 80) or "none"
