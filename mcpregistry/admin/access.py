"""Who may call what: agents, endpoints, grants, workspaces."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from mcpregistry.admin.base import RecordAdmin, Verb, actor
from mcpregistry.admin.budgets import list_budget_lines
from mcpregistry.admin.disable_confirmation import AsksWhenSwitchedOff
from mcpregistry.admin.energy import level_of
from mcpregistry.admin.fields import WordsField
from mcpregistry.admin.forms import RecordForm
from mcpregistry.admin.issue_token import IssueTokenPage
from mcpregistry.admin.name_filters import by_name, choice
from mcpregistry.admin.tokens import ExpiryFilter, TokenInline
from mcpregistry.calls import catalog
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Endpoint, EnergyPool, Grant, Workspace
from mcpregistry.queries import consequences, definitions
from mcpregistry.services.access import agents, grants
from mcpregistry.services.policy.table import find_commonest_cause

MAY_GRANT = "mcpregistry.add_grant"
_SHOWN = 200  # tools, and grants, on an agent's page


class AgentForm(RecordForm[Agent]):
    """An agent's fields; capabilities are entered one per line."""

    capabilities = WordsField(
        rows=3,
        placeholder=_("If empty, the agent sees no tools."),
        help_text=_(
            "Capabilities, one per line. They limit what can be granted to this agent: mcp_integration for "
            "every server, mcp_github::* for one server, mcp_github::create_issue for one tool. If empty, the"
            " agent sees no tools."
        ),
    )

    class Meta:
        model = Agent
        fields = "__all__"
        help_texts = {
            "slug": _("Short name of the agent, for example for manage.py runmcp --agent NAME."),
            "name": _("Name on the pages of this site. If empty, the short name is shown."),
            "enabled": _("If disabled, all tokens of the agent are refused and it sees no tools."),
            "owner": _("The person who is responsible for this agent."),
        }


@admin.register(Agent)
class AgentAdmin(AsksWhenSwitchedOff):
    """Agents: issuing tokens, and on the agent's page what it sees on an endpoint."""

    form = AgentForm
    list_display = (
        "slug",
        "name",
        "enabled",
        "token_count",
        "grant_count",
        "calls_per_minute",
        "owner",
    )
    list_filter = ("enabled",)
    list_select_related = ("owner",)
    ordering = ("slug",)
    search_fields = ("slug", "name", "description")
    autocomplete_fields = ("owner",)
    inlines = (TokenInline,)
    fieldsets = (
        (None, {"fields": (("slug", "name"), "description", "enabled")}),
        (
            _("Permissions and limits"),
            {
                "fields": (
                    "capabilities",
                    ("calls_per_minute", "owner"),
                    ("hold_seconds", "energy_pool"),
                )
            },
        ),
    )
    change_form_outer_before_template = "admin/mcpregistry/agent.html"
    verbs = (
        Verb(
            "token",
            _("Issue token"),
            "add_token",
            "key",
            _("Create a bearer token. It is shown once."),
            page="mcpregistry_agent_issue_token",
            style="primary",
        ),
        Verb(
            "connect",
            _("Connect a host"),
            "view_agent",
            "cable",
            _("Show what to enter in Claude Code, Cursor, VS Code and other hosts."),
            page="mcpregistry_agent_connect",
        ),
    )

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(IssueTokenPage(self))
        return [
            path("<path:object_id>/token/", page, name="mcpregistry_agent_issue_token"),
            path(
                "<path:object_id>/connect/",
                self.admin_site.admin_view(self.connect_view),
                name="mcpregistry_agent_connect",
            ),
            *super().get_urls(),
        ]

    def connect_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """To the page *Connect*, with this agent chosen."""
        agent = self.get_object(request, object_id)
        chosen = f"?{urlencode({'agent': agent.slug})}" if agent else ""
        return HttpResponseRedirect(f"{reverse('connect')}{chosen}")

    def get_inlines(
        self, request: HttpRequest, obj: Agent | None = None
    ) -> tuple[type[TokenInline], ...]:
        return self.inlines if obj else ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        live = Q(tokens__revoked_at__isnull=True) & (
            Q(tokens__expires_at__isnull=True) | Q(tokens__expires_at__gt=timezone.now())
        )
        counts = {
            "live_tokens": Count("tokens", live, distinct=True),
            "all_grants": Count("grants", distinct=True),
        }
        return super().get_queryset(request).annotate(**counts)

    def switching_off(self, row: Agent) -> list[str]:
        return consequences.switching_off_agent(row)

    def save(self, request: HttpRequest, row: Agent, form: forms.ModelForm[Agent]) -> None:
        agents.save_agent(agent=row, actor=actor(request), rights=request.user.has_perm)

    def remove(self, request: HttpRequest, row: Agent) -> None:
        agents.delete_agent(agent=row, actor=actor(request), rights=request.user.has_perm)

    @display(description=_("valid tokens"), ordering="live_tokens")
    def token_count(self, agent: Agent) -> int:
        return agent.live_tokens  # type: ignore[attr-defined]

    @display(description=_("grants"), ordering="all_grants")
    def grant_count(self, agent: Agent) -> int:
        return agent.all_grants  # type: ignore[attr-defined]

    def overview(self, request: HttpRequest, row: Agent) -> dict[str, Any]:
        endpoints = choice("endpoint", request)
        chosen = endpoints.row
        seen = catalog.build_current_catalogue(row, chosen, now=timezone.now()) if chosen else None
        return {
            "agent": row,
            "choice": endpoints,
            "chosen": chosen,
            "seen": list(seen.entries.items())[:_SHOWN] if seen else [],
            "unseen": max(len(seen.entries) - _SHOWN, 0) if seen else 0,
            "cause": find_commonest_cause(row, chosen, timezone.now())
            if chosen and not (seen and seen.everything)
            else None,
            "budgets": list_budget_lines(row, request),
            "holder": row,
            "grants": row.grants.select_related("server", "tool__server")[:_SHOWN],
        } | _describe_energy(request, row)


