"""The page behind "Set the server to it" of a bundle that asks for something: its settings, entered by a person."""

from __future__ import annotations

from typing import cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from mcpregistry.admin.add_entry import WayForm, page_of
from mcpregistry.admin.base import ReadOnlyAdmin, actor
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.installs.states import InstallState
from mcpregistry.domain.registry.ways import Way
from mcpregistry.domain.text.display import printable
from mcpregistry.models import Install
from mcpregistry.services.registry import settings
from mcpregistry.services.registry.adding import MAY_KEEP_SECRETS

PERMISSION = "mcpregistry.change_server"


class UseBundlePage:
    """A view of ``InstallAdmin``."""

    def __init__(self, admin: ReadOnlyAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form; a POST sets the server to the bundle with what was entered."""
        install = self.admin.get_object(request, object_id)
        if install is None:
            return self.admin._get_obj_does_not_exist_redirect(request, self.admin.opts, object_id)
        if not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        way = settings.way_for(install)
        if way is None or install.state != InstallState.INSTALLED:
            self.admin.message_user(request, "There is nothing to be entered for it.", messages.ERROR)
            return HttpResponseRedirect(page_of(install))
        form = WayForm(way, request.POST if request.method == "POST" else None)
        if form.is_valid():
            try:
                server = settings.use(
                    install=install, values=form.values(), user=cast(User, request.user), actor=actor(request)
                )
            except SlipsnisseError as error:
                form.add_error(None, str(error))
            else:
                told = f"The server {server.slug} is set to it. Confirm its launch: until then it is a draft."
                self.admin.message_user(request, told, messages.SUCCESS)
                return HttpResponseRedirect(page_of(server))
        return self._shown(request, install, way, form)

    def _shown(self, request: HttpRequest, install: Install, way: Way, form: forms.Form) -> HttpResponse:
        secrets = any(each.secret for each in way.inputs) and not request.user.has_perms(MAY_KEEP_SECRETS)
        context = self.admin.admin_site.each_context(request) | {
            "title": f"Settings of {printable(way.identifier, 200)}", "opts": self.admin.opts, "original": install,
            "way": way, "form": form, "back": page_of(install), "secrets": secrets,
            "server": install.server.slug if install.server else install.slug,
        }  # fmt: skip
        return TemplateResponse(request, "admin/mcpregistry/use_bundle.html", context)
