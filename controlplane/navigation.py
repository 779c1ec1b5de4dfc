"""Where what is: eight areas by what people come to do, the pages within each, and how much waits
there.

Both shells, the admin's and that of the pages beside it, draw the same list
(``templates/web/navigation.html``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import get_script_prefix, reverse
from django.utils.translation import gettext_lazy as _

from mcpregistry.models import ApprovalRequest, Tool
from mcpregistry.queries.row_counts import counts
from subagents.queries import query_waiting_proposals

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

Counts = Callable[["WaitingCounts"], int]


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """How much waits for people, as far as this person may see it."""

    calls: int = 0
    definitions: int = 0
    proposals: int = 0


def waiting(request: HttpRequest) -> WaitingCounts:
    """Read once for each request and in one query, however many parts of the page show it."""
    known = getattr(request, "_slipsnisse_waiting", None)
    if known is None:
        known = WaitingCounts(**_count_waiting(request))
        request._slipsnisse_waiting = known  # type: ignore[attr-defined]
    return cast(WaitingCounts, known)


def _count_waiting(request: HttpRequest) -> dict[str, int]:
    wanted: list[tuple[str, str, QuerySet[Any]]] = [
        ("calls", "mcpregistry.view_approvalrequest", ApprovalRequest.objects.waiting()),
        ("definitions", "mcpregistry.view_tool", Tool.offers.waiting()),
        ("proposals", "subagents.view_proposal", query_waiting_proposals()),
    ]
    return counts(
        {name: rows for name, permission, rows in wanted if request.user.has_perm(permission)}
    )


@dataclass(frozen=True, slots=True)
class NavigationPage:
    """One entry: its address by URL name, who may see it, how much waits there, and the key that
    leads to it after ``g``. ``also``: more permissions that the page needs."""

    title: StrOrPromise
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

    title: StrOrPromise
    icon: str
    pages: tuple[NavigationPage, ...]


def _list(
    title: StrOrPromise, model: str, count: Counts | None = None, key: str = ""
) -> NavigationPage:
    app, _separator, name = model.rpartition("_")
    return NavigationPage(title, f"admin:{model}_changelist", f"{app}.view_{name}", count, key)


AREAS = (
    Area(_("Overview"), "dashboard", (NavigationPage(_("Overview"), "admin:index", "", key="o"),)),
    Area(
        _("Approvals"),
        "approval_delegation",
        (
            NavigationPage(
                _("Held calls"),
                "approvals:queue",
                "mcpregistry.view_approvalrequest",
                lambda n: n.calls,
                "a",
            ),
            NavigationPage(
                _("Definitions"),
                "definitions:inbox",
                "mcpregistry.view_definition",
                lambda n: n.definitions,
                "d",
            ),
            _list(_("Proposals of the sub-agent"), "subagents_proposal", lambda n: n.proposals),
            _list(_("Definition versions"), "mcpregistry_definition"),
            NavigationPage(_("History"), "approvals:history", "mcpregistry.view_approvalrequest"),
            NavigationPage(
                _("Approval statistics"), "approvals:figures", "mcpregistry.view_approvalrequest"
            ),
            _list(_("Permits"), "mcpregistry_permit"),
        ),
    ),
    Area(
        _("Servers"),
        "dns",
        (
            _list(_("Servers"), "mcpregistry_server", key="s"),
            NavigationPage(
                _("Add a server"),
                "admin:mcpregistry_server_set_up",
                "mcpregistry.add_server",
                key="n",
            ),
            _list(_("Tools, prompts, resources"), "mcpregistry_tool", key="t"),
            _list(_("Find servers"), "mcpregistry_registryentry"),
            _list(_("Registries"), "mcpregistry_registrysource"),
            _list(_("Packages"), "mcpregistry_install"),
            _list(_("Credentials"), "mcpregistry_credential"),
            _list(_("Maintenance requests"), "subagents_maintenancerequest"),
            _list(_("Trials"), "subagents_trialreport"),
            _list(_("Server tests"), "mcpregistry_servertest"),
            _list(_("Server events"), "mcpregistry_serverevent"),
            _list(_("Connections"), "mcpregistry_connection"),
        ),
    ),
    Area(
        _("Agents"),
        "smart_toy",
        (
            _list(_("Agents"), "mcpregistry_agent", key="e"),
            NavigationPage(_("Connect a host"), "connect", "mcpregistry.view_agent", key="h"),
            NavigationPage(
                _("Who can call what"),
                "who",
                "mcpregistry.view_grant",
                key="q",
                also=(
                    "mcpregistry.view_agent",
                    "mcpregistry.view_tool",
                    "mcpregistry.view_policyrule",
                ),
            ),
            NavigationPage(
                _("Access analyzer"),
                "analyzer",
                "mcpregistry.view_grant",
                also=("mcpregistry.view_invocation",),
            ),
            NavigationPage(
                _("Context bill"),
                "context-bill",
                "mcpregistry.view_grant",
                also=(
                    "mcpregistry.view_agent",
                    "mcpregistry.view_tool",
                    "mcpregistry.view_invocation",
                ),
            ),
            _list(_("Grants"), "mcpregistry_grant", key="w"),
            _list(_("Tokens"), "mcpregistry_token", key="k"),
            _list(_("Endpoints"), "mcpregistry_endpoint"),
            _list(_("Workspaces"), "mcpregistry_workspace"),
            _list(_("Project files"), "mcpregistry_projectfile"),
            _list(_("Conversations"), "mcpregistry_conversation"),
            _list(_("Host sessions"), "mcpregistry_hostsession"),
        ),
    ),
    Area(
        _("Rules and limits"),
        "policy",
        (
            _list(_("Rules"), "mcpregistry_policyrule", key="r"),
            NavigationPage(
                _("Explain a decision"),
                "admin:mcpregistry_policyrule_why",
                "mcpregistry.view_policyrule",
                key="y",
            ),
            _list(_("Budgets"), "mcpregistry_budget"),
            _list(_("Budget entries"), "mcpregistry_budgetentry"),
            _list(_("Energy pools"), "mcpregistry_energypool"),
            _list(_("Energy entries"), "mcpregistry_energyentry"),
        ),
    ),
    Area(
        _("Expert tools"),
        "psychology",
        (
            _list(_("Expert tools"), "subagents_experttool", key="x"),
            _list(_("Runs"), "subagents_run"),
            _list(_("Headends"), "subagents_headend"),
            _list(_("Hosted agents"), "subagents_effortagent"),
            _list(_("Models"), "subagents_languagemodel"),
            _list(_("Providers"), "subagents_provider"),
        ),
    ),
    Area(
        _("Record"),
        "history",
        (
            _list(_("Calls"), "mcpregistry_invocation", key="c"),
            NavigationPage(_("Usage"), "usage:index", "mcpregistry.view_invocation", key="u"),
            NavigationPage(_("Failures"), "usage:failures", "mcpregistry.view_invocation", key="f"),
            _list(_("Audit log"), "mcpregistry_auditentry", key="l"),
            NavigationPage(_("History"), "history-site", "mcpregistry.view_configuration"),
        ),
    ),
    Area(
        _("Site"),
        "settings",
        (
            _list(_("Users"), "auth_user", key="p"),
            _list(_("Invitations"), "mcpregistry_invitation"),
            _list(_("Groups"), "auth_group"),
            _list(_("Channels"), "mcpregistry_channel"),
            _list(_("Deliveries"), "mcpregistry_delivery"),
            _list(_("Slack members"), "mcpregistry_slackidentity"),
            _list(_("Configuration"), "mcpregistry_configuration"),
            NavigationPage(_("Docs"), "docs:index", "", key="b"),
        ),
    ),
)


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Unfold's ``SIDEBAR.navigation``: the areas with the pages that this person may see, and where
    they are."""
    addresses = _addresses(get_script_prefix())
    here = _nearest(request.path, [address for page, address in addresses])
    shown = {page: address for page, address in addresses if page.opens(request)}
    return [
        _build_area(area, shown, here, request)
        for area in AREAS
        if any(page in shown for page in area.pages)
    ]


@cache
def _addresses(prefix: str) -> list[tuple[NavigationPage, str]]:
    """Every page with its address, below the prefix that the server in front of us adds."""
    return [(page, reverse(page.url)) for area in AREAS for page in area.pages]


def _nearest(path: str, addresses: list[str]) -> str:
    """The page that this address is of or beneath; the overview is above all of them and holds
    none."""
    root = reverse("admin:index")
    if path == root:
        return root
    return max(
        (each for each in addresses if each != root and path.startswith(each)), key=len, default=""
    )


def _build_area(
    area: Area, shown: dict[NavigationPage, str], here: str, request: HttpRequest
) -> dict[str, Any]:
    items = [
        {
            "title": str(page.title),
            "link": shown[page],
            "active": shown[page] == here,
            "count": page.count(waiting(request)) if page.count else 0,
            "key": page.key,
        }
        for page in area.pages
        if page in shown
    ]
    return {
        "title": str(area.title),
        "icon": area.icon,
        "items": items,
        "here": any(item["active"] for item in items),
        "count": sum(cast(int, item["count"]) for item in items),
    }
