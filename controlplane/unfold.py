"""How the admin looks: titles, colours, the environment chip, the navigation and its badge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy


def environment(request: HttpRequest) -> list[str]:
    """Unfold's ``ENVIRONMENT``: label and colour of the chip in the corner."""
    if settings.DEBUG:
        return ["Debug", "danger"]
    embedded = settings.DATABASES["default"]["ENGINE"].endswith("sqlite3")
    return ["Embedded", "info"] if embedded else ["Production", "success"]


def waiting(request: HttpRequest) -> str:
    """The badge beside "Tools": how many definitions wait for a decision; nothing when none does."""
    from mcpregistry.queries.definitions import waiting_count

    count = waiting_count() if request.user.has_perm("mcpregistry.view_tool") else 0
    return str(count) if count else ""


def waiting_calls(request: HttpRequest) -> str:
    """The badge beside "Approvals": how many held calls wait for people; nothing when none does."""
    from mcpregistry.queries.approvals import waiting_total

    count = waiting_total() if request.user.has_perm("mcpregistry.view_approvalrequest") else 0
    return str(count) if count else ""


def _may_see(permission: str) -> Callable[[HttpRequest], bool]:
    return lambda request: request.user.has_perm(permission)


def _at_rules(request: HttpRequest) -> bool:
    """At the rules, but not at the page beneath them that has an entry of its own."""
    return "/policyrule/" in request.path and not request.path.endswith("/why/")


def _item(title: str, icon: str, model: str, **more: Any) -> dict[str, Any]:
    app, _, name = model.rpartition("_")
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{model}_changelist"),
        "permission": _may_see(f"{app}.view_{name}"),
    } | more


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Slipsnisse",
    "ACCOUNT": {
        "navigation": [
            {"title": "Change password", "link": reverse_lazy("admin:password_change")},
            {"title": "Second factor", "link": reverse_lazy("second-factor")},
        ]
    },
    "LOGIN": {"form": "mcpregistry.web.login.LoginForm"},
    "SITE_HEADER": "Slipsnisse",
    "SITE_SUBHEADER": "MCP control plane",
    "SITE_URL": None,
    "SITE_SYMBOL": "hub",
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda _: static("mcpregistry/favicon.svg")},
    ],
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "ENVIRONMENT": "controlplane.unfold.environment",
    "DASHBOARD_CALLBACK": "controlplane.dashboard.dashboard",
    "STYLES": [lambda _: static("mcpregistry/admin.css")],
    "COLORS": {
        "primary": {
            "50": "oklch(98.4% .014 180.7)",
            "100": "oklch(95.3% .051 180.8)",
            "200": "oklch(91% .096 180.4)",
            "300": "oklch(85.5% .138 181.1)",
            "400": "oklch(77.7% .152 181.9)",
            "500": "oklch(60% .118 184.7)",
            "600": "oklch(51.1% .096 186.4)",
            "700": "oklch(43.7% .078 188.2)",
            "800": "oklch(38.6% .063 188.4)",
            "900": "oklch(32% .05 190)",
            "950": "oklch(27.7% .046 192.5)",
        }
    },
    "SIDEBAR": {
        "show_search": True,
        "command_search": False,
        "show_all_applications": False,
        "navigation": [
            {
                "items": [
                    {"title": "Overview", "icon": "dashboard", "link": reverse_lazy("admin:index")},
                    {
                        "title": "Approvals",
                        "icon": "approval_delegation",
                        "link": reverse_lazy("approvals:queue"),
                        "permission": _may_see("mcpregistry.view_approvalrequest"),
                        "badge": "controlplane.unfold.waiting_calls",
                        "badge_variant": "danger",
                    },
                    {
                        "title": "Definitions",
                        "icon": "difference",
                        "link": reverse_lazy("definitions:inbox"),
                        "permission": _may_see("mcpregistry.view_definition"),
                        "badge": "controlplane.unfold.waiting",
                        "badge_variant": "warning",
                    },
                    _item("Servers", "dns", "mcpregistry_server"),
                    _item("Tools, prompts, resources", "build", "mcpregistry_tool"),
                    _item("Packages", "package_2", "mcpregistry_install"),
                    _item("Find servers", "travel_explore", "mcpregistry_registryentry"),
                    _item("Registries", "library_books", "mcpregistry_registrysource"),
                ],
            },
            {
                "title": "Access",
                "separator": True,
                "items": [
                    _item("Agents", "smart_toy", "mcpregistry_agent"),
                    _item("Budgets", "account_balance_wallet", "mcpregistry_budget"),
                    _item("Energy pools", "battery_charging_full", "mcpregistry_energypool"),
                    _item("Tokens", "key", "mcpregistry_token"),
                    _item("Endpoints", "lan", "mcpregistry_endpoint"),
                    _item("Grants", "rule", "mcpregistry_grant"),
                ],
            },
            {
                "title": "Expert tools",
                "separator": True,
                "items": [
                    _item("Expert tools", "psychology", "subagents_experttool"),
                    _item("Runs", "play_circle", "subagents_run"),
                    _item("Speaking agents", "record_voice_over", "subagents_effortagent"),
                    _item("Models", "memory", "subagents_languagemodel"),
                    _item("Providers", "cloud", "subagents_provider"),
                ],
            },
            {
                "title": "Sub-agent",
                "separator": True,
                "items": [
                    _item("Requests", "engineering", "subagents_maintenancerequest"),
                    _item("Proposals", "lightbulb", "subagents_proposal"),
                    _item("Trials", "science", "subagents_trialreport"),
                ],
            },
            {
                "title": "Policy",
                "separator": True,
                "items": [
                    _item("Rules", "policy", "mcpregistry_policyrule", active=_at_rules),
                    _item("Permits", "task_alt", "mcpregistry_permit"),
                    {
                        "title": "Why?",
                        "icon": "help",
                        "link": reverse_lazy("admin:mcpregistry_policyrule_why"),
                        "permission": _may_see("mcpregistry.view_policyrule"),
                    },
                ],
            },
            {
                "title": "Record",
                "separator": True,
                "items": [
                    _item("Calls", "call_made", "mcpregistry_invocation"),
                    _item("Conversations", "forum", "mcpregistry_conversation"),
                    _item("Budget entries", "receipt_long", "mcpregistry_budgetentry"),
                    _item("Energy entries", "bolt", "mcpregistry_energyentry"),
                    _item("Audit log", "history", "mcpregistry_auditentry"),
                    _item("Server events", "event_note", "mcpregistry_serverevent"),
                    _item("Server tests", "network_check", "mcpregistry_servertest"),
                ],
            },
            {
                "title": "Notifications",
                "separator": True,
                "items": [
                    _item("Channels", "campaign", "mcpregistry_channel"),
                    _item("Deliveries", "outbox", "mcpregistry_delivery"),
                    _item("Slack people", "badge", "mcpregistry_slackidentity"),
                ],
            },
            {
                "title": "Site",
                "separator": True,
                "items": [
                    _item("Users", "person", "auth_user"),
                    _item("Groups", "group", "auth_group"),
                    _item("Workspaces", "folder_open", "mcpregistry_workspace"),
                    _item("Credentials", "lock", "mcpregistry_credential"),
                    _item("Configuration", "settings", "mcpregistry_configuration"),
                ],
            },
        ],
    },
}
