"""Who may call what: agents with their tokens, endpoints, grants, workspaces."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from unfold.admin import TabularInline
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from mcpregistry.admin.base import ReadOnlyAdmin, RecordAdmin, Verb, actor
from mcpregistry.admin.budgets import lines_of
from mcpregistry.admin.energy import level_of
from mcpregistry.admin.fields import WordsField
from mcpregistry.admin.forms import RecordForm
from mcpregistry.admin.issue_token import IssueTokenPage
from mcpregistry.calls import catalog
from mcpregistry.domain.text.display import printable
from mcpregistry.models import Agent, Endpoint, EnergyPool, Grant, Token, Workspace
from mcpregistry.queries import definitions
from mcpregistry.services.access import agents, grants, tokens

TOKEN_COLOURS = {"live": "success", "expired": "warning", "revoked": "danger"}


def token_state(token: Token) -> str:
    """ "live", "expired" or "revoked"; the keys of ``TOKEN_COLOURS``."""
    if token.revoked_at:
        return "revoked"
    return "expired" if token.expires_at and token.expires_at <= timezone.now() else "live"


def _revoke(request: HttpRequest, token: Token) -> str:
    tokens.revoke_token(token=token, actor=actor(request))
    return f"The token {token.prefix}… no longer works, in every process within a second."


class TokenInline(TabularInline):
    """The agent's tokens, read-only; issuing and revoking are buttons."""

    model = Token
    fields = ("link", "name", "shown_state", "expires_at", "last_used_at")
    readonly_fields = fields
    extra = 0
    can_delete = False
    hide_title = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="begins with")
    def link(self, token: Token) -> str:
        page = reverse("admin:mcpregistry_token_change", args=[token.pk])
        return format_html('<a class="sn-link" href="{}">{}…</a>', page, token.prefix)

    @display(description="state", label=TOKEN_COLOURS)
    def shown_state(self, token: Token) -> str:
        return token_state(token)


class AgentForm(RecordForm[Agent]):
    """An agent's fields; capabilities are entered one per line."""

    capabilities = WordsField(
        rows=3,
        placeholder="mcp_integration",
        help_text="What it could ever use, however much is granted; one per line: mcp_integration for every server, "
        "mcp_github::* for one server, mcp_github::create_issue for one tool.",
    )

    class Meta:
        model = Agent
        fields = "__all__"
        help_texts = {
            "slug": "Short name, as in: manage.py runmcp --agent NAME.",
            "name": "Shown to people. Empty: the slug.",
            "enabled": "Off: every token of it is refused and every list is empty.",
            "owner": "The person who answers for it.",
        }


