"""Issuing a token: its text is in the answer to the POST and nowhere else, and never again."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from django import forms
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.admin.connect import with_token
from mcpregistry.admin.name_field import NameField
from mcpregistry.admin.record_page import RecordPage
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models import Agent, Endpoint, Token
from mcpregistry.services.access import tokens


class LifeForm(forms.Form):
    """What the token is for, and for how many days."""

    name = forms.CharField(
        max_length=200,
        help_text=_("What the token is for, for example the program and the machine."),
        widget=UnfoldAdminTextInputWidget,
    )
    days = forms.IntegerField(
        min_value=1,
        max_value=3650,
        initial=tokens.DEFAULT_LIFE.days,
        label=_("Validity (days)"),
        help_text=_("Number of days until the token expires."),
        widget=UnfoldAdminIntegerFieldWidget,
    )


class IssueForm(LifeForm):
    """Of an agent: also where its host is to be connected."""

    endpoint = NameField(
        "endpoint",
        Endpoint.objects.filter(enabled=True),
        usable=True,
        required=False,
        empty_label=None,
        help_text=_(
            "Endpoint for the connection instructions on the next page. The token is valid for all endpoints."
        ),
    )


class IssueTokenPage(RecordPage[Agent]):
    """The page behind "Issue token"; ``admin`` gives it records and permissions."""

    permissions = ("mcpregistry.add_token",)

    def page(self, request: HttpRequest, agent: Agent) -> HttpResponse:
        """Show the form, or on a valid POST the new token, once and uncached."""
        form = IssueForm(
            request.POST if request.method == "POST" else None, initial={"endpoint": "default"}
        )
        context = self.admin.admin_site.each_context(request) | {
            "title": gettext("Issue a token for {agent}").format(agent=agent.slug),
            "opts": self.admin.opts,
            "agent": agent,
            "original": agent,
            "form": form,
            "back": reverse("admin:mcpregistry_agent_change", args=[agent.pk]),
        }
        if form.is_valid():
            try:
                context["token"], context["issued"] = _issue_from_form(request, form, agent=agent)
                context |= with_token(
                    request, agent, form.cleaned_data["endpoint"], str(context["issued"])
                )
            except SlipsnisseError as error:
                form.add_error(None, str(error))
        return _show_once(request, context)


def own_token(request: HttpRequest, admin: RecordAdmin) -> HttpResponse:
    """The page behind "Add" of the list of tokens: one with which a program acts as this very
    person, and as nobody else."""
    form = LifeForm(request.POST if request.method == "POST" else None)
    context = admin.admin_site.each_context(request) | {
        "title": gettext("Create a token of your own"),
        "opts": admin.opts,
        "agent": None,
        "form": form,
        "back": reverse("admin:mcpregistry_token_changelist"),
    }
    if form.is_valid():
        try:
            context["token"], context["issued"] = _issue_from_form(
                request, form, user=cast(User, request.user)
            )
        except SlipsnisseError as error:
            form.add_error(None, str(error))
    return _show_once(request, context)


def _issue_from_form(
    request: HttpRequest, form: LifeForm, *, agent: Agent | None = None, user: User | None = None
) -> tuple[Token, str]:
    life = timedelta(days=form.cleaned_data["days"])
    return tokens.issue_token(
        name=form.cleaned_data["name"],
        actor=actor(request),
        agent=agent,
        user=user,
        expires_at=timezone.now() + life,
    )


@never_cache
def _show_once(request: HttpRequest, context: dict[str, object]) -> HttpResponse:
    return TemplateResponse(request, "admin/mcpregistry/issue_token.html", context)
