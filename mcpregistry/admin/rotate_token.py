"""Replacing a token without a gap: the new one is shown once, the old one works a while longer."""

from __future__ import annotations

from datetime import timedelta

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from unfold.widgets import UnfoldAdminSelectWidget

from mcpregistry.admin.base import actor
from mcpregistry.admin.record_page import RecordPage
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models import Token
from mcpregistry.services.access import tokens

_OVERLAPS = [("0", _("immediately")), ("1", _("1 hour")), ("24", _("1 day")), ("168", _("7 days"))]


class RotateForm(forms.Form):
    """How long both work."""

    hours = forms.ChoiceField(
        label=_("Expiry of the old token"),
        choices=_OVERLAPS,
        initial="24",
        help_text=_(
            "When the old token expires. Until then, both tokens are valid, so that you can replace the old "
            "one without an interruption."
        ),
        widget=UnfoldAdminSelectWidget,
    )


class RotateTokenPage(RecordPage[Token]):
    """The page behind "Rotate"; ``admin`` gives it records and permissions."""

    permissions = ("mcpregistry.add_token", "mcpregistry.change_token")

    def page(self, request: HttpRequest, old: Token) -> HttpResponse:
        """Show the form, or on a valid POST the new token, once and uncached."""
        if not may_be_shown(old, request):
            raise PermissionDenied(gettext("Only the owner of a token can view its value."))
        form = RotateForm(request.POST if request.method == "POST" else None)
        context = self.admin.admin_site.each_context(request) | {
            "title": gettext("Rotate {token}…").format(token=old.prefix),
            "opts": self.admin.opts,
            "old": old,
            "original": old,
            "form": form,
        }
        if form.is_valid():
            overlap = timedelta(hours=int(form.cleaned_data["hours"]))
            try:
                context["token"], context["issued"] = tokens.rotate_token(
                    token=old, actor=actor(request), overlap=overlap
                )
                old.refresh_from_db()
                context["overlaps"] = bool(overlap)
            except SlipsnisseError as error:
                form.add_error(None, str(error))
        return _show_once(request, context)


def may_be_shown(token: Token, request: HttpRequest) -> bool:
    """Whether this person may see the text of the token's successor: an agent's, or one of their
    own."""
    return token.user_id in (None, request.user.pk)


@never_cache
def _show_once(request: HttpRequest, context: dict[str, object]) -> HttpResponse:
    return TemplateResponse(request, "admin/mcpregistry/rotate_token.html", context)
