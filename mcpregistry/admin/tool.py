"""Tools, prompts and their definitions: what waits for a decision, what changed, and the decision
itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.urls import URLPattern, path
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.annotations_page import RISK_COLOURS, TOOL_VERBS, BehaviourPage, rows_of
from mcpregistry.admin.base import ReadOnlyAdmin, RecordAdmin, Verb, actor
from mcpregistry.admin.bulk_actions import asks_first
from mcpregistry.admin.name_filters import by_name
from mcpregistry.admin.try_tool import TryToolPage
from mcpregistry.domain.definitions.definition import strip_instructions
from mcpregistry.domain.definitions.diff import list_rewordings
from mcpregistry.domain.energy import SLOW_FROM, SLOW_SECONDS
from mcpregistry.domain.errors import Conflict, SlipsnisseError
from mcpregistry.domain.host_definitions import compare_members
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Definition, Tool
from mcpregistry.queries import consequences, definitions
from mcpregistry.services.definitions import decisions
from mcpregistry.services.definitions.behaviour import fingerprint_behaviour
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
        raise Conflict(
            "The server has changed the definition since you opened this page.",
            remedy="Read the new definition, then decide.",
        )
    return tool.latest


def _approve(request: HttpRequest, tool: Tool) -> str:
    decisions.approve(definition=_newest(request, tool), actor=actor(request), user=request.user)
    return gettext("{tool} is approved. Hosts get exactly this definition.").format(
        tool=show_invisible_characters(tool.name, 100)
    )


def _reject(request: HttpRequest, tool: Tool) -> str:
    decisions.reject(definition=_newest(request, tool), actor=actor(request), user=request.user)
    return gettext("{tool} is rejected. Hosts never get this definition.").format(
        tool=show_invisible_characters(tool.name, 100)
    )


def _revert(request: HttpRequest, tool: Tool) -> str:
    decisions.revert(definition=_newest(request, tool), actor=actor(request), user=request.user)
    return gettext(
        "{tool} keeps its approved definition and can be called again as soon as the server offers that definition."
    ).format(tool=show_invisible_characters(tool.name, 100))


def _switch(enabled: bool) -> Callable[[HttpRequest, Tool], str]:
    def run(request: HttpRequest, tool: Tool) -> str:
        decisions.save_tool(
            tool=tool.change(enabled=enabled), actor=actor(request), rights=request.user.has_perm
        )
        text = (
            gettext("{tool} is enabled.")
            if enabled
            else gettext("{tool} is disabled. No agent sees it.")
        )
        return text.format(tool=show_invisible_characters(tool.name, 100))

    return run


_enable = _switch(True)
_disable = _switch(False)


class StatusFilter(admin.SimpleListFilter):
    """Tools by status."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("waiting", gettext("Waiting for a decision")),
            ("quarantined", gettext("New")),
            ("changed", gettext("Changed since the approval")),
            ("approved", gettext("Approved")),
            ("rejected", gettext("Rejected")),
            ("gone", gettext("No longer offered by the server")),
            ("disabled", gettext("Disabled")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Tool]) -> QuerySet[Tool]:
        return definitions.with_status(queryset, self.value() or "")


class SlowFilter(admin.SimpleListFilter):
    """Tools a twentieth of whose last calls, or more, took long."""

    title = _("speed")
    parameter_name = "speed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("slow", gettext("slow: {seconds:g} s or more").format(seconds=SLOW_SECONDS))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        slow = {"usage__calls__gte": SLOW_FROM, "usage__p95__gte": SLOW_SECONDS}
        return queryset.filter(**slow) if self.value() == "slow" else queryset


def _newest_id(tool: Tool) -> int | None:
    """What a decision on several tools is about: the definitions that were there when it was asked
    for."""
    return tool.latest_id


