"""The background sub-agent's pages: ask it for something, watch it work, stop it, and decide what
it proposes."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.admin.live_parts import LiveAdmin, LivePart
from mcpregistry.admin.name_field import NameField
from mcpregistry.domain.servers.redacted_env import mask_field_secrets, mask_record_secrets
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Configuration, Server
from mcpregistry.services.servers.lifecycle import may_see_secrets_of_launch
from subagents.admin.choose import ChoosePage, choices
from subagents.domain.maintenance import ControlRequest, Kind, Priority, ProposalState, State
from subagents.maintenance import proposals, queue, supervision
from subagents.models import MaintenanceRequest, Proposal, TrialReport

STATE_COLOURS = {
    "completed": "success",
    "failed": "danger",
    "in_progress": "info",
    "queued": "info",
}
PROPOSAL_COLOURS = {"waiting": "warning", "applied": "success", "declined": "info"}
MAY_SWITCH = "mcpregistry.change_configuration"
MESSAGES_SHOWN = 50  # the newest: one that is paused and resumed all day has many
_ASKED = {
    Kind.TEST: _("Test a server"),
    Kind.TRY: _("Run a trial of a server"),
    Kind.SEARCH: _("Search for servers"),
    Kind.ADD: _("Propose a new server"),
    Kind.REMOVE: _("Propose deleting a server"),
}


class MaintenanceRequestForm(forms.ModelForm):  # type: ignore[type-arg]
    """What people ask for by hand; changes of a server they make on its own page."""

    kind = forms.ChoiceField(
        label=_("Request"),
        choices=[(kind.value, words) for kind, words in _ASKED.items()],
        widget=UnfoldAdminSelectWidget,
    )
    server = forms.SlugField(
        required=False,
        max_length=63,
        widget=UnfoldAdminTextInputWidget,
        help_text=_(
            "Short name of the server, or the name for a new server. Leave this field empty for a search."
        ),
    )
    words = forms.CharField(
        required=False,
        max_length=200,
        label=_("Text"),
        widget=UnfoldAdminTextInputWidget,
        help_text=_("What to search for, what the server is for, or why it should be deleted."),
    )
    for_agent = NameField(
        "agent",
        Agent.objects.order_by("slug"),
        required=False,
        empty_label=_("no agent"),
        label=_("For agent"),
        help_text=_(
            "For a trial: the agent to which the proposed tools are granted. If empty, the tools are approved"
            " but not granted."
        ),
    )
    priority = forms.TypedChoiceField(
        coerce=int,
        initial=Priority.MEDIUM,
        choices=[(each.value, each.name.lower()) for each in Priority],
        widget=UnfoldAdminSelectWidget,
    )

    class Meta:
        model = MaintenanceRequest
        fields = ()

    def clean(self) -> dict[str, Any]:
        found = super().clean() or {}
        kind = found.get("kind")
        if kind == Kind.SEARCH and not found.get("words"):
            self.add_error("words", _("Enter what to search for."))
        if kind != Kind.SEARCH and not found.get("server"):
            self.add_error("server", _("Enter the name of the server."))
        if kind != Kind.TRY and found.get("for_agent"):
            self.add_error("for_agent", _("Only a trial can propose grants."))
        return found

    def params(self) -> dict[str, Any]:
        """As the queue takes them."""
        given = self.cleaned_data
        match Kind(given["kind"]):
            case Kind.SEARCH:
                return {"query": given["words"], "limit": 10}
            case Kind.ADD:
                return {"server": given["server"], "purpose": given["words"], "fields": {}}
            case Kind.REMOVE:
                return {"server": given["server"], "reason": given["words"]}
            case Kind.TRY if agent := given["for_agent"]:
                return {"server": given["server"], "for_agent": agent.slug}
            case _:
                return {"server": given["server"]}


def _cancel(request: HttpRequest, row: MaintenanceRequest) -> str:
    queue.cancel(request_id=row.pk, actor=actor(request), reason="requested by a user")
    return gettext("The request stops within a second, with everything that it has started.")


def _pause(request: HttpRequest, row: MaintenanceRequest) -> str:
    queue.pause(request_id=row.pk, actor=actor(request))
    return gettext("The request is paused within a second, until a user resumes it.")


def _resume(request: HttpRequest, row: MaintenanceRequest) -> str:
    queue.resume(request_id=row.pk, actor=actor(request))
    return gettext("The request continues after its last completed step.")


@admin.register(MaintenanceRequest)
class MaintenanceRequestAdmin(LiveAdmin, ReadOnlyAdmin):
    """Requests: asked by a form, then only watched, paused and cancelled."""

    form = MaintenanceRequestForm
    list_display = (
        "shown_kind",
        "server_slug",
        "shown_state",
        "shown_progress",
        "shown_priority",
        "asked_by",
        "created_at",
    )
    list_filter = ("state", "kind", "priority")
    search_fields = ("=id", "server_slug", "agent", "requested_by", "message", "error")
    search_help_text = _("ID, server, agent, requester, message or error")
    sortable_by = ("created_at",)
    list_before_template = "admin/subagents/switch.html"
    change_form_outer_before_template = "admin/subagents/maintenance.html"
    verbs = (
        Verb(
            "cancel",
            _("Cancel request"),
            "subagents.change_maintenancerequest",
            "cancel",
            _("End the request now."),
            _cancel,
            applies=lambda row: row.finished_at is None,
            style="danger",
        ),
        Verb(
            "pause",
            _("Pause request"),
            "subagents.change_maintenancerequest",
            "pause",
            _("Pause the request until it is resumed."),
            _pause,
            applies=lambda row: row.finished_at is None and row.wish == "",
        ),
        Verb(
            "resume",
            _("Resume request"),
            "subagents.change_maintenancerequest",
            "play_arrow",
            _("Continue the request."),
            _resume,
            applies=lambda row: row.finished_at is None and row.wish == ControlRequest.PAUSE,
        ),
    )

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.switch_view)
        return [path("switch/<slug:to>/", view, name=self._name("switch")), *super().get_urls()]

    def switch_view(self, request: HttpRequest, to: str) -> HttpResponse:
        """POST switches the sub-agent on or off for the whole site."""
        if request.method == "POST" and request.user.has_perm(MAY_SWITCH):
            supervision.switch(on=to == "on", actor=actor(request))
        return HttpResponseRedirect(reverse(f"admin:{self._name('changelist')}"))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        on = Configuration.load().sub_agent_enabled
        facts = {"sub_agent_on": on, "may_switch": request.user.has_perm(MAY_SWITCH)}
        return super().changelist_view(request, facts | (extra_context or {}))

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        return bool(request.user.has_perm("subagents.add_maintenancerequest"))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            ("kind", "server", "words", "for_agent", "priority")
            if obj is None
            else (("requested_by", "agent"), "worker")
        )

    def save(self, request: HttpRequest, row: Any, form: Any) -> None:
        asked = queue.ask(
            kind=Kind(form.cleaned_data["kind"]),
            params=form.params(),
            actor=actor(request),
            priority=Priority(form.cleaned_data["priority"]),
        )
        row.__dict__.update(asked.__dict__)

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """To its page, where one can watch it."""
        return HttpResponseRedirect(reverse(f"admin:{self._name('change')}", args=[obj.pk]))

    @display(description=_("type"))
    def shown_kind(self, row: MaintenanceRequest) -> str:
        return row.kind.replace("_", " ")

    @display(description=_("state"), label=STATE_COLOURS)
    def shown_state(self, row: MaintenanceRequest) -> tuple[str, str]:
        state = row.state.replace("_", " ")
        return row.state, f"{state}: {row.substate}" if row.substate else state

    @display(description=_("progress"))
    def shown_progress(self, row: MaintenanceRequest) -> str:
        return f"{row.progress} %"

    @display(description=_("priority"))
    def shown_priority(self, row: MaintenanceRequest) -> str:
        return Priority(row.priority).name.lower()

    @display(description=_("requester"))
    def asked_by(self, row: MaintenanceRequest) -> str:
        return show_invisible_characters(row.requested_by, 80)

    def overview(self, request: HttpRequest, row: MaintenanceRequest) -> dict[str, Any]:
        return _build_context(row) | {"live_url": self.live_url(row)}

    def live_part(self, request: HttpRequest, row: MaintenanceRequest, name: str) -> LivePart:
        return LivePart(
            "admin/subagents/maintenance_state.html", _build_context(row), row.finished_at is None
        )


def _build_context(row: MaintenanceRequest) -> dict[str, Any]:
    until = row.finished_at or timezone.now()
    return {
        "asked": row,
        "params": mask_field_secrets(row.params),
        "result": mask_field_secrets(row.result),
        "by_model": (row.result or {}).get("model") or row.notes.get("model"),
        "doing": supervision.describe_status(row),
        "state_colour": STATE_COLOURS[row.state],
        "state_words": row.state.replace("_", " ") + (f": {row.substate}" if row.substate else ""),
        "messages_told": row.messages.order_by("-id")[:MESSAGES_SHOWN][::-1],
        "took": (until - row.started_at).total_seconds() if row.started_at else None,
        "server": Server.objects.filter(slug=row.server_slug).first() if row.server_slug else None,
        "trial": TrialReport.objects.filter(request=row).first() if row.kind == Kind.TRY else None,
        "proposal": Proposal.objects.filter(request=row).first()
        if row.state == State.COMPLETED
        else None,
    }


def _apply(request: HttpRequest, row: Proposal) -> str:
    proposals.apply(proposal_id=row.pk, user=cast(User, request.user), actor=actor(request))
    return gettext(
        "The proposal is applied. A server with a new or changed launch is a draft until a user confirms "
        "the launch on the server's page."
    )


def _can_be_applied(row: Proposal) -> bool:
    """A new server of which nothing is known but its name cannot: an entry is chosen, or it is
    added by hand."""
    return row.state == ProposalState.WAITING and bool(row.fields or row.request.kind != Kind.ADD)


def _decline(request: HttpRequest, row: Proposal) -> str:
    proposals.decline(proposal_id=row.pk, actor=actor(request))
    return gettext("The proposal is declined. Nothing was changed.")


@admin.register(Proposal)
class ProposalAdmin(ReadOnlyAdmin):
    """What the sub-agent proposes; a click decides."""

    list_display = ("shown", "shown_state", "reason", "decided_by", "created_at")
    list_filter = ("state", "request__kind")
    list_select_related = ("request", "server")
    search_fields = ("request__server_slug", "reason", "decided_by")
    search_help_text = _("Server, reason, or name of the user who decided")
    fields = ("shown", "shown_state", "reason", "decided_by", "decided_at", "created_at")
    change_form_outer_before_template = "admin/subagents/proposal.html"
    verbs = (
        Verb(
            "apply",
            _("Apply proposal"),
            "subagents.decide_proposal",
            "check",
            _("Make this change."),
            _apply,
            applies=_can_be_applied,
            style="primary",
        ),
        Verb(
            "decline",
            _("Decline proposal"),
            "subagents.decide_proposal",
            "close",
            _("Change nothing."),
            _decline,
            applies=lambda row: row.state == ProposalState.WAITING,
        ),
    )

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(ChoosePage(self))
        return [
            path(
                "<path:object_id>/choose/<int:entry_id>/<int:number>/",
                view,
                name=self._name("choose"),
            ),
            *super().get_urls(),
        ]

    @display(description=_("proposal"))
    def shown(self, row: Proposal) -> str:
        verb = row.request.kind.removesuffix("_server")
        return f"{verb} {show_invisible_characters(row.request.server_slug, 63)}"

    @display(description=_("state"), label=PROPOSAL_COLOURS)
    def shown_state(self, row: Proposal) -> str:
        return row.state

    def overview(self, request: HttpRequest, row: Proposal) -> dict[str, Any]:
        now = {name: getattr(row.server, name) for name in row.fields} if row.server else {}
        fields = row.fields
        if not may_see_secrets_of_launch(cast(User, request.user)):
            now = mask_record_secrets(now)
            fields = mask_record_secrets(fields)
        changes = [
            (name.replace("_", " "), now.get(name, ""), value) for name, value in fields.items()
        ]
        return {
            "proposed": row,
            "changes": changes,
            "outdated": row.server is not None and not row.fits(row.server),
            "trial": getattr(row.request, "trial", None),
            "choices": choices(row) if row.state == ProposalState.WAITING else [],
        }
