"""The rows of calls on their way to the database: which columns each of them brings.

Typed, because a column that is left out would silently get the model's default. They are made by
``calls/record_rows.py`` and written by the recorder; held calls are created by
``services/approvals/held_calls.py``.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict

from mcpregistry.services.records.ending import CallEndColumns


class CallIdentity(TypedDict):
    """Who calls what, and what was decided: of every call."""

    id: str
    agent_slug: str
    endpoint_slug: str
    server_slug: str
    server_revision: int
    tool_name: str
    exposed_name: str
    definition_hash: str
    binding: str
    arguments: str
    outcome: str
    origin: str
    host_name: str
    requester: str
    requester_id: int | None
    request_id: str
    conversation_id: str | None
    received_at: datetime


class Intent(CallIdentity):
    """Of a call that is about to be sent."""

    state: str
    reason: str
    dispatched_at: datetime
    lease_until: datetime


class HeldCallColumns(CallIdentity):
    """Of a call that people are asked about."""

    writer: str
    reason: str


class RefusedCallColumns(CallIdentity, CallEndColumns):
    """Of a call that ends as it begins."""


class Claim(TypedDict):
    """What a held call must still be when it is taken to be sent, and until when it is ours
    then."""

    id: str
    received_at: datetime
    agent_slug: str
    binding: str
    fence: int
    dispatched_at: datetime
    lease_until: datetime
    revision: int
