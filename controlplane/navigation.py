"""Where what is: eight areas by what people come to do, the pages within each, and how much waits there.

Both shells, the admin's and that of the pages beside it, draw the same list (``templates/web/navigation.html``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import get_script_prefix, reverse

from mcpregistry.models import ApprovalRequest, Tool
from mcpregistry.queries.counting import counts
from subagents.queries import waiting_proposals

Counts = Callable[["Waiting"], int]


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much waits for people, as far as this person may see it."""

    calls: int = 0
    definitions: int = 0
    proposals: int = 0


def waiting(request: HttpRequest) -> Waiting:
    """Read once for each request and in one query, however many parts of the page show it."""
    known = getattr(request, "_slipsnisse_waiting", None)
    if known is None:
        known = request._slipsnisse_waiting = Waiting(**_counted(request))  # type: ignore[attr-defined]
    return cast(Waiting, known)


def _counted(request: HttpRequest) -> dict[str, int]:
    wanted: list[tuple[str, str, QuerySet[Any]]] = [
        ("calls", "mcpregistry.view_approvalrequest", ApprovalRequest.objects.waiting()),
        ("definitions", "mcpregistry.view_tool", Tool.offers.waiting()),
        ("proposals", "subagents.view_proposal", waiting_proposals()),
    ]
    return counts({name: rows for name, permission, rows in wanted if request.user.has_perm(permission)})


@dataclass(frozen=True, slots=True)
class Page:
    """One entry: its address by URL name, who may see it, how much waits there, and the key that leads to it after ``g``.
    ``also``: more permissions that the page needs."""

    title: str
    url: str
    permission: str
    count: Counts | None = None
    key: str = ""
    also: tuple[str, ...] = ()

    def opens(self, request: HttpRequest) -> bool:
        """Whether this person may open it."""
        return request.user.has_perms([name for name in (self.permission, *self.also) if name])


@dataclass(frozen=True, slots=True)
class Area:
    """What people come to do. One with a single page is that page."""

    title: str
    icon: str
    pages: tuple[Page, ...]


def _list(title: str, model: str, count: Counts | None = None, key: str = "") -> Page:
    app, _, name = model.rpartition("_")
    return Page(title, f"admin:{model}_changelist", f"{app}.view_{name}", count, key)


