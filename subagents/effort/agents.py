"""Configure hosted agents."""

from __future__ import annotations

from django.db import transaction

from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit
from subagents.models import EffortAgent
from subagents.services.experts import text_parameter

_BY_WORKERS = (
    "worker",
    "fence",
    "lease_until",
    "wake_at",
    "idle_since",
    "finished_at",
    "focus",
    "awaits_level",
)


@transaction.atomic
def save_effort_agent(*, row: EffortAgent, actor: str) -> EffortAgent:
    """Create or change one. Raises ConfigInvalid for an expert tool that does not take one text."""
    kind = "effort_agent.created" if row._state.adding else "effort_agent.changed"
    take_current(row, own=_BY_WORKERS)
    if row.expert_id is not None:
        text_parameter(row.expert)
    save_checked(row)
    audit.record_entry(
        kind=kind, actor=actor, subject=f"effort_agent:{row.expert.name}", enabled=row.enabled
    )
    return row


@transaction.atomic
def answer_all(*, row: EffortAgent, actor: str) -> None:
    """Have it answer all its conversations again, after its model has selected one."""
    EffortAgent.objects.filter(pk=row.pk).update(focus="")
    audit.record_entry(
        kind="effort_agent.answers_all",
        actor=actor,
        subject=f"effort_agent:{row.expert.name}",
        before=row.focus,
    )


@transaction.atomic
def delete_effort_agent(*, row: EffortAgent, actor: str) -> None:
    """Delete one; its conversations and runs stay."""
    audit.record_entry(
        kind="effort_agent.deleted", actor=actor, subject=f"effort_agent:{row.expert.name}"
    )
    row.delete()
