"""What the pages of setting up share: the list of steps above each, and how one is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from mcpregistry.admin.base import RecordAdmin
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Server
from mcpregistry.queries.setup_state import STEPS, SetupState

LABELS = {
    "read": _("Paste"),
    "confirm": _("Confirm"),
    "test": _("Test"),
    "definitions": _("Definitions"),
    "access": _("Access"),
}


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One of the five, as the list above a page shows it. ``address``: empty where it cannot be
    opened."""

    label: str
    done: bool
    here: bool
    address: str


def address(server: Server, step: str = "") -> str:
    """Of the next step of this server, or of the named one."""
    base = reverse("admin:mcpregistry_server_set_up_step", args=[server.pk])
    return f"{base}?step={step}" if step else base


def opens(standing: SetupState, step: str) -> bool:
    """Whether this step can be shown and taken: one that is done, the next one, and each whose
    needs are met."""
    needs = {"access": standing.serving > 0, "done": standing.serving > 0 and bool(standing.agents)}
    return needs.get(step, False) or (
        step in STEPS[1:] and (step in standing.done or step == standing.step)
    )


def steps(standing: SetupState | None, here: str) -> list[SetupStep]:
    """The five steps, each with its address where it can be opened."""
    found = []
    done = standing.done if standing else frozenset()
    for name in STEPS:
        where = address(standing.server, name) if standing and opens(standing, name) else ""
        found.append(SetupStep(str(LABELS[name]), name in done, name == here, where))
    return found


def connect_address(agents: Sequence[str]) -> str:
    """Where a host is connected, as the first of these agents."""
    return (
        f"{reverse('connect')}?{urlencode({'agent': agents[0]})}" if agents else reverse("connect")
    )


def show_page(
    admin: RecordAdmin,
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    *,
    status: int = 200,
) -> HttpResponse:
    """A page of the way, within the admin."""
    whole = admin.admin_site.each_context(request) | {"opts": admin.opts} | context
    return TemplateResponse(
        request, f"admin/mcpregistry/set_up/{template}.html", whole, status=status
    )


def title_of(server: Server) -> str:
    """The heading of the steps of one server."""
    return gettext("Set up {server}").format(server=show_invisible_characters(server.slug))
