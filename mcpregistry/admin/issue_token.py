"""Issuing a token: its text is in the answer to the POST and nowhere else, and never again."""

from __future__ import annotations

from datetime import timedelta

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.services.access import tokens


class IssueForm(forms.Form):
    """What the token is for, and for how many days."""

    name = forms.CharField(
        max_length=200,
        help_text="What it is for, e.g. the program and machine that will hold it.",
        widget=UnfoldAdminTextInputWidget,
    )
    days = forms.IntegerField(
        min_value=1,
        max_value=3650,
        initial=tokens.DEFAULT_LIFE.days,
        label="Valid for",
        help_text="Days until it stops working by itself.",
        widget=UnfoldAdminIntegerFieldWidget,
    )


class IssueTokenPage:
    """The page behind "Issue token"; ``admin`` gives it records and permissions."""

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form, or on a valid POST the new token, once and uncached."""
        agent = self.admin.get_object(request, object_id)
        if agent is None:
            return self.admin._get_obj_does_not_exist_redirect(request, self.admin.opts, object_id)
        if not request.user.has_perm("mcpregistry.add_token"):
            raise PermissionDenied
        form = IssueForm(request.POST if request.method == "POST" else None)
        context = self.admin.admin_site.each_context(request) | {
            "title": f"Issue a token for {agent.slug}",
            "opts": self.admin.opts,
            "agent": agent,
            "original": agent,
            "form": form,
        }
        if form.is_valid():
            try:
                context["token"], context["issued"] = tokens.issue_token(
                    name=form.cleaned_data["name"],
                    actor=actor(request),
                    agent=agent,
                    expires_at=timezone.now() + timedelta(days=form.cleaned_data["days"]),
                )
            except SlipsnisseError as error:
                form.add_error(None, str(error))
        return _shown_once(request, context)


@never_cache
def _shown_once(request: HttpRequest, context: dict[str, object]) -> HttpResponse:
    return TemplateResponse(request, "admin/mcpregistry/issue_token.html", context)