def _describe_energy(request: HttpRequest, row: Agent) -> dict[str, Any]:
    """How the pool that it draws on stands, and what it took of it."""
    if row.energy_pool_id is None or not request.user.has_perm("mcpregistry.view_energypool"):
        return {}
    return level_of(
        EnergyPool.objects.with_reserved().get(pk=row.energy_pool_id), request, row.slug
    )


class EndpointForm(RecordForm[Endpoint]):
    """An endpoint's fields with their explanations."""

    class Meta:
        model = Endpoint
        fields = "__all__"
        help_texts = {
            "slug": _("Short name of the endpoint, as in its address: /mcp/NAME."),
            "name": _("Name that hosts show. If empty, the short name is used."),
            "enabled": _("If disabled, hosts get a “not found” error."),
            "scope": _(
                "Choose whether hosts see all tools that the agent is granted, or only those that are also "
                "granted to this endpoint."
            ),
            "naming_style": _(
                "How tool names are written for hosts. If you change this setting, the names of all tools change "
                "in hosts."
            ),
            "description_style": _(
                "Choose whether the description of each tool names the server of the tool."
            ),
        }


@admin.register(Endpoint)
class EndpointAdmin(AsksWhenSwitchedOff):
    """Endpoints; saving one warns of names that some hosts would shorten."""

    form = EndpointForm
    change_form_outer_before_template = "admin/mcpregistry/endpoint.html"
    list_display = ("slug", "name", "enabled", "scope", "naming_style", "hide_unavailable")
    list_filter = ("enabled", "scope", "naming_style")
    search_fields = ("slug", "name")
    fieldsets = (
        (None, {"fields": (("slug", "name"), "instructions", "instructions_limit", "enabled")}),
        (
            _("Listed tools"),
            {
                "fields": (
                    "scope",
                    ("naming_style", "description_style"),
                    "hide_unavailable",
                    ("maintenance_tools", "tell_energy"),
                )
            },
        ),
        (_("Held calls"), {"fields": ("hold_seconds",)}),
    )

    def overview(self, request: HttpRequest, row: Endpoint) -> dict[str, Any]:
        agents_of_site = choice("agent", request)
        chosen = agents_of_site.row
        return {
            "endpoint": row,
            "choice": agents_of_site,
            "chosen": chosen,
            "told": catalog.build_current_instructions(chosen, row, now=timezone.now())
            if chosen
            else "",
            "budgets": list_budget_lines(row, request),
            "holder": row,
        }

    def switching_off(self, row: Endpoint) -> list[str]:
        return consequences.switching_off_endpoint(row)

    def save(self, request: HttpRequest, row: Endpoint, form: forms.ModelForm[Endpoint]) -> None:
        agents.save_endpoint(endpoint=row, actor=actor(request), rights=request.user.has_perm)
        if too_long := definitions.find_shortened_names(row):
            messages.warning(
                request,
                gettext(
                    "Some hosts would shorten {count} of the names on this endpoint, for example {name}. Use a shorter "
                    "naming style or shorter names of servers."
                ).format(count=len(too_long), name=show_invisible_characters(too_long[0], 80)),
            )

    def remove(self, request: HttpRequest, row: Endpoint) -> None:
        agents.delete_endpoint(endpoint=row, actor=actor(request), rights=request.user.has_perm)


