"""The page *Connect*: what to enter in a host, and whether it has called yet. It only reads; tokens
are issued elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminSelectWidget

from mcpregistry.admin.name_field import NameField
from mcpregistry.calls import catalog
from mcpregistry.domain.hosts.connection import BEARER_VARIABLE, EndpointConnection
from mcpregistry.domain.hosts.panel import CHOICES, Panel, build_panel
from mcpregistry.models import Agent, Endpoint
from mcpregistry.queries.calls import find_first_call
from mcpregistry.queries.setup_state import agents_of_hosts
from mcpregistry.services.hosts import host_connections
from mcpregistry.services.policy.table import find_commonest_cause

_STOP = 286  # the page takes this answer and asks no more
_LONGEST = timedelta(days=1)
_HOSTS = [(group, list(titles.items())) for group, titles in CHOICES.items()]
_AGENTS = agents_of_hosts()
_ENDPOINTS = Endpoint.objects.filter(enabled=True)
_WAYS = [
    ("stdio", _("stdio: the host starts a program on this machine")),
    ("workspace", _("stdio, with the MCP servers of the project files")),
    ("http", _("HTTP: the host connects over the network with a token")),
]


class ConnectForm(forms.Form):
    """Which host, as which agent, to which endpoint, and which way."""

    host = forms.ChoiceField(choices=_HOSTS, widget=UnfoldAdminSelectWidget)
    way = forms.ChoiceField(label=_("Connection"), choices=_WAYS, widget=UnfoldAdminSelectWidget)
    agent = NameField(
        "agent",
        _AGENTS,
        usable=True,
        empty_label=None,
        help_text=_("The agent whose grants, rules and limits apply."),
    )
    endpoint = NameField(
        "endpoint",
        _ENDPOINTS,
        usable=True,
        empty_label=None,
        help_text=_("The endpoint that the host connects to."),
    )


def connect(request: HttpRequest) -> HttpResponse:
    """The form, which is a GET that can be linked to, and below it what to do."""
    if not request.user.has_perms(("mcpregistry.view_agent", "mcpregistry.view_endpoint")):
        raise PermissionDenied
    form = ConnectForm(_defaults(request.GET) | request.GET.dict())
    context: dict[str, Any] = admin.site.each_context(request) | {
        "title": gettext("Connect a host"),
        "form": form,
    }
    if form.is_valid():
        context |= _describe_connection(request, form.cleaned_data)
    return TemplateResponse(request, "admin/mcpregistry/connect.html", context)


def live(request: HttpRequest) -> HttpResponse:
    """The part that waits for the first call since the page was opened; status 286 once there is
    one."""
    agent, endpoint = (
        request.GET.get(name, "").replace("\x00", "") for name in ("agent", "endpoint")
    )
    since = request.GET.get("since", "")
    if (
        not request.user.has_perm("mcpregistry.view_invocation")
        or not since.isdecimal()
        or len(since) > 11
    ):
        return HttpResponse(status=404)
    now = timezone.now()
    moment = max(datetime.fromtimestamp(int(since), UTC), now - _LONGEST)
    call = find_first_call(agent=agent, endpoint=endpoint, since=moment)
    context = {"call": call, "agent": agent, "endpoint": endpoint}
    return TemplateResponse(
        request, "admin/mcpregistry/connect_wait.html", context, status=_STOP if call else 200
    )


def with_token(
    request: HttpRequest, agent: Agent, endpoint: Endpoint | None, token: str
) -> dict[str, Any]:
    """For the page that shows a new token: every host's entry over HTTP with that token in it."""
    if endpoint is None:
        return {}
    connection = host_connections.build_connection(
        endpoint=endpoint.slug, agent=agent.slug, http=True, token=token
    )
    panels = [build_panel(slug, connection) for _, titles in _HOSTS for slug, _ in titles]
    usable = [{"panel": one, "writing": ""} for one in panels if not one.refused]
    return {"panels": usable, "endpoint": endpoint} | _waiting(request, agent.slug, endpoint.slug)


def _defaults(said: QueryDict) -> dict[str, str]:
    """What is chosen while nobody has chosen: what a new site has."""
    found = {"host": "claude-code", "way": "stdio"}
    for name, rows, usual in (("agent", _AGENTS, "local"), ("endpoint", _ENDPOINTS, "default")):
        if name in said:
            continue
        row = rows.filter(slug=usual).first() or rows.order_by("slug").first()
        if row:
            found[name] = row.slug
    return found


def _describe_connection(request: HttpRequest, said: dict[str, Any]) -> dict[str, Any]:
    agent = said["agent"]
    endpoint = said["endpoint"]
    http = said["way"] == "http"
    if said["way"] == "workspace":  # the directory in which the host runs decides the endpoint
        connection = host_connections.build_connection(endpoint="", agent=agent.slug, http=False)
        shown = {
            "agent": agent,
            "workspace": True,
            "seen": True,
            "withheld": host_connections.list_withheld_variables(),
        }
        return _panel(said["host"], connection) | shown
    connection = host_connections.build_connection(
        endpoint=endpoint.slug, agent=agent.slug, http=http
    )
    now = timezone.now()
    seen = catalog.can_see_anything(agent, endpoint, now=now)
    context = _panel(said["host"], connection) | {
        "agent": agent,
        "endpoint": endpoint,
        "http": http,
        "seen": seen,
        "cause": None if seen else find_commonest_cause(agent, endpoint, now),
    }
    context |= {
        "withheld": [] if http else host_connections.list_withheld_variables(),
        "variable": BEARER_VARIABLE,
    }
    return context | _waiting(request, agent.slug, endpoint.slug)


def _panel(slug: str, connection: EndpointConnection) -> dict[str, Any]:
    found: Panel = build_panel(slug, connection)
    return {
        "panel": found,
        "writing": host_connections.build_connect_command(slug, connection)
        if found.written
        else "",
    }


def _waiting(request: HttpRequest, agent: str, endpoint: str) -> dict[str, Any]:
    """Where to ask for the first call; nothing for who may see no calls."""
    if not request.user.has_perm("mcpregistry.view_invocation"):
        return {}
    asked = {"agent": agent, "endpoint": endpoint, "since": int(timezone.now().timestamp())}
    return {"live": f"{reverse('connect-live')}?{urlencode(asked)}"}
