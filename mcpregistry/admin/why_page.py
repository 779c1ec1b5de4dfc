"""The page that says why: every stage between an agent and a tool, and the rule that decides."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminTextInputWidget

from mcpregistry.admin.base import RecordAdmin
from mcpregistry.admin.fields import JsonField
from mcpregistry.admin.name_field import NameField
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models import Agent, Endpoint
from mcpregistry.services.policy.explain import explain_decision, find_tool


class WhyForm(forms.Form):
    """Agent, endpoint, tool and, if wanted, the arguments of the call in question."""

    agent = NameField("agent", Agent.objects.all())
    endpoint = NameField("endpoint", Endpoint.objects.all())
    tool = forms.CharField(
        max_length=600,
        help_text=_(
            "Name of the tool as server::tool or as hosts see it, for example git__git_commit."
        ),
        widget=UnfoldAdminTextInputWidget,
    )
    arguments = JsonField(
        required=False,
        help_text=_(
            'Arguments of the call as a JSON object, for example {"amount": 250}. If empty, conditions on '
            "arguments are not evaluated."
        ),
    )

    def clean_arguments(self) -> dict[str, Any] | None:
        """Refuse arguments that are no object."""
        value = self.cleaned_data["arguments"]
        if value is not None and not isinstance(value, dict):
            raise forms.ValidationError(_('Use a JSON object, for example {"amount": 250}.'))
        return value


class WhyPage:
    """The page "Why?"; it only reads, so its form is a GET that can be linked to."""

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Show the form, and once it is filled in every stage of the decision."""
        if not self.admin.has_view_permission(request):
            raise PermissionDenied
        asked = bool(request.GET.get("tool"))
        form = WhyForm(request.GET) if asked else WhyForm(initial={"endpoint": "default"})
        context = self.admin.admin_site.each_context(request) | {
            "title": gettext("Explain a decision"),
            "opts": self.admin.opts,
            "form": form,
        }
        if asked and form.is_valid():
            context["why"] = _answer(form)
        return TemplateResponse(request, "admin/mcpregistry/why.html", context)


def _answer(form: WhyForm) -> Any:
    said = form.cleaned_data
    try:
        tool = find_tool(said["tool"], styles=(said["endpoint"].naming_style, "double"))
        return explain_decision(
            agent=said["agent"],
            endpoint=said["endpoint"],
            tool=tool,
            now=timezone.now(),
            arguments=said["arguments"],
        )
    except SlipsnisseError as error:
        form.add_error("tool", str(error))
        return None
