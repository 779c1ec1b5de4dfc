"""What a tool does, as a person vouches for it, and auto-approval: buttons and a page for tools and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminSelectWidget

from mcpregistry.admin.base import Verb, actor
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.reveal import reveal
from mcpregistry.domain.risk import risk_of
from mcpregistry.models import Server, Tool
from mcpregistry.services import policy

if TYPE_CHECKING:
    from mcpregistry.admin.tool import ToolAdmin

RISK_COLOURS = {"low": "success", "medium": "warning", "high": "danger"}
WORDS = {
    "read_only": ("Only reads", "It changes nothing anywhere."),
    "destructive": ("Destructive", "It may delete or overwrite what was there."),
    "open_world": ("Open world", "It reaches things outside the server's own, as the internet."),
}
_CHOICES = [("", "Not known: the worst is assumed"), ("true", "Yes"), ("false", "No")]


def behaviour(tool: Tool) -> list[dict[str, Any]]:
    """Claim beside confirmation, for the tool's page."""
    claimed, risk = policy.claims(tool), risk_of(tool)
    return [
        {"label": label, "help": about, "claimed": claimed.get(name), "confirmed": getattr(tool, name),
         "counts": getattr(risk, name)}
        for name, (label, about) in WORDS.items()
    ]  # fmt: skip


def _confirm(request: HttpRequest, tool: Tool) -> str:
    policy.confirm_claims(tool=tool, actor=actor(request))
    return "What the server claims about the tool now counts, because you vouch for it."


def unconfirmed(tool: Tool) -> bool:
    return any(getattr(tool, name) != value for name, value in policy.claims(tool).items())


def _auto(request: HttpRequest, row: Tool | Server) -> str:
    what: dict[str, Any] = {"tool": row} if isinstance(row, Tool) else {"server": row}
    policy.auto_approve(actor=actor(request), **what)
    return (
        f"Granted calls of {reveal(str(row), 150)} run at once now, unless a rule that a person wrote says otherwise."
    )


def _ask_again(request: HttpRequest, row: Tool | Server) -> str:
    what: dict[str, Any] = {"tool": row} if isinstance(row, Tool) else {"server": row}
    policy.withdraw_auto_approval(actor=actor(request), **what)
    return f"{reveal(str(row), 150)} is no longer approved ahead."


def is_auto(row: Tool | Server) -> bool:
    return bool(policy.auto_rules(tool=row) if isinstance(row, Tool) else policy.auto_rules(server=row))


AUTO_VERBS = (
    Verb("auto-approve", "Auto-approve", "add_policyrule", "bolt", "Let every granted call run without being asked.",
         _auto, applies=lambda row: not is_auto(row)),
    Verb("ask-again", "Stop auto-approving", "delete_policyrule", "back_hand", "Take the auto-approval back.",
         _ask_again, applies=is_auto),
)  # fmt: skip
TOOL_VERBS = (
    Verb("confirm-claims", "Confirm what it claims", "approve_definition", "verified",
         "Vouch for the server's own claims about this tool.", _confirm, applies=unconfirmed),
    Verb("behaviour", "Say what it does", "approve_definition", "tune", "Read-only, destructive, open world.",
         page="mcpregistry_tool_behaviour"),
    *AUTO_VERBS,
)  # fmt: skip


def _choice(name: str) -> forms.TypedChoiceField:
    label, about = WORDS[name]
    return forms.TypedChoiceField(
        choices=_CHOICES, coerce=lambda text: text == "true", empty_value=None, required=False, label=label,
        help_text=about, widget=UnfoldAdminSelectWidget,
    )  # fmt: skip


class BehaviourForm(forms.Form):
    read_only = _choice("read_only")
    destructive = _choice("destructive")
    open_world = _choice("open_world")


class BehaviourPage:
    """The view; ``admin`` gives it records and permissions."""

    def __init__(self, admin: ToolAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, object_id: str) -> HttpResponse:
        tool = self.admin.get_object(request, object_id)
        if tool is None:
            return self.admin._get_obj_does_not_exist_redirect(request, self.admin.opts, object_id)
        if not request.user.has_perm("mcpregistry.approve_definition"):
            raise PermissionDenied
        initial = {name: _word(getattr(tool, name)) for name in WORDS}
        form = BehaviourForm(request.POST if request.method == "POST" else None, initial=initial)
        if form.is_valid() and (done := self._save(request, tool, form)):
            return done
        context = self.admin.admin_site.each_context(request) | {
            "title": f"What does {reveal(tool.name, 100)} do?",
            "opts": self.admin.opts,
            "original": tool,
            "tool": tool,
            "behaviour": behaviour(tool),
            "form": form,
        }
        return TemplateResponse(request, "admin/mcpregistry/behaviour.html", context)

    def _save(self, request: HttpRequest, tool: Tool, form: BehaviourForm) -> HttpResponse | None:
        try:
            policy.confirm_annotations(tool=tool, actor=actor(request), **form.cleaned_data)
        except SlipsnisseError as error:
            form.add_error(None, str(error))
            return None
        self.admin.message_user(request, f"{reveal(tool.name, 100)}: what you said counts.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:mcpregistry_tool_change", args=[tool.pk]))


def _word(value: bool | None) -> str:
    return "" if value is None else str(value).lower()
