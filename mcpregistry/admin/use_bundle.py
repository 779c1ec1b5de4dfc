"""The page behind "Configure and use package" of a bundle that asks for something: its settings,
entered by a person."""

from __future__ import annotations

from typing import cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from mcpregistry.admin.add_entry import WayForm, page_of
from mcpregistry.admin.base import actor
from mcpregistry.admin.record_page import RecordPage
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.installs.states import InstallState
from mcpregistry.domain.registry.install_options import InstallOption
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Install
from mcpregistry.services.access import credentials
from mcpregistry.services.registry import bundle_settings

PERMISSION = "mcpregistry.change_server"


class UseBundlePage(RecordPage[Install]):
    """A view of ``InstallAdmin``."""

    permissions = (PERMISSION,)

    def page(self, request: HttpRequest, install: Install) -> HttpResponse:
        """Show the form; a POST sets the server to the bundle with what was entered."""
        way = bundle_settings.find_bundle_option(install)
        if way is None or install.state != InstallState.INSTALLED:
            self.admin.message_user(
                request, gettext("The package has no settings to enter."), messages.ERROR
            )
            return HttpResponseRedirect(page_of(install))
        form = WayForm(way, request.POST if request.method == "POST" else None)
        if form.is_valid():
            try:
                server = bundle_settings.use_bundle(
                    install=install,
                    values=form.values(),
                    user=cast(User, request.user),
                    actor=actor(request),
                )
            except SlipsnisseError as error:
                form.add_error(None, str(error))
            else:
                told = gettext(
                    "The server {server} now uses the package. It is a draft until you confirm its launch."
                ).format(server=server.slug)
                self.admin.message_user(request, told, messages.SUCCESS)
                return HttpResponseRedirect(page_of(server))
        return self._show_form(request, install, way, form)

    def _show_form(
        self, request: HttpRequest, install: Install, way: InstallOption, form: forms.Form
    ) -> HttpResponse:
        secrets = any(each.secret for each in way.inputs) and not request.user.has_perms(
            credentials.MAY_KEEP
        )
        context = self.admin.admin_site.each_context(request) | {
            "title": gettext("Settings of {package}").format(
                package=show_invisible_characters(way.identifier, 200)
            ),
            "opts": self.admin.opts,
            "original": install,
            "way": way,
            "form": form,
            "back": page_of(install),
            "secrets": secrets,
            "server": install.server.slug if install.server else install.slug,
        }
        return TemplateResponse(request, "admin/mcpregistry/use_bundle.html", context)
