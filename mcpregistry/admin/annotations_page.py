"""What a tool does, as a person vouches for it, and auto-approval: buttons and a page for tools and
servers.

What a server claims counts for nothing until somebody confirms it here (``services.policy.rules``).
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminSelectWidget

from mcpregistry.admin.base import Verb, actor
from mcpregistry.admin.record_page import RecordPage
from mcpregistry.domain.errors import Conflict, SlipsnisseError
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Server, Tool
from mcpregistry.services.definitions import behaviour
from mcpregistry.services.policy import rules

RISK_COLOURS = {"low": "success", "medium": "warning", "high": "danger"}
WORDS = {
    "read_only": (_("Read-only"), _("The tool changes nothing anywhere.")),
    "destructive": (_("Destructive"), _("The tool may delete or overwrite data.")),
    "open_world": (
        _("Open world"),
        _("The tool reaches systems outside of its server, for example the internet."),
    ),
}
_CHOICES = [("", _("Not known (the worst is assumed)")), ("true", _("Yes")), ("false", _("No"))]


def rows_of(tool: Tool) -> list[dict[str, Any]]:
    """A row per annotation for the tool's page: what the server claims, what was confirmed, what
    counts for risk."""
    claimed = behaviour.read_claims(tool)
    risk = assess_risk(tool)
    return [
        {
            "label": label,
            "help": about,
            "claimed": claimed.get(name),
            "confirmed": getattr(tool, name),
            "counts": getattr(risk, name),
        }
        for name, (label, about) in WORDS.items()
    ]


def _confirm(request: HttpRequest, tool: Tool) -> str:
    behaviour.confirm_claims(tool=tool, actor=actor(request), seen=request.POST.get("seen", ""))
    return gettext(
        "You have confirmed what the server claims about this tool. This takes effect immediately."
    )


def has_unconfirmed_claims(tool: Tool) -> bool:
    """Whether the server claims something that nobody has confirmed as it is claimed."""
    return any(getattr(tool, name) != value for name, value in behaviour.read_claims(tool).items())


def _auto(request: HttpRequest, row: Tool | Server) -> str:
    what: dict[str, Any] = {"tool": row} if isinstance(row, Tool) else {"server": row}
    rules.auto_approve(actor=actor(request), **what)
    return gettext(
        "Agents that have a grant for {name} can now call it without approval, unless a rule that a user wrote decides otherwise."
    ).format(name=show_invisible_characters(str(row), 150))


def _ask_again(request: HttpRequest, row: Tool | Server) -> str:
    what: dict[str, Any] = {"tool": row} if isinstance(row, Tool) else {"server": row}
    rules.withdraw_auto_approval(actor=actor(request), **what)
    return gettext("Calls to {name} are no longer approved automatically.").format(
        name=show_invisible_characters(str(row), 150)
    )


def is_auto(row: Tool | Server) -> bool:
    """Whether a one-click auto-approval of this tool or server is in force."""
    return bool(
        rules.list_auto_rules(tool=row)
        if isinstance(row, Tool)
        else rules.list_auto_rules(server=row)
    )


AUTO_VERBS = (
    Verb(
        "auto-approve",
        _("Auto-approve"),
        "add_policyrule",
        "bolt",
        _("Run every granted call without asking."),
        _auto,
        applies=lambda row: not is_auto(row),
    ),
    Verb(
        "ask-again",
        _("Stop auto-approval"),
        "delete_policyrule",
        "back_hand",
        _("Delete the rule that approves the calls automatically."),
        _ask_again,
        applies=is_auto,
    ),
)
TOOL_VERBS = (
    Verb(
        "confirm-claims",
        _("Confirm claims"),
        "approve_definition",
        "verified",
        _("Confirm what the server claims about this tool."),
        _confirm,
        applies=has_unconfirmed_claims,
    ),
    Verb(
        "behaviour",
        _("Edit annotations"),
        "approve_definition",
        "tune",
        _("State whether the tool is read-only, destructive or open-world."),
        page="mcpregistry_tool_behaviour",
    ),
    *AUTO_VERBS,
)


def _choice(name: str) -> forms.TypedChoiceField:
    label, about = WORDS[name]
    return forms.TypedChoiceField(
        choices=_CHOICES,
        coerce=lambda text: text == "true",
        empty_value=None,
        required=False,
        label=label,
        help_text=about,
        widget=UnfoldAdminSelectWidget,
    )


class BehaviourForm(forms.Form):
    """Three annotations, each yes, no, or not known."""

    read_only = _choice("read_only")
    destructive = _choice("destructive")
    open_world = _choice("open_world")


class BehaviourPage(RecordPage[Tool]):
    """The page behind "Edit annotations"; ``admin`` gives it records and permissions."""

    permissions = ("mcpregistry.approve_definition",)

    def page(self, request: HttpRequest, tool: Tool) -> HttpResponse:
        """Show the form, or on a valid POST save it and go back to the tool."""
        initial = {name: _word(getattr(tool, name)) for name in WORDS}
        form = BehaviourForm(request.POST if request.method == "POST" else None, initial=initial)
        if form.is_valid() and (done := self._save(request, tool, form)):
            return done
        context = self.admin.admin_site.each_context(request) | {
            "title": gettext("Annotations of {tool}").format(
                tool=show_invisible_characters(tool.name, 100)
            ),
            "opts": self.admin.opts,
            "original": tool,
            "tool": tool,
            "behaviour": rows_of(tool),
            "seen": behaviour.fingerprint_behaviour(tool),
            "form": form,
        }
        return TemplateResponse(request, "admin/mcpregistry/behaviour.html", context)

    def _save(self, request: HttpRequest, tool: Tool, form: BehaviourForm) -> HttpResponse | None:
        try:
            seen = request.POST.get("seen", "")
            behaviour.confirm_annotations(
                tool=tool, actor=actor(request), seen=seen, **form.cleaned_data
            )
        except Conflict as error:
            tool.refresh_from_db()
            form.add_error(
                None,
                gettext(
                    "{error} {confirmed} To replace these annotations with yours, save again."
                ).format(error=error, confirmed=_describe_confirmed(tool)),
            )
            return None
        except SlipsnisseError as error:
            form.add_error(None, str(error))
            return None
        self.admin.message_user(
            request,
            gettext("The annotations of {tool} are saved.").format(
                tool=show_invisible_characters(tool.name, 100)
            ),
            messages.SUCCESS,
        )
        return HttpResponseRedirect(reverse("admin:mcpregistry_tool_change", args=[tool.pk]))


def _describe_confirmed(tool: Tool) -> str:
    """What is confirmed of the tool, in a sentence."""
    words = {None: gettext("not known"), True: "yes", False: "no"}
    said = ", ".join(
        f"{label.lower()}: {words[getattr(tool, name)]}" for name, (label, _) in WORDS.items()
    )
    return gettext("Currently confirmed: {annotations}.").format(annotations=said)


def _word(value: bool | None) -> str:
    return "" if value is None else str(value).lower()
