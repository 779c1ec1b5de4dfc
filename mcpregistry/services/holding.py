"""Held calls from the caller's side: asked, joined, waited for, left, and ended when nobody decides.

A held call is an Invocation in the state pending or ready; its ApprovalRequest keeps what the rule
said when it asked. Every move is one compare-and-set on the call's state, so of two at once one wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mcpregistry.domain.lifecycle import State


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a caller holds of a held call. ``joined``: the identical call was waiting already."""

    id: str  # of the ApprovalRequest
    call_id: str
    state: State
    joined: bool
    decide_by: datetime
    asked_of: str  # words for people: "approvers (2 must agree)"
    task_id: str = ""
    url: str = ""  # the page where it is decided


@dataclass(frozen=True, slots=True)
class TaskWish:
    """The handle that a host speaking the Tasks extension shall get; times in milliseconds."""

    ttl_ms: int | None
    poll_ms: int
    message: str = ""


def ask(
    *,
    row: Mapping[str, Any],
    terms: Any,
    risk: Any,
    waiting_as: str,
    now: datetime,
    said: str = "",
    task: TaskWish | None = None,
) -> Ticket:
    """Hold a call: its record, the request with the rule's frozen terms, the audit entry, all in one.

    ``row`` are the Invocation's columns. The identical call of the same agent joins the open request,
    except with a task.
    """
    raise NotImplementedError


def cancel(*, request_id: str, reason: str, actor: str) -> State:
    """End a held call before it runs. Returns the state that it has afterwards; ended calls keep theirs."""
    raise NotImplementedError


def expire_due(now: datetime) -> int:
    """End held calls that nobody decided, or nobody ran, in time. Returns how many."""
    raise NotImplementedError