@admin.register(Agent)
class AgentAdmin(RecordAdmin):
    """Agents: issuing tokens, and on the agent's page what it sees on an endpoint."""

    form = AgentForm
    list_display = ("slug", "name", "enabled", "token_count", "grant_count", "calls_per_minute", "owner")
    list_filter = ("enabled",)
    list_select_related = ("owner",)
    search_fields = ("slug", "name", "description")
    autocomplete_fields = ("owner",)
    inlines = (TokenInline,)
    fieldsets = (
        (None, {"fields": (("slug", "name"), "description", "enabled")}),
        (
            "What it may use",
            {"fields": ("capabilities", ("calls_per_minute", "owner"), ("hold_seconds", "energy_pool"))},
        ),
    )
    change_form_outer_before_template = "admin/mcpregistry/agent.html"
    verbs = (
        Verb("token", "Issue token", "add_token", "key", "Make a new bearer token; it is shown once.",
             page="mcpregistry_agent_issue_token", style="primary"),
    )  # fmt: skip

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(IssueTokenPage(self))
        return [path("<path:object_id>/token/", page, name="mcpregistry_agent_issue_token"), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        live = Q(tokens__revoked_at__isnull=True) & (
            Q(tokens__expires_at__isnull=True) | Q(tokens__expires_at__gt=timezone.now())
        )
        counts = {"live_tokens": Count("tokens", live, distinct=True), "all_grants": Count("grants", distinct=True)}
        return super().get_queryset(request).annotate(**counts)

    def save(self, request: HttpRequest, row: Agent, form: forms.ModelForm[Agent]) -> None:
        agents.save_agent(agent=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: Agent) -> None:
        agents.delete_agent(agent=row, actor=actor(request))

    @display(description="live tokens", ordering="live_tokens")
    def token_count(self, agent: Agent) -> int:
        return agent.live_tokens  # type: ignore[attr-defined]

    @display(description="grants", ordering="all_grants")
    def grant_count(self, agent: Agent) -> int:
        return agent.all_grants  # type: ignore[attr-defined]

    def overview(self, request: HttpRequest, row: Agent) -> dict[str, Any]:
        endpoints = list(Endpoint.objects.filter(enabled=True))
        wanted = request.GET.get("endpoint")
        chosen = next((endpoint for endpoint in endpoints if endpoint.slug == wanted), next(iter(endpoints), None))
        seen = catalog.catalogue_now(row, chosen, now=timezone.now()) if chosen else None
        return {
            "agent": row,
            "endpoints": endpoints,
            "chosen": chosen,
            "catalogue": seen,
            "budgets": lines_of(row, request),
            "grants": row.grants.select_related("server", "tool__server")[:200],
        } | _energy(request, row)


def _energy(request: HttpRequest, row: Agent) -> dict[str, Any]:
    """How the pool that it draws on stands, and what it took of it."""
    if row.energy_pool_id is None or not request.user.has_perm("mcpregistry.view_energypool"):
        return {}
    return level_of(EnergyPool.objects.with_reserved().get(pk=row.energy_pool_id), request, row.slug)


@admin.register(Token)
class TokenAdmin(ReadOnlyAdmin):
    """Tokens of agents and people. Their text is nowhere; revoking is the only change."""

    list_display = ("shown_prefix", "holder", "name", "shown_state", "expires_at", "last_used_at", "created_at")
    list_filter = ("agent",)
    list_select_related = ("agent", "user")
    search_fields = ("prefix", "name", "agent__slug", "user__username")
    fields = ("shown_prefix", "holder", "name", "shown_state", "created_at", "expires_at", "last_used_at", "revoked_at")
    verbs = (
        Verb("revoke", "Revoke", "change_token", "block", "Refuse it from now on. This cannot be undone.", _revoke,
             applies=lambda token: token.revoked_at is None, style="danger"),
    )  # fmt: skip
    actions = ("revoke_selected",)

    @display(description="begins with", ordering="prefix")
    def shown_prefix(self, token: Token) -> str:
        return f"{token.prefix}…"

    @display(description="belongs to")
    def holder(self, token: Token) -> str:
        return f"agent {token.agent}" if token.agent else f"{token.user}"

    @display(description="state", label=TOKEN_COLOURS)
    def shown_state(self, token: Token) -> str:
        return token_state(token)

    @admin.action(description="Revoke the selected tokens", permissions=["revoke"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        for token in queryset.filter(revoked_at__isnull=True):
            self.message_user(request, _revoke(request, token))

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("mcpregistry.change_token")


class EndpointForm(RecordForm[Endpoint]):
    """An endpoint's fields with their explanations."""

    class Meta:
        model = Endpoint
        fields = "__all__"
        help_texts = {
            "slug": "Part of the address: /mcp/NAME.",
            "name": "Shown by hosts. Empty: the slug.",
            "enabled": "Off: hosts are told that it does not exist.",
            "scope": "What is listed here are the grants of the endpoint.",
            "naming_style": "How tools are named towards hosts; a change renames every tool for them.",
            "description_style": "Whether a tool's description says which server it comes from.",
        }


@admin.register(Endpoint)
class EndpointAdmin(RecordAdmin):
    """Endpoints; saving one warns of names that some hosts would shorten."""

    form = EndpointForm
    change_form_outer_before_template = "admin/mcpregistry/endpoint.html"
    list_display = ("slug", "name", "enabled", "scope", "naming_style", "hide_unavailable")
    list_filter = ("enabled", "scope", "naming_style")
    search_fields = ("slug", "name")
    fieldsets = (
        (None, {"fields": (("slug", "name"), "instructions", "instructions_limit", "enabled")}),
        (
            "What it shows",
            {
                "fields": (
                    "scope",
                    ("naming_style", "description_style"),
                    "hide_unavailable",
                    ("maintenance_tools", "tell_energy"),
                )
            },
        ),
        ("Held calls", {"fields": ("hold_seconds",)}),
    )

    def overview(self, request: HttpRequest, row: Endpoint) -> dict[str, Any]:
        found = list(Agent.objects.filter(enabled=True)[:50])
        wanted = request.GET.get("agent")
        chosen = next((agent for agent in found if agent.slug == wanted), next(iter(found), None))
        seen = catalog.catalogue_now(chosen, row, now=timezone.now()) if chosen else None
        return {"endpoint": row, "agents": found, "chosen": chosen, "told": seen.instructions() if seen else ""}

    def save(self, request: HttpRequest, row: Endpoint, form: forms.ModelForm[Endpoint]) -> None:
        agents.save_endpoint(endpoint=row, actor=actor(request))
        if too_long := definitions.shortened_names(row):
            messages.warning(
                request,
                f"Some hosts would shorten {len(too_long)} of the names on this endpoint, for example "
                f"{printable(too_long[0], 80)}. Use a shorter naming style or shorter server slugs.",
            )

    def remove(self, request: HttpRequest, row: Endpoint) -> None:
        agents.delete_endpoint(endpoint=row, actor=actor(request))


class GrantForm(RecordForm[Grant]):
    """A grant's fields; the database refuses two holders or two objects."""

    class Meta:
        model = Grant
        fields = "__all__"
        labels = {"tool": "Tool or prompt"}
        widgets = {"argument_pins": UnfoldAdminTextareaWidget(attrs={"rows": 3, "class": "sn-code"})}
        help_texts = {
            "agent": "Who may use it. Either an agent or an endpoint.",
            "endpoint": "Or: which endpoint lists it, if it shows only what is listed.",
            "server": "What is approved of this server, later additions too. Either a server, or one tool or prompt.",
            "tool": "Or: this one tool or prompt.",
            "note": "Why, for whoever reads this later.",
        }


class ExpiryFilter(admin.SimpleListFilter):
    """Grants that still hold, or those that have expired."""

    title = "validity"
    parameter_name = "validity"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("live", "Live"), ("expired", "Expired")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Grant]) -> QuerySet[Grant]:
        expired = Q(expires_at__lte=timezone.now())
        return {"live": queryset.exclude(expired), "expired": queryset.filter(expired)}.get(
            self.value() or "", queryset
        )


@admin.register(Grant)
class GrantAdmin(RecordAdmin):
    """Grants: who may use what, with which arguments, until when."""

    form = GrantForm
    list_display = ("holder", "object", "pinned_arguments", "expires_at", "note", "created_by", "created_at")
    list_filter = (ExpiryFilter, "kind", "agent", "endpoint", "server")
    list_select_related = ("agent", "endpoint", "server", "tool__server", "created_by")
    search_fields = ("agent__slug", "endpoint__slug", "server__slug", "tool__name", "tool__server__slug", "note")
    autocomplete_fields = ("agent", "endpoint", "server", "tool")
    fieldsets = (
        ("Who", {"fields": (("agent", "endpoint"),)}),
        ("May use what", {"fields": (("server", "kind"), "uri", "tool", "argument_pins")}),
        ("Until when", {"fields": ("expires_at", "note")}),
    )

    def save(self, request: HttpRequest, row: Grant, form: forms.ModelForm[Grant]) -> None:
        grants.save_grant(grant=row, actor=actor(request), user=request.user)  # type: ignore[arg-type]

    def remove(self, request: HttpRequest, row: Grant) -> None:
        grants.withdraw_grant(grant=row, actor=actor(request))

    @display(description="who")
    def holder(self, grant: Grant) -> str:
        return f"agent {grant.agent}" if grant.agent else f"endpoint {grant.endpoint}"

    @display(description="may use")
    def object(self, grant: Grant) -> str:
        return (
            printable(str(grant.tool), 100)
            if grant.tool
            else f"{grant.server}: {grant.get_kind_display()} {grant.uri}".strip()
        )

    @display(description="with")
    def pinned_arguments(self, grant: Grant) -> str:
        return (
            printable(", ".join(f"{name}={value}" for name, value in grant.argument_pins.items()), 100)
            or "any arguments"
        )


@admin.register(Workspace)
class WorkspaceAdmin(RecordAdmin):
    """Workspaces: which endpoint and agent ``runmcp --cwd`` uses below a directory."""

    list_display = ("directory", "endpoint", "agent")
    list_filter = ("endpoint", "agent")
    list_select_related = ("endpoint", "agent")
    search_fields = ("directory", "endpoint__slug", "agent__slug")
    autocomplete_fields = ("endpoint", "agent")
    fields = ("directory", "endpoint", "agent")

    def save(self, request: HttpRequest, row: Workspace, form: forms.ModelForm[Workspace]) -> None:
        agents.save_workspace(workspace=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: Workspace) -> None:
        agents.delete_workspace(workspace=row, actor=actor(request))
