"""Invitations: making one shows its link once; withdrawing it is the only change."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models import Invitation
from mcpregistry.models.invitation import ROLE_CHOICES
from mcpregistry.services.access import invitations, roles

COLOURS = {"open": "success", "used": "info", "expired": "warning", "revoked": "danger"}


class InviteForm(forms.Form):
    """Whom, as what, and for how long the link works."""

    name = forms.CharField(
        label=_("Name"),
        max_length=200,
        help_text=_("Name of the invited person, for your own records."),
        widget=UnfoldAdminTextInputWidget,
    )
    role = forms.ChoiceField(
        choices=ROLE_CHOICES, initial=roles.APPROVER, widget=UnfoldAdminSelectWidget
    )
    days = forms.IntegerField(
        label=_("Validity (days)"),
        min_value=1,
        max_value=90,
        initial=invitations.DEFAULT_LIFE.days,
        help_text=_("Number of days until the link expires. The link can be used once."),
        widget=UnfoldAdminIntegerFieldWidget,
    )


def _withdraw(request: HttpRequest, invitation: Invitation) -> str:
    invitations.revoke(invitation=invitation, actor=actor(request))
    return gettext("The link no longer works.")


@admin.register(Invitation)
class InvitationAdmin(ReadOnlyAdmin):
    """Who was invited as what, and what became of it."""

    list_display = (
        "name",
        "role",
        "shown_state",
        "expires_at",
        "used_by",
        "created_by",
        "created_at",
    )
    list_filter = ("role",)
    list_select_related = ("used_by", "created_by")
    search_fields = ("name", "used_by__username")
    fields = (
        "name",
        "role",
        "shown_state",
        "created_by",
        "created_at",
        "expires_at",
        "used_by",
        "used_at",
        "revoked_at",
    )
    verbs = (
        Verb(
            "withdraw",
            _("Revoke invitation"),
            "change_invitation",
            "block",
            _("The link stops working."),
            _withdraw,
            applies=lambda invitation: invitation.state == "open",
            style="danger",
        ),
    )

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        return request.user.has_perms(invitations.MAY_INVITE)

    @display(description=_("state"), label=COLOURS)
    def shown_state(self, invitation: Invitation) -> str:
        return "revoked" if invitation.state == "withdrawn" else invitation.state

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The form, or on a valid POST the link: once and uncached."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = InviteForm(request.POST if request.method == "POST" else None)
        context: dict[str, Any] = self.admin_site.each_context(request) | {
            "title": gettext("Invite a user"),
            "opts": self.opts,
            "form": form,
        }
        if form.is_valid():
            try:
                context |= self._create_invitation(request, form)
            except SlipsnisseError as error:
                form.add_error(None, str(error))
        response = TemplateResponse(request, "admin/mcpregistry/invite.html", context)
        add_never_cache_headers(response)
        return response

    def _create_invitation(self, request: HttpRequest, form: InviteForm) -> dict[str, Any]:
        given = form.cleaned_data
        invitation, raw = invitations.invite(
            name=given["name"],
            role=given["role"],
            by=cast(User, request.user),
            life=timedelta(days=given["days"]),
        )
        # Behind "#", which browsers keep to themselves: no log of a server or proxy has it.
        return {
            "invitation": invitation,
            "link": request.build_absolute_uri(reverse("join")) + "#" + raw,
        }
