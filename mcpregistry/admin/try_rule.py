"""Trying a draft rule on the real calls of the last days. Nothing is saved."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from mcpregistry.admin.base import RecordAdmin
from mcpregistry.admin.name_field import NameField
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.policy.conditions import LONGEST, ConditionInvalid
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.models import Agent, Endpoint, PolicyRule, Server
from mcpregistry.services.policy import rules
from mcpregistry.services.policy.drafts import fill_rule
from mcpregistry.services.policy.replay import ReplayReport, replay

MOST = 20_000  # calls that one page looks at
_TOOLS_SHOWN = 50


class RuleTrialForm(forms.Form):
    """The parts of a rule that say which calls it is about and what follows."""

    outcome = forms.ChoiceField(
        choices=PolicyRule.OUTCOMES, initial="ask", widget=UnfoldAdminSelectWidget
    )
    priority = forms.IntegerField(initial=100, widget=UnfoldAdminIntegerFieldWidget)
    server = NameField("server", Server.objects.all(), required=False)
    tool = forms.CharField(
        required=False,
        max_length=600,
        help_text=_("Name of one tool as server::tool. If empty, the rule matches all tools."),
        widget=UnfoldAdminTextInputWidget,
    )
    agent = NameField("agent", Agent.objects.all(), required=False)
    endpoint = NameField("endpoint", Endpoint.objects.all(), required=False)
    condition = forms.CharField(
        required=False,
        max_length=LONGEST,
        help_text=_(
            "CEL expression with args, tool, server, agent and call, for example args.amount > 100 || "
            'tool.risk == "high". If empty, the rule matches every call.'
        ),
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "spellcheck": "false"}),
    )
    days = forms.IntegerField(
        initial=7,
        min_value=1,
        max_value=365,
        label=_("Period (days)"),
        help_text=_("How many days of past calls are checked, counted back from now."),
        widget=UnfoldAdminIntegerFieldWidget,
    )

    def draft(self, rule: PolicyRule) -> PolicyRule:
        """The rule changed as the form says, unsaved. Raises ``SlipsnisseError`` for a rule that
        cannot be used."""
        said = self.cleaned_data
        scope = {
            name: str(said[name]) if said[name] else None
            for name in ("server", "agent", "endpoint")
        }
        plain = {name: said[name] for name in ("outcome", "priority", "tool", "condition")}
        draft = fill_rule(rule, plain | scope)
        rules.check_rule(draft)
        return draft


MAY_SEE_CALLS = "mcpregistry.view_invocation"


class TryRulePage:
    """The page behind "Try on past calls"; ``admin`` gives it records and permissions."""

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, object_id: int | None = None) -> HttpResponse:
        """Show the form, and on a valid POST what the draft would have decided."""
        rule = (
            self.admin.get_object(request, str(object_id))
            if object_id
            else PolicyRule(name="draft")
        )
        if rule is None:
            return self.admin._get_obj_does_not_exist_redirect(
                request, self.admin.opts, str(object_id)
            )
        if not (self.admin.has_view_permission(request) and request.user.has_perm(MAY_SEE_CALLS)):
            raise PermissionDenied
        form = _form(request, rule)
        context = self.admin.admin_site.each_context(request) | {
            "title": gettext("Try a rule on past calls")
            if not rule.pk
            else gettext('Try "{rule}" on past calls').format(rule=rule),
            "opts": self.admin.opts,
            "original": rule if rule.pk else None,
            "form": form,
            "may_make_live": rule.draft and self.admin.has_change_permission(request),
        }
        if form.is_valid():
            context |= _try_rule(form, rule)
        return TemplateResponse(request, "admin/mcpregistry/try_rule.html", context)


def _form(request: HttpRequest, rule: PolicyRule) -> RuleTrialForm:
    """A saved draft is tried as soon as its page is opened: its author comes here to see that."""
    if request.method == "POST":
        return RuleTrialForm(request.POST)
    initial = _initial(rule)
    return (
        RuleTrialForm(initial | {name: str(getattr(rule, name) or "") for name in _CHOSEN})
        if rule.draft
        else RuleTrialForm(initial=initial)
    )


_CHOSEN = ("server", "agent", "endpoint")


def _initial(rule: PolicyRule) -> dict[str, Any]:
    names = ("outcome", "priority", "server", "agent", "endpoint", "condition")
    return {name: getattr(rule, name) for name in names} | {"tool": str(rule.tool or ""), "days": 7}


def _try_rule(form: RuleTrialForm, rule: PolicyRule) -> dict[str, Any]:
    try:
        draft = form.draft(rule)
    except SlipsnisseError as error:
        form.add_error("condition" if isinstance(error, ConditionInvalid) else None, str(error))
        return {}
    report = replay(drafts=[draft], days=form.cleaned_data["days"], now=timezone.now(), most=MOST)
    return {
        "report": report,
        "tools": _by_tool(report),
        "changes": report.changes.most_common(_TOOLS_SHOWN),
        "left_out": max(0, report.found - report.looked_at),
    }


def _by_tool(report: ReplayReport) -> list[tuple[str, int, int, int]]:
    """Tool, held, denied, let through; the busiest first."""
    ordered = sorted(report.by_tool.items(), key=lambda pair: (-sum(pair[1].values()), pair[0]))
    return [
        (tool, counts[RuleOutcome.ASK], counts[RuleOutcome.DENY], counts[RuleOutcome.ALLOW])
        for tool, counts in ordered[:_TOOLS_SHOWN]
    ]
