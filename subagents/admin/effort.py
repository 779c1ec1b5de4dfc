"""Hosted agents: the expert tool of each, how often it checks for messages, and what its cycles
did."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import RecordAdmin, Verb, actor
from mcpregistry.db import read_database_now
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Conversation, EnergyPool
from mcpregistry.services.energy import pools
from subagents.effort import agents
from subagents.models import CycleLog, EffortAgent

_CYCLES_SHOWN = 30
_ID = re.compile(r"\b[0-9a-f]{32}\b")
STATE_COLOURS = {"running": "success", "waiting for a worker": "warning", "disabled": "info"}


def state_of(row: EffortAgent) -> str:
    """A key of ``STATE_COLOURS``."""
    if not row.enabled:
        return "disabled"
    return (
        "running"
        if row.lease_until and row.lease_until > read_database_now()
        else "waiting for a worker"
    )


def _answer_all(request: HttpRequest, row: EffortAgent) -> str:
    agents.answer_all(row=row, actor=actor(request))
    return gettext("The hosted agent answers in all its conversations again.")


@admin.register(EffortAgent)
class EffortAgentAdmin(RecordAdmin):
    """Hosted agents, with their energy and latest cycles."""

    list_display = ("__str__", "shown_state", "cycle_seconds")
    list_filter = ("enabled",)
    list_select_related = ("expert",)
    search_fields = ("expert__name",)
    fields = ("expert", "enabled", "cycle_seconds", "supervises")
    change_form_outer_before_template = "admin/subagents/effort.html"
    verbs = (
        Verb(
            "answer-all",
            _("Answer all conversations"),
            "subagents.change_effortagent",
            "forum",
            _(
                "The model has restricted the hosted agent to one conversation. Let it answer in all of them "
                "again."
            ),
            _answer_all,
            applies=lambda row: bool(row.focus),
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[EffortAgent]:
        return super().get_queryset(request).select_related("expert__agent__energy_pool")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("expert",) if obj else ()

    def save(self, request: HttpRequest, row: EffortAgent, form: ModelForm[EffortAgent]) -> None:
        agents.save_effort_agent(row=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: EffortAgent) -> None:
        agents.delete_effort_agent(row=row, actor=actor(request))

    @display(description=_("state"), label=STATE_COLOURS)
    def shown_state(self, row: EffortAgent) -> str:
        return state_of(row)

    def overview(self, request: HttpRequest, row: EffortAgent) -> dict[str, Any]:
        pool = EnergyPool.objects.with_reserved().filter(agents=row.expert.agent).first()
        state = state_of(row)
        return {
            "hosted": row,
            "pool": pool,
            "standing": pools.load_pool_standing(pool) if pool else None,
            "state": state,
            "state_colour": STATE_COLOURS[state],
            "focus": Conversation.objects.filter(pk=row.focus).first() if row.focus else None,
            "cycles": _replace_ids(CycleLog.objects.filter(agent=row)[:_CYCLES_SHOWN]),
        }


def _replace_ids(cycles: Iterable[CycleLog]) -> list[CycleLog]:
    """Cycles with the titles of conversations in place of their ids."""
    found = list(cycles)
    ids = {each for cycle in found for each in _ID.findall(cycle.decision)}
    titles = {
        row.pk: show_invisible_characters(str(row), 80)
        for row in Conversation.objects.filter(pk__in=ids)
    }
    for cycle in found:
        cycle.decision = _ID.sub(lambda match: titles.get(match[0], match[0]), cycle.decision)
    return found
