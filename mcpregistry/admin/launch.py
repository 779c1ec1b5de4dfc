"""Confirming a launch: a person looks at exactly what will run or be reached, then allows it.

Opening the page decides nothing; only a POST with the hash of what was shown does, and the service
refuses a hash that is no longer the server's.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.servers.shown_env import shown_env
from mcpregistry.domain.text.display import printable
from mcpregistry.models import Server
from mcpregistry.models.server import Transport
from mcpregistry.services.servers import lifecycle


class LaunchPage:
    """The page behind "Confirm launch"; ``admin`` gives it records and permissions."""

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show what would run or be reached; a POST confirms exactly what was shown."""
        server = self.admin.get_object(request, object_id)
        if server is None:
            return self.admin._get_obj_does_not_exist_redirect(request, self.admin.opts, object_id)
        if not request.user.has_perm("mcpregistry.confirm_server"):
            raise PermissionDenied
        return self._confirm(request, server) if request.method == "POST" else self._show(request, server)

    def _confirm(self, request: HttpRequest, server: Server) -> HttpResponse:
        who = actor(request)
        try:
            lifecycle.confirm_launch(
                server=server, actor=who, launch_hash=request.POST.get("launch", ""), user=request.user
            )
        except SlipsnisseError as error:
            server.refresh_from_db()
            return self._show(request, server, refusal=str(error))
        self.admin.message_user(request, f"{server.slug} is active. Test it next.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:mcpregistry_server_change", args=[server.pk]))

    def _show(self, request: HttpRequest, server: Server, refusal: str = "") -> HttpResponse:
        context = self.admin.admin_site.each_context(request) | {
            "title": f"Confirm the launch of {printable(server.slug)}",
            "opts": self.admin.opts,
            "server": server,
            "original": server,
            "refusal": refusal,
        }
        try:
            context |= _facts(server)
        except SlipsnisseError as error:
            context |= {"refusal": str(error)}
        return TemplateResponse(
            request, "admin/mcpregistry/confirm_launch.html", context, status=409 if refusal else 200
        )


def _facts(server: Server) -> dict[str, Any]:
    facts: dict[str, Any] = {"launch": server.launch_hash(), "local": server.transport == Transport.STDIO}
    facts["limits"] = [(server._meta.get_field(n).verbose_name, value) for n, value in server.raised_limits().items()]  # type: ignore[union-attr]
    if not facts["local"]:
        return facts | {"headers": sorted(server.headers)}
    program = server.command[0] if server.command else ""
    return facts | {
        "env": shown_env(server.env).items(),
        "words": server.command,
        "program": program,
        "file": resolved(program),
    }


def resolved(program: str) -> str:
    """The file that would be executed now, links followed; empty when there is none."""
    found = shutil.which(program)
    return os.path.realpath(found) if found else ""
