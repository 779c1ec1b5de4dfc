"""What was seen of servers: live connections, tests and events. Written by processes, read by
people."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin
from mcpregistry.admin.name_filters import by_name
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Connection, ServerEvent, ServerTest
from mcpregistry.queries.servers import is_silent
from mcpregistry.templatetags.slipsnisse import milliseconds, protocol_version

CONNECTION_COLOURS = {
    "connected": "success",
    "connecting": "info",
    "reconnecting": "warning",
    "error": "danger",
    "not reporting": "warning",
}
VERDICT_COLOURS = {"passed": "success", "failed": "danger", "running": "info", "queued": "info"}


@admin.register(Connection)
class ConnectionAdmin(ReadOnlyAdmin):
    """Live connections, one row per process and server, as that process last reported it."""

    list_display = (
        "server",
        "process",
        "shown_state",
        "since",
        "seen_at",
        "shown_protocol",
        "sessions",
        "pid",
    )
    list_filter = ("state", by_name("server"))
    list_select_related = ("server",)
    search_fields = ("server__slug", "process")
    fields = (
        "server",
        "process",
        "shown_state",
        "shown_protocol",
        "sessions",
        "pid",
        "since",
        "seen_at",
        "error",
        "stderr",
        "log_lines",
    )

    @display(description=_("state"), label=CONNECTION_COLOURS)
    def shown_state(self, connection: Connection) -> str:
        return "not reporting" if is_silent(connection) else connection.state

    @display(description=_("protocol version"), ordering="protocol_era", empty_value="-")
    def shown_protocol(self, connection: Connection) -> str:
        return protocol_version(connection.protocol_era)

    @display(description=_("last error"))
    def error(self, connection: Connection) -> str:
        return show_invisible_characters(connection.last_error)

    @display(description=_("stderr"))
    def stderr(self, connection: Connection) -> str:
        return show_invisible_characters(connection.stderr_tail, 64 * 1024)

    @display(description=_("log lines"))
    def log_lines(self, connection: Connection) -> str:
        return show_invisible_characters(connection.log_tail, 64 * 1024)


@admin.register(ServerTest)
class ServerTestAdmin(ReadOnlyAdmin):
    """Tests of servers with their verdict, times and stderr."""

    list_display = (
        "server",
        "shown_verdict",
        "requested_at",
        "took",
        "tool_count",
        "error_code",
        "requested_by",
    )
    list_filter = ("verdict", by_name("server"))
    list_select_related = ("server", "requested_by")
    search_fields = ("server__slug", "error_code", "error")
    fields = (
        "server",
        "shown_verdict",
        "requested_by",
        "requested_at",
        "started_at",
        "finished_at",
        "took",
        "steps",
        "shown_protocol",
        "tool_count",
        "left_out",
        "called",
        "error_code",
        "shown_error",
        "stderr",
    )

    @display(description=_("result"), label=VERDICT_COLOURS)
    def shown_verdict(self, test: ServerTest) -> str:
        return test.verdict

    @display(description=_("duration"))
    def took(self, test: ServerTest) -> str:
        if not (test.started_at and test.finished_at):
            return milliseconds(None)
        return milliseconds((test.finished_at - test.started_at).total_seconds() * 1000)

    @display(description=_("steps"))
    def steps(self, test: ServerTest) -> str:
        return ", ".join(
            f"{show_invisible_characters(step, 40)} {milliseconds(took)}"
            for step, took in test.timings.items()
        )

    @display(description=_("protocol version"), empty_value="-")
    def shown_protocol(self, test: ServerTest) -> str:
        return protocol_version(test.protocol_era)

    @display(description=_("called tool"))
    def called(self, test: ServerTest) -> str:
        return show_invisible_characters(test.call_tool)

    @display(description=_("error"))
    def shown_error(self, test: ServerTest) -> str:
        return show_invisible_characters(test.error)

    @display(description=_("stderr"))
    def stderr(self, test: ServerTest) -> str:
        return show_invisible_characters(test.stderr_tail, 64 * 1024)


@admin.register(ServerEvent)
class ServerEventAdmin(ReadOnlyAdmin):
    """What happened to servers, newest first."""

    list_display = ("at", "server", "kind", "shown_message", "process")
    list_filter = (by_name("server"),)
    list_select_related = ("server",)
    search_fields = ("server__slug", "kind", "message")
    fields = ("server", "at", "kind", "whole_message", "process")

    @display(description=_("message"))
    def shown_message(self, event: ServerEvent) -> str:
        return show_invisible_characters(event.message, 120)

    @display(description=_("message"))
    def whole_message(self, event: ServerEvent) -> str:
        return show_invisible_characters(event.message)

    def get_list_display_links(self, request: HttpRequest, list_display: Any) -> Any:
        return ("at",)
