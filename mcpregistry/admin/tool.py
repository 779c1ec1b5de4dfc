"""Tools, prompts and their definitions: what waits for a decision, what changed, and the decision itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.urls import URLPattern, path
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin, RecordAdmin, Verb, actor
from mcpregistry.admin.behaviour import RISK_COLOURS, TOOL_VERBS, BehaviourPage, rows_of
from mcpregistry.admin.by_name import by_name
from mcpregistry.admin.selected import asks_first
from mcpregistry.admin.try_tool import TryToolPage
from mcpregistry.domain.definitions.definition import listing
from mcpregistry.domain.definitions.diff import rewordings
from mcpregistry.domain.energy import SLOW_FROM, SLOW_SECONDS
from mcpregistry.domain.errors import Conflict, SlipsnisseError
from mcpregistry.domain.policy.risk import risk_of
from mcpregistry.domain.shown_definitions import compare_members
from mcpregistry.domain.text.display import printable
from mcpregistry.models import Definition, Tool
from mcpregistry.queries import consequences, definitions
from mcpregistry.services.definitions import decisions
from mcpregistry.services.definitions.behaviour import seen_of
from mcpregistry.services.energy import estimates

STATUS_COLOURS = {
    "approved": "success",
    "quarantined": "warning",
    "changed": "warning",
    "rejected": "danger",
    "gone": "",
    "disabled": "",
}
_VERSIONS_SHOWN = 20


def status(tool: Tool) -> str:
    """The tool's status, or "disabled" for an approved tool that is switched off."""
    return "disabled" if not tool.enabled and tool.status == "approved" else tool.status


def _newest(request: HttpRequest, tool: Tool) -> Definition:
    """The definition that the person was shown; Conflict if the server has changed it since."""
    shown = request.POST.get("shown")
    if tool.latest is None or (shown and shown != tool.latest.hash):
        raise Conflict("The server has changed the definition meanwhile.", remedy="Read it again, then decide.")
    return tool.latest


def _approve(request: HttpRequest, tool: Tool) -> str:
    decisions.approve(definition=_newest(request, tool), actor=actor(request), user=request.user)
    return f"{printable(tool.name, 100)} is approved: exactly this definition is served."


def _reject(request: HttpRequest, tool: Tool) -> str:
    decisions.reject(definition=_newest(request, tool), actor=actor(request), user=request.user)
    return f"{printable(tool.name, 100)} is rejected: this definition is never served."


def _revert(request: HttpRequest, tool: Tool) -> str:
    decisions.revert(definition=_newest(request, tool), actor=actor(request), user=request.user)
    return f"{printable(tool.name, 100)} keeps its earlier text and serves again as soon as the server offers that."


def _switch(enabled: bool) -> Callable[[HttpRequest, Tool], str]:
    def run(request: HttpRequest, tool: Tool) -> str:
        decisions.save_tool(tool=tool.change(enabled=enabled), actor=actor(request), rights=request.user.has_perm)
        return f"{printable(tool.name, 100)} is {'enabled' if enabled else 'disabled: no agent sees it'}."

    return run


_enable, _disable = _switch(True), _switch(False)