@admin.register(Tool)
class ToolAdmin(RecordAdmin):
    """Tools and prompts: what changed in their definition, and the decision on it."""

    list_display = (
        "shown_name",
        "shown_kind",
        "server",
        "shown_status",
        "summary",
        "enabled",
        "last_seen_at",
    )
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
        Verb(
            "try",
            _("Try tool"),
            "call_tool",
            "play_arrow",
            _("Call the tool as an agent, and see what a host would get."),
            page="mcpregistry_tool_try",
            applies=lambda tool: tool.status == "approved" and tool.enabled,
        ),
        Verb(
            "enable",
            _("Enable tool"),
            "change_tool",
            "play_arrow",
            _("Show the tool to agents that have a grant for it."),
            _enable,
            applies=lambda tool: not tool.enabled,
        ),
        Verb(
            "disable",
            _("Disable tool"),
            "change_tool",
            "block",
            _("Hide the tool from every agent."),
            _disable,
            applies=lambda tool: tool.enabled,
            asks=lambda tool: consequences.disabling_selected([tool]),
        ),
        Verb(
            "approve",
            _("Approve definition"),
            "approve_definition",
            "check",
            _("Offer exactly this text and schema."),
            _approve,
            applies=lambda tool: tool.latest_id is not None and tool.latest_id != tool.pinned_id,
            style="primary",
        ),
        Verb(
            "reject",
            _("Reject definition"),
            "approve_definition",
            "close",
            _("Never offer this definition."),
            _reject,
            applies=lambda tool: tool.latest_id is not None and tool.status != "rejected",
            style="danger",
        ),
        Verb(
            "revert",
            _("Keep approved definition"),
            "approve_definition",
            "undo",
            _(
                "Reject the new definition. The tool can be called again as soon as the server offers the approved "
                "one."
            ),
            _revert,
            applies=lambda tool: tool.status == "changed",
        ),
        *TOOL_VERBS,
    )

    @display(description=_("estimated energy of a call"))
    def shown_energy(self, tool: Tool) -> str:
        estimate = estimates.estimate_tool(tool)
        if estimate is None:
            return gettext("none, because the tool has no definition yet")
        return gettext("{units:.2f} units, {why}").format(units=estimate.units, why=estimate.why)

    @display(description=_("speed"))
    def shown_speed(self, tool: Tool) -> str:
        if not hasattr(tool, "usage"):
            return gettext("not known yet, because no calls have been counted")
        usage = tool.usage.usage
        took = gettext(
            "half of the calls took up to {median:.2f} s, and 95 % took up to {p95:.2f} s (calls counted: {calls})"
        ).format(calls=usage.calls, median=usage.median, p95=usage.p95)
        return (
            gettext("slow: {duration}. {reason}").format(duration=took, reason=usage.slow)
            if usage.slow
            else took
        )

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

    @display(description=_("name"), ordering="name")
    def shown_name(self, tool: Tool) -> str:
        return show_invisible_characters(tool.name, 80)

    @display(
        description=_("kind"),
        ordering="kind",
        label={"prompt": "info", "resource": "info", "template": "info"},
    )
    def shown_kind(self, tool: Tool) -> str:
        return str(Tool.Kind(tool.kind).label)

    @display(description=_("status"), label=STATUS_COLOURS)
    def shown_status(self, tool: Tool) -> str:
        return status(tool)

    @display(description=_("description"))
    def summary(self, tool: Tool) -> str:
        definition = tool.latest or tool.pinned
        return (
            show_invisible_characters(" ".join(definition.description[:400].split()), 110)
            if definition
            else ""
        )

    @admin.action(description=_("Approve the newest definitions"), permissions=["approve"])
    @asks_first(
        consequences.approving_selected,
        label=_("Approve definitions"),
        icon="done_all",
        bound_to=_newest_id,
    )
    def approve_selected(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._run_on_each(request, queryset, _approve)

    @admin.action(description=_("Reject the newest definitions"), permissions=["approve"])
    @asks_first(
        consequences.rejecting_selected,
        label=_("Reject definitions"),
        icon="close",
        bound_to=_newest_id,
    )
    def reject_selected(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._run_on_each(request, queryset, _reject)

    @admin.action(description=_("Enable the selected tools"), permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._run_on_each(request, queryset, _enable)

    @admin.action(description=_("Disable the selected tools"), permissions=["change"])
    @asks_first(consequences.disabling_selected, label=_("Disable tools"))
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._run_on_each(request, queryset, _disable)

    def _run_on_each(
        self,
        request: HttpRequest,
        queryset: QuerySet[Tool],
        run: Callable[[HttpRequest, Tool], str],
    ) -> None:
        done = 0
        for tool in queryset:
            try:
                run(request, tool)
                done += 1
            except SlipsnisseError as error:
                self.message_user(
                    request, f"{show_invisible_characters(str(tool), 200)}: {error}", messages.ERROR
                )
        self.message_user(
            request,
            ngettext("{count} tool updated.", "{count} tools updated.", done).format(count=done),
            messages.SUCCESS,
        )

    def has_approve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("mcpregistry.approve_definition")

    def overview(self, request: HttpRequest, row: Tool) -> dict[str, Any]:
        old = row.pinned.data if row.pinned else {}
        new = row.latest.data if row.latest else {}
        return {
            "tool": row,
            "behaviour": rows_of(row),
            "seen": fingerprint_behaviour(row),
            "risk": assess_risk(row).level.value,
            "risk_colour": RISK_COLOURS[assess_risk(row).level],
            "status": status(row),
            "status_colour": STATUS_COLOURS[status(row)],
            "newest": row.latest,
            "newest_data": new,
            "repairs": compare_members(row.kind, strip_instructions(new)) if new else [],
            "changes": list_rewordings(old, new)
            if row.pinned_id and row.pinned_id != row.latest_id
            else [],
            "versions": definitions.list_definitions_with_decider(row)[:_VERSIONS_SHOWN],
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

    @display(description=_("tool"))
    def shown_tool(self, definition: Definition) -> str:
        return show_invisible_characters(str(definition.tool), 100)

    @display(description=_("hash"))
    def short_hash(self, definition: Definition) -> str:
        return definition.hash[:12]

    @display(
        description=_("decision"),
        label={"approved": "success", "rejected": "danger", "waiting": "warning"},
    )
    def verdict(self, definition: Definition) -> str:
        if definition.decided_at is None:
            return "waiting"
        return "approved" if definition.approved else "rejected"

    def overview(self, request: HttpRequest, row: Definition) -> dict[str, Any]:
        return {"definition": row}
