"""Trying a tool from its page: a form from its input schema, the ordinary pipeline, the result as
hosts would see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from asgiref.sync import async_to_sync
from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from mcp.shared.exceptions import MCPError
from unfold.widgets import (
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from mcpregistry.admin.base import actor
from mcpregistry.admin.call import CALL_COLOURS
from mcpregistry.admin.name_field import NameField
from mcpregistry.admin.record_page import RecordPage
from mcpregistry.admin.result_parts import parts_of
from mcpregistry.calls.call import CallOutcome
from mcpregistry.calls.tool_trial import ToolTrial, try_tool
from mcpregistry.domain.calls.requester import Requester
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.host_definitions import repair_definition
from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.domain.offer_kinds import RESOURCE, build_arguments_schema
from mcpregistry.domain.schema.fields import Field, list_fields, parse_field_text
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.gateway.host_answers import build_tool_result
from mcpregistry.ids import make_random_id
from mcpregistry.models import ApprovalRequest, Endpoint, Invocation, Tool
from mcpregistry.queries import call_story
from mcpregistry.queries.setup_state import agents_of_hosts
from mcpregistry.services.records.idempotency import KeyReused

_AGENTS = agents_of_hosts()
_CODE = {"spellcheck": "false", "autocomplete": "off", "class": "sn-code"}


class ToolTrialForm(forms.Form):
    """As which agent, at which endpoint, and the arguments: a field for each that the schema names,
    or all as JSON."""

    agent = NameField(
        "agent",
        _AGENTS,
        usable=True,
        empty_label=None,
        help_text=_("The agent whose grants and rules apply."),
    )
    endpoint = NameField(
        "endpoint",
        Endpoint.objects.filter(enabled=True),
        usable=True,
        empty_label=None,
        help_text=_("The endpoint that the call goes through."),
    )
    key = forms.RegexField(r"^[0-9a-f]{32}$", widget=forms.HiddenInput)
    raw = forms.CharField(
        required=False,
        strip=False,
        label=_("All arguments as JSON"),
        widget=UnfoldAdminTextareaWidget(
            attrs={"rows": 6, **_CODE, "placeholder": '{"path": "README.md"}'}
        ),
    )

    def __init__(self, schema: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked = {f"a{number}": field for number, field in enumerate(list_fields(schema))}
        self.fields |= {place: _input(field) for place, field in self.asked.items()}

    def arguments(self) -> list[tuple[Field, Any]]:
        """What the page lays out: each argument with its bound field."""
        return [(field, self[place]) for place, field in self.asked.items()]

    def clean(self) -> dict[str, Any]:
        """Adds ``said``, the arguments of the call."""
        cleaned = super().clean() or self.cleaned_data
        raw = str(cleaned.get("raw") or "").strip()
        cleaned["said"] = self._whole(raw) if raw else self._each(cleaned)
        return cleaned

    def _whole(self, raw: str) -> dict[str, Any]:
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self.add_error(
                "raw", _('Use a JSON object, for example {"path": "README.md"}, or leave it empty.')
            )
            return {}
        return value

    def _each(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for place, field in self.asked.items():
            # browsers send every line break as both
            text = str(cleaned.get(place) or "").replace("\r\n", "\n")
            if not text and field.required:
                self.add_error(place, _("The tool requires this argument."))
            elif text:
                try:
                    said[field.name] = parse_field_text(field, text)
                except ValueError as error:
                    self.add_error(place, str(error))
        return said


def _input(field: Field) -> forms.Field:
    """Never required for Django: what is given as JSON instead needs none of them."""
    common: dict[str, Any] = {
        "required": False,
        "label": show_invisible_characters(field.name, 100),
        "initial": field.default,
    }
    if field.kind in ("choice", "boolean"):
        listed = field.choices or ("true", "false")
        named = [
            (
                value,
                show_invisible_characters(
                    str(json.loads(value)) if value.startswith('"') else value, 100
                ),
            )
            for value in listed
        ]
        blank = []
        if not field.default:
            blank.append(("", "Choose…" if field.required else gettext("(left out)")))
        return forms.ChoiceField(choices=[*blank, *named], widget=UnfoldAdminSelectWidget, **common)
    if field.kind == "number":
        return forms.CharField(
            widget=UnfoldAdminTextInputWidget(attrs={"inputmode": "decimal", **_CODE}), **common
        )
    rows = 4 if field.kind == "json" else 1
    return forms.CharField(
        strip=False, widget=UnfoldAdminTextareaWidget(attrs={"rows": rows, **_CODE}), **common
    )


class TryToolPage(RecordPage[Tool]):
    """The page behind "Try tool"; ``admin`` gives it records and permissions."""

    permissions = ("mcpregistry.call_tool",)

    def page(self, request: HttpRequest, tool: Tool) -> HttpResponse:
        """Show the form; on a valid POST make the call, once for each form, and show its result
        above it."""
        if not self.admin.has_view_permission(request, tool):
            raise PermissionDenied
        definition = tool.pinned or tool.latest
        shown = repair_definition(tool.kind, definition.data).definition if definition else {}
        schema = build_arguments_schema(tool.kind, shown) if definition else {}
        given = {"endpoint": "default", "agent": "local"} | request.GET.dict()
        form = (
            ToolTrialForm(schema, request.POST)
            if request.method == "POST"
            else ToolTrialForm(schema, initial=given)
        )
        context = self.admin.admin_site.each_context(request) | {
            "title": gettext("Try {tool}").format(tool=show_invisible_characters(tool.name, 100)),
            "opts": self.admin.opts,
            "original": tool,
            "tool": tool,
            "serves": tool.status == "approved" and tool.enabled,
            "about": show_invisible_characters(str(definition.description), 600)
            if definition
            else "",
        }
        context |= {"form": form, "key": _key_of(form)}
        if form.is_bound and form.is_valid():
            context |= _call_tool(request, tool, form)
        return TemplateResponse(request, "admin/mcpregistry/try_tool.html", context)


def _key_of(form: ToolTrialForm) -> str:
    """The one that came with it: a call that it may have made stays its own until an outcome was
    shown."""
    return (
        str(form["key"].value()) if form.is_bound and not form["key"].errors else make_random_id()
    )


def _call_tool(request: HttpRequest, tool: Tool, form: ToolTrialForm) -> dict[str, Any]:
    """What became of it, with a new key for the next call; after a refusal nothing, so that the
    form keeps its key."""
    said = form.cleaned_data
    user = request.user
    trial = ToolTrial(
        said["agent"].slug,
        said["endpoint"].slug,
        tool.server.slug,
        tool.name,
        tool.kind,
        _arguments(tool, said["said"]),
        said["key"],
    )
    try:
        outcome = async_to_sync(try_tool)(
            trial, actor=actor(request), requester=Requester(user.pk, user.get_username())
        )
    except KeyReused:
        form.add_error(
            None,
            _(
                "This form was already used for another call, so nothing was sent. To make this call, submit the "
                "form again."
            ),
        )
        return {"key": make_random_id()}
    except SlipsnisseError as error:
        form.add_error(
            None, show_invisible_characters(f"{error.message} {error.remedy}".strip(), 1_000)
        )
        return {}
    return (
        {"outcome": outcome, "tried": trial, "key": make_random_id()}
        | _describe_result(outcome)
        | _list_links(request, tool, trial, outcome)
    )


def _arguments(tool: Tool, said: dict[str, Any]) -> dict[str, Any]:
    return {"uri": tool.name} if tool.kind == RESOURCE else said


def _describe_result(outcome: CallOutcome) -> dict[str, Any]:
    """The result as a host gets it: our own words where the server said nothing."""
    try:
        result = (
            outcome.result
            if outcome.result is not None
            else build_tool_result(outcome, legacy=False)
        )
    except MCPError as error:
        result = {"isError": True, "content": [{"type": "text", "text": str(error)}]}
    structured = result.get("structuredContent")
    return {
        "parts": parts_of(result),
        "failed": result.get("isError") is True,
        "structured": structured,
        "colour": CALL_COLOURS.get(outcome.state.value, ""),
        "whole": json.dumps(result, ensure_ascii=False, default=str),
    }


def _list_links(
    request: HttpRequest, tool: Tool, trial: ToolTrial, outcome: CallOutcome
) -> dict[str, Any]:
    """Where to look next, as far as this person may. Addresses have the arguments as they are
    recorded, or none."""
    call = outcome.ticket.call_id if outcome.ticket else outcome.invocation_id
    found: dict[str, Any] = {}
    if request.user.has_perm("mcpregistry.view_invocation"):
        found["call_url"] = reverse("admin:mcpregistry_invocation_change", args=[call])
    if request.user.has_perm("mcpregistry.view_policyrule"):
        recorded = Invocation.objects.filter(pk=call).only("arguments").first()
        asked = {"agent": trial.agent, "endpoint": trial.endpoint, "tool": str(tool)}
        asked |= {"arguments": call_story.arguments_of(recorded) if recorded else ""}
        found["why_url"] = f"{reverse('admin:mcpregistry_policyrule_why')}?{urlencode(asked)}"
    if outcome.ticket and outcome.state not in TERMINAL:
        held = ApprovalRequest.objects.filter(pk=outcome.ticket.id)
        found["approval_url"] = reverse("approvals:detail", args=[outcome.ticket.id])
        found["may_confirm"] = held.filter(requester_may_confirm=True).exists()
    return found
