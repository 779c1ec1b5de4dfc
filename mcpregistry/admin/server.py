"""Servers: their settings, how they are, and the buttons that people press on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin import set_up
from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.admin.bulk_actions import asks_first
from mcpregistry.admin.launch import LaunchPage
from mcpregistry.admin.live_parts import LiveAdmin, LivePart
from mcpregistry.admin.server_form import ServerForm
from mcpregistry.admin.server_verbs import SERVER_VERBS, disable, enable, is_active, request_test
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.servers.state import list_acting_names
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Server, Tool
from mcpregistry.models.server import Lifecycle, SharedBy
from mcpregistry.queries import calls, consequences, servers
from mcpregistry.services.servers import exposed_secrets, lifecycle, sandbox
from mcpregistry.templatetags.slipsnisse import percent

STATE_COLOURS = {
    "ready": "success",
    "untested": "info",
    "failing": "warning",
    "unavailable": "danger",
    "draft": "warning",
    "disabled": "",
}


class StateFilter(admin.SimpleListFilter):
    """Active servers by what checks have seen; the same words as ``queries.calls.server_state``."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (word, word.capitalize()) for word in ("ready", "untested", "failing", "unavailable")
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Server]) -> QuerySet[Server]:
        active = Q(lifecycle=Lifecycle.ACTIVE)
        up = active & Q(unavailable_since__isnull=True)
        kinds = {
            "unavailable": active & Q(unavailable_since__isnull=False),
            "failing": up & Q(consecutive_failures__gt=0),
            "ready": up & Q(consecutive_failures=0, last_ok_at__isnull=False),
            "untested": up & Q(consecutive_failures=0, last_ok_at__isnull=True),
        }
        value = self.value()
        return queryset.filter(kinds[value]) if value in kinds else queryset


