"""Conversations: what belongs together of an agent's calls; begun, narrowed and ended here as over
REST."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import CappedPaginator, Verb, actor
from mcpregistry.admin.fields import WordsField
from mcpregistry.admin.forms import RecordForm
from mcpregistry.admin.live_parts import LiveAdmin, LivePart
from mcpregistry.admin.name_filters import by_name
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Conversation
from mcpregistry.models.conversation import LONGEST_MESSAGE, MessageKind
from mcpregistry.queries.calls import query_latest_calls
from mcpregistry.queries.conversations import list_latest_messages
from mcpregistry.services.conversations import lifecycle, messages

STATE_COLOURS = {"open": "success", "ended": "info"}
_CALLS_SHOWN = 20
_WRITE = "mcpregistry.add_message"


class ConversationForm(RecordForm[Conversation]):
    """A conversation's fields; servers are entered one per line."""

    servers = WordsField(
        rows=3,
        help_text=_(
            "Short names of the servers whose tools are visible in the conversation, one per line. If "
            "empty, the agent sees all tools that it is granted."
        ),
    )

    class Meta:
        model = Conversation
        fields = ("agent", "title", "servers")
        help_texts = {
            "agent": _(
                "The agent whose calls belong to the conversation. You cannot change it later."
            )
        }


def _end(request: HttpRequest, row: Conversation) -> str:
    lifecycle.end_conversation(conversation=row, actor=actor(request))
    return gettext("The conversation has ended. Further calls in this conversation are refused.")


@admin.register(Conversation)
class ConversationAdmin(LiveAdmin):
    """Conversations with what was said and their newest calls; people write here to the agent.

    An ended one is only read, and none is deleted by hand: retention does it.
    """

    form = ConversationForm
    paginator = CappedPaginator
    show_full_result_count = False
    list_display = (
        "shown_title",
        "agent",
        "shown_state",
        "shown_servers",
        "created_by",
        "created_at",
        "last_used_at",
    )
    list_filter = ("state", by_name("agent"))
    list_select_related = ("agent",)
    search_fields = ("=id", "title", "agent__slug", "created_by")
    search_help_text = _("Conversation ID, title, agent or creator")
    sortable_by = ("created_at", "last_used_at")
    autocomplete_fields = ("agent",)
    fields = ("agent", "title", "servers")
    change_form_outer_before_template = "admin/mcpregistry/conversation.html"
    verbs = (
        Verb(
            "end",
            _("End conversation"),
            "change_conversation",
            "stop_circle",
            _("Accept no more calls in the conversation. This cannot be undone."),
            _end,
            applies=lambda row: row.state != Conversation.State.ENDED,
            style="danger",
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Conversation]:
        return super().get_queryset(request).select_related("agent")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("agent",) if obj else ()

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        ended = obj is not None and obj.state == Conversation.State.ENDED
        return super().has_change_permission(request, obj) and not ended

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save(
        self, request: HttpRequest, row: Conversation, form: forms.ModelForm[Conversation]
    ) -> None:
        lifecycle.save_conversation(conversation=row, actor=actor(request))

    @display(description=_("conversation"))
    def shown_title(self, row: Conversation) -> str:
        return show_invisible_characters(str(row), 100)

    @display(description=_("state"), label=STATE_COLOURS)
    def shown_state(self, row: Conversation) -> str:
        return row.state

    @display(description=_("visible servers"))
    def shown_servers(self, row: Conversation) -> str:
        return show_invisible_characters(", ".join(row.servers), 60) or gettext("all servers")

    def overview(self, request: HttpRequest, row: Conversation) -> dict[str, Any]:
        may_see = request.user.has_perm("mcpregistry.view_invocation")
        calls = query_latest_calls(conversation=row, limit=_CALLS_SHOWN) if may_see else ()
        writes = request.user.has_perm(_WRITE) and row.state != Conversation.State.ENDED
        return _list_messages(request, row) | {
            "conversation": row,
            "state_colour": STATE_COLOURS.get(row.state, ""),
            "calls": calls,
            "live_url": self.live_url(row),
            "say_url": reverse("admin:mcpregistry_conversation_say", args=[row.pk])
            if writes
            else "",
            "longest": LONGEST_MESSAGE,
        }

    def live_part(self, request: HttpRequest, row: Conversation, name: str) -> LivePart:
        goes_on = row.state != Conversation.State.ENDED
        return LivePart(
            "admin/mcpregistry/conversation_messages.html", _list_messages(request, row), goes_on
        )

    def get_urls(self) -> list[URLPattern]:
        say = self.admin_site.admin_view(self.say_view)
        return [
            path("<path:object_id>/say/", say, name="mcpregistry_conversation_say"),
            *super().get_urls(),
        ]

    def say_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Write ``text`` to the agent. POST only."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404
        if not request.user.has_perm(_WRITE):
            raise PermissionDenied
        back = reverse("admin:mcpregistry_conversation_change", args=[row.pk])
        try:
            messages.add_message(
                conversation=row,
                kind=MessageKind.IN,
                text=request.POST.get("text", ""),
                author=actor(request),
                user=cast(User, request.user),
            )
        except SlipsnisseError as error:
            return self._redirect_with_error(request, error, back)
        return HttpResponseRedirect(f"{back}#say")


def _list_messages(request: HttpRequest, row: Conversation) -> dict[str, Any]:
    return {
        "said": list_latest_messages(row)
        if request.user.has_perm("mcpregistry.view_message")
        else []
    }
