"""Conversations: what belongs together of an agent's calls; begun, narrowed and ended here as over REST."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.decorators import display

from mcpregistry.admin.base import CappedPaginator, RecordAdmin, Verb, actor
from mcpregistry.admin.fields import WordsField
from mcpregistry.admin.forms import RecordForm
from mcpregistry.domain.text.display import printable
from mcpregistry.models import Conversation
from mcpregistry.queries.calls import latest_calls
from mcpregistry.services.conversations import lifecycle

STATE_COLOURS = {"open": "success", "ended": "info"}
_CALLS_SHOWN = 20


class ConversationForm(RecordForm[Conversation]):
    """A conversation's fields; servers are entered one per line."""

    servers = WordsField(
        rows=3, help_text="Servers whose tools are seen in it, by short name, one per line. Empty: all that the agent may use."
    )  # fmt: skip

    class Meta:
        model = Conversation
        fields = ("agent", "title", "servers")
        help_texts = {"agent": "Whose calls belong to it. It cannot be changed later."}


def _end(request: HttpRequest, row: Conversation) -> str:
    lifecycle.end(conversation=row, actor=actor(request))
    return "It has ended: calls that name it are refused."


@admin.register(Conversation)
class ConversationAdmin(RecordAdmin):
    """Conversations with their newest calls. An ended one is only read, and none is deleted by hand: retention does it."""

    form = ConversationForm
    paginator = CappedPaginator
    show_full_result_count = False
    list_display = ("shown_title", "agent", "shown_state", "shown_servers", "created_by", "created_at", "last_used_at")
    list_filter = ("state", "agent")
    list_select_related = ("agent",)
    search_fields = ("=id", "title", "agent__slug", "created_by")
    search_help_text = "Conversation id, title, agent or who began it"
    sortable_by = ("created_at", "last_used_at")
    autocomplete_fields = ("agent",)
    fields = ("agent", "title", "servers")
    change_form_outer_before_template = "admin/mcpregistry/conversation.html"
    verbs = (
        Verb("end", "End", "change_conversation", "stop_circle", "Take no more calls in it. This cannot be undone.", _end,
             applies=lambda row: row.state != Conversation.State.ENDED, style="danger"),
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Conversation]:
        return super().get_queryset(request).select_related("agent")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("agent",) if obj else ()

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        ended = obj is not None and obj.state == Conversation.State.ENDED
        return super().has_change_permission(request, obj) and not ended

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save(self, request: HttpRequest, row: Conversation, form: forms.ModelForm[Conversation]) -> None:
        lifecycle.save_conversation(conversation=row, actor=actor(request))

    @display(description="conversation")
    def shown_title(self, row: Conversation) -> str:
        return printable(str(row), 100)

    @display(description="state", label=STATE_COLOURS)
    def shown_state(self, row: Conversation) -> str:
        return row.state

    @display(description="sees")
    def shown_servers(self, row: Conversation) -> str:
        return printable(", ".join(row.servers), 60) or "all servers"

    def overview(self, request: HttpRequest, row: Conversation) -> dict[str, Any]:
        may_see = request.user.has_perm("mcpregistry.view_invocation")
        calls = latest_calls(conversation=row, limit=_CALLS_SHOWN) if may_see else ()
        return {"conversation": row, "state_colour": STATE_COLOURS.get(row.state, ""), "calls": calls}
