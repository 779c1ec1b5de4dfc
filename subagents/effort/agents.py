"""Configure agents that hold conversations."""

from __future__ import annotations

from django.db import transaction

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.services.configuration.saving import save_checked
from mcpregistry.services.records import audit
from subagents.models import EffortAgent, ExpertTool
from subagents.services.experts import schema_of


@transaction.atomic
def save_effort_agent(*, row: EffortAgent, actor: str) -> EffortAgent:
    """Create or change one. Raises ConfigInvalid for an expert tool that does not take one text."""
    kind = "effort_agent.created" if row._state.adding else "effort_agent.changed"
    if row.expert_id is not None:
        parameter(row.expert)
    save_checked(row)
    audit.record(kind=kind, actor=actor, subject=f"effort_agent:{row.expert.name}", enabled=row.enabled)
    return row


@transaction.atomic
def delete_effort_agent(*, row: EffortAgent, actor: str) -> None:
    """Delete one; its conversations and runs stay."""
    audit.record(kind="effort_agent.deleted", actor=actor, subject=f"effort_agent:{row.expert.name}")
    row.delete()


def parameter(expert: ExpertTool) -> str:
    """The argument of the expert tool that takes what was said. Raises ConfigInvalid when there is no such one."""
    schema = schema_of(expert)
    texts = [name for name, each in schema.get("properties", {}).items() if each.get("type") == "string"]
    required = schema.get("required") or texts[:1]
    if len(required) != 1 or required[0] not in texts:
        raise ConfigInvalid(
            f"The expert tool '{expert.name}' does not take one text.",
            remedy='Give it one required argument: {"text": {"type": "string"}}.',
        )
    return str(required[0])