class StatusFilter(admin.SimpleListFilter):
    """Tools by status."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("waiting", "Waiting for a decision"),
            ("quarantined", "New"),
            ("changed", "Changed since approved"),
            ("approved", "Approved"),
            ("rejected", "Rejected"),
            ("gone", "Gone from the server"),
            ("disabled", "Disabled"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Tool]) -> QuerySet[Tool]:
        return definitions.with_status(queryset, self.value() or "")


class SlowFilter(admin.SimpleListFilter):
    """Tools a twentieth of whose last calls, or more, took long."""

    title = "speed"
    parameter_name = "speed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("slow", f"slow: {SLOW_SECONDS:g} s or more")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        slow = {"usage__calls__gte": SLOW_FROM, "usage__p95__gte": SLOW_SECONDS}
        return queryset.filter(**slow) if self.value() == "slow" else queryset


def _newest_id(tool: Tool) -> int | None:
    """What a decision on several tools is about: the definitions that were there when it was asked for."""
    return tool.latest_id


@admin.register(Tool)
class ToolAdmin(RecordAdmin):
    """Tools and prompts: what changed in their definition, and the decision on it."""

    list_display = ("shown_name", "shown_kind", "server", "shown_status", "summary", "enabled", "last_seen_at")
    list_filter = (StatusFilter, "kind", by_name("server"), SlowFilter, "enabled", "idempotent")
    list_select_related = ("server", "pinned", "latest")
    search_fields = ("name", "server__slug", "latest__body")
    ordering = ("server__slug", "name")
    actions = ("approve_selected", "reject_selected", "enable_selected", "disable_selected")
    change_form_outer_before_template = "admin/mcpregistry/tool.html"
    fields = (
        "enabled",
        "idempotent",
        ("call_energy", "call_cost"),
        "own_name",
        "own_description",
        "shown_energy",
        "shown_speed",
    )
    readonly_fields = ("shown_energy", "shown_speed")
    verbs = (
        Verb("try", "Try it", "call_tool", "play_arrow", "Call it as an agent, and see what a host would get.",
             page="mcpregistry_tool_try", applies=lambda tool: tool.status == "approved" and tool.enabled),
        Verb("enable", "Enable", "change_tool", "play_arrow", "Let agents that are granted it see it.", _enable,
             applies=lambda tool: not tool.enabled),
        Verb("disable", "Disable", "change_tool", "block", "Hide it from every agent.", _disable,
             applies=lambda tool: tool.enabled, asks=lambda tool: consequences.disabling_selected([tool])),
        Verb("approve", "Approve this definition", "approve_definition", "check", "Serve exactly this text and schema.",
             _approve, applies=lambda tool: tool.latest_id is not None and tool.latest_id != tool.pinned_id,
             style="primary"),
        Verb("reject", "Reject", "approve_definition", "close", "Never serve this definition.", _reject,
             applies=lambda tool: tool.latest_id is not None and tool.status != "rejected", style="danger"),
        Verb("revert", "Keep the approved text", "approve_definition", "undo",
             "Not this text: the tool serves again as soon as the server offers the one approved before.", _revert,
             applies=lambda tool: tool.status == "changed"),
        *TOOL_VERBS,
    )  # fmt: skip

    @display(description="estimate of a call's energy")
    def shown_energy(self, tool: Tool) -> str:
        estimate = estimates.of_tool(tool)
        if estimate is None:
            return "none: it has no definition yet"
        return f"{estimate.units:.2f} units, {estimate.why}"

    @display(description="speed")
    def shown_speed(self, tool: Tool) -> str:
        if not hasattr(tool, "usage"):
            return "not known yet: no call of it has been counted"
        usage = tool.usage.usage
        took = f"of {usage.calls} calls half took up to {usage.median:.2f} s, all but a twentieth {usage.p95:.2f} s"
        return f"slow: {took}. {usage.slow}" if usage.slow else took

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(BehaviourPage(self))
        trial = self.admin_site.admin_view(TryToolPage(self))
        return [
            path("<path:object_id>/behaviour/", page, name="mcpregistry_tool_behaviour"),
            path("<path:object_id>/try/", trial, name="mcpregistry_tool_try"),
            *super().get_urls(),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save(self, request: HttpRequest, row: Tool, form: ModelForm[Tool]) -> None:
        decisions.save_tool(tool=row, actor=actor(request), rights=request.user.has_perm)

    @display(description="name", ordering="name")
    def shown_name(self, tool: Tool) -> str:
        return printable(tool.name, 80)

    @display(description="kind", ordering="kind", label={"prompt": "info", "resource": "info", "template": "info"})
    def shown_kind(self, tool: Tool) -> str:
        return Tool.Kind(tool.kind).label

    @display(description="status", label=STATUS_COLOURS)
    def shown_status(self, tool: Tool) -> str:
        return status(tool)

    @display(description="what it says it does")
    def summary(self, tool: Tool) -> str:
        definition = tool.latest or tool.pinned
        return printable(" ".join(definition.description[:400].split()), 110) if definition else ""

    @admin.action(description="Approve the newest definitions", permissions=["approve"])
    @asks_first(consequences.approving_selected, label="Approve them", icon="done_all", bound_to=_newest_id)
    def approve_selected(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._each(request, queryset, _approve)

    @admin.action(description="Reject the newest definitions", permissions=["approve"])
    @asks_first(consequences.rejecting_selected, label="Reject them", icon="close", bound_to=_newest_id)
    def reject_selected(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._each(request, queryset, _reject)

    @admin.action(description="Enable the selected tools", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._each(request, queryset, _enable)

    @admin.action(description="Disable the selected tools", permissions=["change"])
    @asks_first(consequences.disabling_selected, label="Disable them")
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._each(request, queryset, _disable)

    def _each(self, request: HttpRequest, queryset: QuerySet[Tool], run: Callable[[HttpRequest, Tool], str]) -> None:
        done = 0
        for tool in queryset:
            try:
                run(request, tool)
                done += 1
            except SlipsnisseError as error:
                self.message_user(request, f"{printable(str(tool), 200)}: {error}", messages.ERROR)
        self.message_user(request, f"{done} tool{'' if done == 1 else 's'} done.", messages.SUCCESS)

    def has_approve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("mcpregistry.approve_definition")

    def overview(self, request: HttpRequest, row: Tool) -> dict[str, Any]:
        old = row.pinned.data if row.pinned else {}
        new = row.latest.data if row.latest else {}
        return {
            "tool": row,
            "behaviour": rows_of(row),
            "seen": seen_of(row),
            "risk": risk_of(row).level.value,
            "risk_colour": RISK_COLOURS[risk_of(row).level],
            "status": status(row),
            "status_colour": STATUS_COLOURS[status(row)],
            "newest": row.latest,
            "newest_data": new,
            "repairs": compare_members(row.kind, listing(new)) if new else [],
            "changes": rewordings(old, new) if row.pinned_id and row.pinned_id != row.latest_id else [],
            "versions": definitions.decided_definitions(row)[:_VERSIONS_SHOWN],
        }


@admin.register(Definition)
class DefinitionAdmin(ReadOnlyAdmin):
    """One version of a tool, as the server described it. Reached from the tool's page."""

    list_display = ("shown_tool", "short_hash", "verdict", "seen_at", "decided_by")
    list_filter = ("approved",)
    list_select_related = ("tool__server", "decided_by")
    search_fields = ("tool__name", "tool__server__slug", "hash")
    ordering = ("-seen_at", "-id")
    fields = ("hash", "seen_at", "verdict", "decided_at", "decided_by")
    change_form_outer_before_template = "admin/mcpregistry/definition.html"

    @display(description="tool")
    def shown_tool(self, definition: Definition) -> str:
        return printable(str(definition.tool), 100)

    @display(description="hash")
    def short_hash(self, definition: Definition) -> str:
        return definition.hash[:12]

    @display(description="decision", label={"approved": "success", "rejected": "danger", "waiting": "warning"})
    def verdict(self, definition: Definition) -> str:
        if definition.decided_at is None:
            return "waiting"
        return "approved" if definition.approved else "rejected"

    def overview(self, request: HttpRequest, row: Definition) -> dict[str, Any]:
        return {"definition": row}