AREAS = (
    Area("Overview", "dashboard", (Page("Overview", "admin:index", "", key="o"),)),
    Area(
        "Approvals",
        "approval_delegation",
        (
            Page("Held calls", "approvals:queue", "mcpregistry.view_approvalrequest", lambda n: n.calls, "a"),
            Page("Definitions", "definitions:inbox", "mcpregistry.view_definition", lambda n: n.definitions, "d"),
            _list("Proposals of the sub-agent", "subagents_proposal", lambda n: n.proposals),
            _list("Definition versions", "mcpregistry_definition"),
            Page("History", "approvals:history", "mcpregistry.view_approvalrequest"),
            Page("Figures", "approvals:figures", "mcpregistry.view_approvalrequest"),
            _list("Permits", "mcpregistry_permit"),
        ),
    ),
    Area(
        "Servers",
        "dns",
        (
            _list("Servers", "mcpregistry_server", key="s"),
            Page("Add a server", "admin:mcpregistry_server_set_up", "mcpregistry.add_server", key="n"),
            _list("Tools, prompts, resources", "mcpregistry_tool", key="t"),
            _list("Find servers", "mcpregistry_registryentry"),
            _list("Registries", "mcpregistry_registrysource"),
            _list("Packages", "mcpregistry_install"),
            _list("Credentials", "mcpregistry_credential"),
            _list("Requests to the sub-agent", "subagents_maintenancerequest"),
            _list("Trials", "subagents_trialreport"),
            _list("Server tests", "mcpregistry_servertest"),
            _list("Server events", "mcpregistry_serverevent"),
            _list("Connections", "mcpregistry_connection"),
        ),
    ),
    Area(
        "Agents",
        "smart_toy",
        (
            _list("Agents", "mcpregistry_agent", key="e"),
            Page("Connect a host", "connect", "mcpregistry.view_agent", key="h"),
            Page(
                "Who can call what",
                "who",
                "mcpregistry.view_grant",
                key="q",
                also=("mcpregistry.view_agent", "mcpregistry.view_tool", "mcpregistry.view_policyrule"),
            ),
            Page("Access analyzer", "analyzer", "mcpregistry.view_grant", also=("mcpregistry.view_invocation",)),
            Page(
                "Context bill",
                "context-bill",
                "mcpregistry.view_grant",
                also=("mcpregistry.view_agent", "mcpregistry.view_tool", "mcpregistry.view_invocation"),
            ),
            _list("Grants", "mcpregistry_grant", key="w"),
            _list("Tokens", "mcpregistry_token", key="k"),
            _list("Endpoints", "mcpregistry_endpoint"),
            _list("Workspaces", "mcpregistry_workspace"),
            _list("Project files", "mcpregistry_projectfile"),
            _list("Conversations", "mcpregistry_conversation"),
            _list("Host sessions", "mcpregistry_hostsession"),
        ),
    ),
    Area(
        "Rules and limits",
        "policy",
        (
            _list("Rules", "mcpregistry_policyrule", key="r"),
            Page("Why?", "admin:mcpregistry_policyrule_why", "mcpregistry.view_policyrule", key="y"),
            _list("Budgets", "mcpregistry_budget"),
            _list("Budget entries", "mcpregistry_budgetentry"),
            _list("Energy pools", "mcpregistry_energypool"),
            _list("Energy entries", "mcpregistry_energyentry"),
        ),
    ),
    Area(
        "Expert tools",
        "psychology",
        (
            _list("Expert tools", "subagents_experttool", key="x"),
            _list("Runs", "subagents_run"),
            _list("Headends", "subagents_headend"),
            _list("Hosted agents", "subagents_effortagent"),
            _list("Models", "subagents_languagemodel"),
            _list("Providers", "subagents_provider"),
        ),
    ),
    Area(
        "Record",
        "history",
        (
            _list("Calls", "mcpregistry_invocation", key="c"),
            Page("Usage", "usage:index", "mcpregistry.view_invocation", key="u"),
            Page("What fails", "usage:failures", "mcpregistry.view_invocation", key="f"),
            _list("Audit log", "mcpregistry_auditentry", key="l"),
            Page("History", "history-site", "mcpregistry.view_configuration"),
        ),
    ),
    Area(
        "Site",
        "settings",
        (
            _list("People", "auth_user", key="p"),
            _list("Invitations", "mcpregistry_invitation"),
            _list("Groups", "auth_group"),
            _list("Channels", "mcpregistry_channel"),
            _list("Deliveries", "mcpregistry_delivery"),
            _list("Slack people", "mcpregistry_slackidentity"),
            _list("Configuration", "mcpregistry_configuration"),
            Page("Docs", "docs:index", "", key="b"),
        ),
    ),
)


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Unfold's ``SIDEBAR.navigation``: the areas with the pages that this person may see, and where they are."""
    addresses = _addresses(get_script_prefix())
    here = _nearest(request.path, [address for _, address in addresses])
    shown = {page: address for page, address in addresses if page.opens(request)}
    return [_shown(area, shown, here, request) for area in AREAS if any(page in shown for page in area.pages)]


@cache
def _addresses(prefix: str) -> list[tuple[Page, str]]:
    """Every page with its address, below the prefix that the server in front of us adds."""
    return [(page, reverse(page.url)) for area in AREAS for page in area.pages]


def _nearest(path: str, addresses: list[str]) -> str:
    """The page that this address is of or beneath; the overview is above all of them and holds none."""
    root = reverse("admin:index")
    if path == root:
        return root
    return max((each for each in addresses if each != root and path.startswith(each)), key=len, default="")


def _shown(area: Area, shown: dict[Page, str], here: str, request: HttpRequest) -> dict[str, Any]:
    items = [
        {
            "title": page.title,
            "link": shown[page],
            "active": shown[page] == here,
            "count": page.count(waiting(request)) if page.count else 0,
            "key": page.key,
        }
        for page in area.pages
        if page in shown
    ]
    return {
        "title": area.title,
        "icon": area.icon,
        "items": items,
        "here": any(item["active"] for item in items),
        "count": sum(cast(int, item["count"]) for item in items),
    }