class GrantForm(RecordForm[Grant]):
    """A grant's fields; the database refuses two holders or two objects."""

    class Meta:
        model = Grant
        fields = "__all__"
        labels = {"tool": _("Tool or prompt")}
        widgets = {
            "argument_pins": UnfoldAdminTextareaWidget(attrs={"rows": 3, "class": "sn-code"})
        }
        help_texts = {
            "agent": _("The agent that gets this grant. Choose either an agent or an endpoint."),
            "endpoint": _(
                "The endpoint that gets this grant. Choose an endpoint that shows only what is granted to it."
            ),
            "server": _(
                "Grants all approved tools of this server, including tools that are added later. Choose either a "
                "server, or one tool or prompt."
            ),
            "tool": _("Grants only this tool or prompt."),
            "note": _("The reason for this grant. It is shown on the pages of this site."),
        }


@admin.register(Grant)
class GrantAdmin(RecordAdmin):
    """Grants: who may use what, with which arguments, until when."""

    form = GrantForm
    list_display = (
        "holder",
        "object",
        "pinned_arguments",
        "expires_at",
        "note",
        "created_by",
        "created_at",
    )
    list_filter = (
        ExpiryFilter,
        "kind",
        by_name("agent", nobody=_("No agent (granted to an endpoint)")),
        by_name("endpoint", nobody=_("No endpoint (granted to an agent)")),
        by_name("server", nobody=_("No server (only one tool is granted)")),
    )
    list_select_related = ("agent", "endpoint", "server", "tool__server", "created_by")
    search_fields = (
        "agent__slug",
        "endpoint__slug",
        "server__slug",
        "tool__name",
        "tool__server__slug",
        "note",
    )
    autocomplete_fields = ("agent", "endpoint", "server", "tool")
    fieldsets = (
        (_("Granted to"), {"fields": (("agent", "endpoint"),)}),
        (_("Granted tools"), {"fields": (("server", "kind"), "uri", "tool", "argument_pins")}),
        (_("Duration"), {"fields": ("expires_at", "note")}),
    )

    def save(self, request: HttpRequest, row: Grant, form: forms.ModelForm[Grant]) -> None:
        grants.save_grant(grant=row, actor=actor(request), user=request.user)  # type: ignore[arg-type]

    def remove(self, request: HttpRequest, row: Grant) -> None:
        grants.withdraw_grant(grant=row, actor=actor(request))

    @display(description=_("granted to"))
    def holder(self, grant: Grant) -> str:
        return f"agent {grant.agent}" if grant.agent else f"endpoint {grant.endpoint}"

    @display(description=_("granted tools"))
    def object(self, grant: Grant) -> str:
        return (
            show_invisible_characters(str(grant.tool), 100)
            if grant.tool
            else f"{grant.server}: {grant.get_kind_display()} {grant.uri}".strip()
        )

    @display(description=_("arguments"))
    def pinned_arguments(self, grant: Grant) -> str:
        return show_invisible_characters(
            ", ".join(f"{name}={value}" for name, value in grant.argument_pins.items()), 100
        ) or gettext("any arguments")


@admin.register(Workspace)
class WorkspaceAdmin(RecordAdmin):
    """Workspaces: which endpoint and agent ``runmcp --cwd`` uses below a directory.

    A workspace gives whoever starts a host there all that its agent is granted, so it needs the
    right to grant as well.
    """

    list_display = ("directory", "endpoint", "agent")
    list_filter = (by_name("endpoint"), by_name("agent"))
    list_select_related = ("endpoint", "agent")
    search_fields = ("directory", "endpoint__slug", "agent__slug")
    autocomplete_fields = ("endpoint", "agent")
    fields = ("directory", "endpoint", "agent")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and request.user.has_perm(MAY_GRANT)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and request.user.has_perm(MAY_GRANT)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Below a deleted workspace the one of the folder above it counts, with another agent."""
        return super().has_delete_permission(request, obj) and request.user.has_perm(MAY_GRANT)

    def save(self, request: HttpRequest, row: Workspace, form: forms.ModelForm[Workspace]) -> None:
        agents.save_workspace(workspace=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: Workspace) -> None:
        agents.delete_workspace(workspace=row, actor=actor(request))
