"""Calls and the audit log: what happened, read only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import cap_text, decode_json
from mcpregistry.models import AuditEntry, Invocation

_SAME = (
    "id",
    "state",
    "exposed_name",
    "origin",
    "outcome",
    "error_code",
    "warning",
    "host_name",
    "requester",
    "request_id",
    "result_bytes",
    "received_at",
    "dispatched_at",
    "finished_at",
    "duration_ms",
)


class InvocationOut(Schema):
    """A call in a list."""

    id: str
    state: str
    agent: str
    endpoint: str
    server: str
    tool: str
    exposed_name: str
    origin: str
    outcome: str = Field(
        description="Decision of the rules: allow, ask or deny. Empty if none was made."
    )
    reason: str
    error_code: str
    warning: str = Field(description="Problem with a result that was passed on anyway.")
    host_name: str
    requester: str = Field(description="The user who requested the call, if known.")
    request_id: str
    conversation: str | None = Field(description="Id of the conversation of the call.")
    result_bytes: int
    received_at: datetime
    dispatched_at: datetime | None
    finished_at: datetime | None
    duration_ms: float | None
    energy_consumed: float | None = Field(
        description="Energy units that the call cost. Null if it cost none."
    )


class InvocationDetail(InvocationOut):
    """A call with arguments and result.

    They are null if retention has erased them, or if they are too long to show.
    """

    server_revision: int
    definition_hash: str
    binding: str
    arguments: Any
    result: Any


class AuditOut(Schema):
    """An entry of the audit log."""

    id: int
    at: datetime
    kind: str
    actor: str
    subject: str
    writer: str
    seq: int
    hash: str
    facts: dict[str, Any] | None


class Verification(Schema):
    """The last verification of the audit log. ``intact`` is null before the first one; ``entries``
    is the number of entries read.
    """

    verified_at: datetime | None
    intact: bool | None
    full: bool
    entries: int
    chains: int
    problems: list[str]
    notes: list[str]


def invocation_out(row: Invocation) -> InvocationOut:
    """The row as its answer."""
    return InvocationOut(**_facts(row))


def invocation_detail(row: Invocation) -> InvocationDetail:
    """The row as its answer, with arguments and result."""
    return InvocationDetail(
        **_facts(row),
        server_revision=row.server_revision,
        definition_hash=row.definition_hash,
        binding=row.binding,
        arguments=decode_json(row.arguments),
        result=decode_json(row.result),
    )


def audit_out(row: AuditEntry) -> AuditOut:
    """The row as its answer."""
    return AuditOut(
        id=row.id,
        at=row.at,
        kind=row.kind,
        actor=row.actor,
        subject=row.subject,
        writer=row.writer,
        seq=row.seq,
        hash=row.hash,
        facts=decode_json(row.body),
    )


def _facts(row: Invocation) -> dict[str, Any]:
    names = {
        "agent": row.agent_slug,
        "endpoint": row.endpoint_slug,
        "server": row.server_slug,
        "tool": row.tool_name,
    }
    more = {"reason": cap_text(row.reason), "conversation": row.conversation_id}
    # read ``with_energy``
    more["energy_consumed"] = row.energy_consumed  # type: ignore[attr-defined]
    return {name: getattr(row, name) for name in _SAME} | names | more