@admin.register(Server)
class ServerAdmin(LiveAdmin, RecordAdmin):
    """Servers: their settings, state, tests, events, and the buttons that people press on them."""

    form = ServerForm
    list_display = (
        "title_and_slug",
        "shown_state",
        "transport",
        "tool_count",
        "last_ok_at",
        "calls_24h",
        "error_rate",
    )
    list_filter = ("lifecycle", StateFilter, "transport")
    search_fields = ("slug", "name", "description", "url")
    ordering = ("slug",)
    actions = ("test_selected", "enable_selected", "disable_selected")
    list_before_template = "admin/mcpregistry/servers.html"
    change_form_outer_before_template = "admin/mcpregistry/server.html"
    fieldsets = (
        (None, {"fields": (("slug", "name"), "description", "transport")}),
        (_("Launch"), {"fields": ("command", "cwd", "env"), "classes": ("sn-local",)}),
        (
            _("Sandbox"),
            {
                "fields": (
                    ("sandbox", "sandbox_network"),
                    ("sandbox_connect", "sandbox_listen"),
                    "sandbox_read",
                    "sandbox_write",
                ),
                "classes": ("sn-local",),
            },
        ),
        (
            _("Process limits"),
            {
                "fields": (
                    ("max_memory_mb", "max_processes"),
                    ("max_cpu_seconds", "max_open_files"),
                    "max_file_mb",
                ),
                "classes": ("sn-local",),
            },
        ),
        (
            _("Address"),
            {"fields": ("url", "headers", "allowed_networks"), "classes": ("sn-remote",)},
        ),
        (
            _("Connection"),
            {
                "fields": (
                    ("connect_mode", "protocol_mode"),
                    ("shared_by", "max_sessions"),
                    ("asks_elicitation", "asks_sampling", "asks_roots"),
                    "sampling_expert",
                    ("resend", "check_interval"),
                    ("trial_hours", "mcp_apps"),
                ),
                "classes": ("collapse",),
            },
        ),
        (
            _("Limits"),
            {
                "fields": (
                    ("connect_timeout", "request_timeout", "idle_timeout"),
                    ("max_message_bytes", "max_definition_bytes"),
                    ("max_concurrency", "max_tools"),
                ),
                "classes": ("collapse",),
            },
        ),
    )
    verbs = SERVER_VERBS

    class Media:
        js = ("mcpregistry/server_form.js",)

    def save(self, request: HttpRequest, row: Server, form: ModelForm[Server]) -> None:
        row.source = row.source or "admin"
        lifecycle.save_server(server=row, actor=actor(request), rights=request.user.has_perm)

    def response_add(
        self, request: HttpRequest, obj: Server, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Redirect to the next step of the new server after *Save*."""
        answer = super().response_add(request, obj, post_url_continue)
        if request.POST.keys() & {
            "_continue",
            "_addanother",
            "_popup",
        } or not self.has_view_permission(request, obj):
            return answer
        return HttpResponseRedirect(reverse("admin:mcpregistry_server_set_up_step", args=[obj.pk]))

    def remove(self, request: HttpRequest, row: Server) -> None:
        lifecycle.delete_server(server=row, actor=actor(request), rights=request.user.has_perm)

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(LaunchPage(self))
        confirm = path("<path:object_id>/confirm/", page, name="mcpregistry_server_confirm")
        return [*set_up.pages(self), confirm, *super().get_urls()]

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Server]:
        present = Count(
            "tools", filter=Q(tools__present=True, tools__kind=Tool.Kind.TOOL), distinct=True
        )
        return super().get_queryset(request).annotate(tool_count=present)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The calls of the servers on this page, in one query for all of them."""
        page = super().get_changelist_instance(request)
        counts = calls.call_counts([server.slug for server in page.result_list], now=timezone.now())
        for server in page.result_list:
            server.recent = counts.get(server.slug, calls.CallFigures())
        return page

    @display(description=_("server"), ordering="slug", header=True)
    def title_and_slug(self, server: Server) -> list[str]:
        return [show_invisible_characters(server.title, 80), server.slug if server.name else ""]

    @display(description=_("state"), label=STATE_COLOURS)
    def shown_state(self, server: Server) -> str:
        return servers.server_state(server)

    @display(description=_("tools"), ordering="tool_count")
    def tool_count(self, server: Server) -> int:
        return server.tool_count  # type: ignore[attr-defined]

    @display(description=_("calls (24 h)"))
    def calls_24h(self, server: Server) -> int:
        return server.recent.calls  # type: ignore[attr-defined]

    @display(description=_("errors"))
    def error_rate(self, server: Server) -> str:
        return percent(server.recent.error_rate)  # type: ignore[attr-defined]

    @admin.action(description=_("Test the selected servers"), permissions=["test"])
    def test_selected(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        self._run_on_each(request, queryset, request_test)

    @admin.action(description=_("Enable the selected servers"), permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        self._run_on_each(request, queryset, enable)

    @admin.action(description=_("Disable the selected servers"), permissions=["change"])
    @asks_first(consequences.disabling_servers, label=_("Disable servers"))
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        self._run_on_each(request, queryset, disable)

    def _run_on_each(
        self,
        request: HttpRequest,
        queryset: QuerySet[Server],
        run: Callable[[HttpRequest, Server], str],
    ) -> None:
        """One answer per server, so that one that refuses does not hide the others."""
        for server in queryset:
            try:
                self.message_user(
                    request, f"{server.slug}: {run(request, server)}", messages.SUCCESS
                )
            except SlipsnisseError as error:
                self.message_user(request, f"{server.slug}: {error}", messages.ERROR)

    def has_test_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("mcpregistry.test_server")

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """Tools hold their approved definitions, so Django's own collector would refuse; the
        service knows better."""
        summary = [
            gettext(
                "{server}: {tools} tools and prompts with their definitions, {grants} grants. The records of its calls are kept."
            ).format(server=server.slug, tools=server.tools.count(), grants=server.grants.count())
            for server in objs
        ]
        return summary, {"servers": len(summary)}, set(), []

    # The page of one server

    def overview(self, request: HttpRequest, row: Server) -> dict[str, Any]:
        tools = list(row.tools.select_related("pinned", "latest")[:200])
        return {
            "server": row,
            "state": servers.server_state(row),
            "state_colour": STATE_COLOURS[servers.server_state(row)],
            "figures": calls.call_figures(now=timezone.now(), server=row),
            "tools": tools,
            "connections": [(each, servers.is_silent(each)) for each in row.connections.all()[:20]],
            "stderr": _read_stderr(row),
            "log_lines": _log_lines(row),
            **_tests(row),
            "live_url": self.live_url(row),
            "events": row.events.all()[:10],
            "calls": calls.query_latest_calls(server=row),
            "patterns": calls.count_error_patterns(server=row)[:10],
            "problem": _problem(row),
            "protection": sandbox.find_server_protection(row),
            "outlook": sandbox.explain_sandbox_outlook(row) if is_active(row) else None,
            "hidden": sandbox.list_hidden_from(row),
            "limits": row.bounds().texts(),
            "keeps_state": _keeps_state(row, tools),
            "open_secrets": exposed_secrets.has_open_secrets(row),
        }

    def live_part(self, request: HttpRequest, row: Server, name: str) -> LivePart:
        """The newest tests: while one goes on, its page follows it; then the whole page is read
        anew."""
        found = _tests(row)
        return LivePart(
            "admin/mcpregistry/server_tests.html", found | {"server": row}, found["testing"]
        )


def _tests(server: Server) -> dict[str, Any]:
    found = [*server.tests.select_related("requested_by")[:5]]
    return {"tests": found, "testing": any(test.goes_on for test in found)}


def _keeps_state(server: Server, tools: list[Tool]) -> list[str]:
    """Tools for which it had better not be shared by everybody."""
    if server.shared_by != SharedBy.EVERYBODY:
        return []
    offered = (
        (tool.name, tool.latest.data) for tool in tools if tool.present and tool.latest is not None
    )
    return list_acting_names((name, _claims_to_read(data)) for name, data in offered)[:5]


def _claims_to_read(data: dict[str, Any]) -> bool:
    said = data.get("annotations")
    return isinstance(said, dict) and said.get("readOnlyHint") is True


def _read_stderr(server: Server) -> str:
    """What the local process wrote last, from the connection or test that heard it last."""
    heard = (
        server.connections.exclude(stderr_tail="")
        .order_by("-seen_at")
        .values_list("stderr_tail", flat=True)
    )
    tested = server.tests.exclude(stderr_tail="").values_list("stderr_tail", flat=True)
    return heard.first() or tested.first() or ""


def _log_lines(server: Server) -> str:
    """What it said last in log lines over MCP, to the process that heard it last."""
    heard = (
        server.connections.exclude(log_tail="")
        .order_by("-seen_at")
        .values_list("log_tail", flat=True)
    )
    return heard.first() or ""


def _problem(server: Server) -> str:
    """Secrets that no longer open make a server unusable; its page must say so and still open."""
    try:
        server.launch_facts()
    except SlipsnisseError as error:
        return str(error)
    return ""
