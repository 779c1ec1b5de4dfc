"""Deciding on held calls: who may, votes, edits, and what follows from them. For every face alike."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.models import Group, User
from django.db.models import QuerySet

from mcpregistry.domain.canonical import digest
from mcpregistry.domain.errors import Conflict
from mcpregistry.models import ApprovalRequest
from mcpregistry.services.permits import PermitWish


class AlreadyDecided(Conflict):
    """Somebody else was faster, or time was; the message names who (HTTP 409)."""

    code = "ALREADY_DECIDED"


def approvers(group: Group | None) -> QuerySet[User]:
    """Everybody who could decide: active, with the permission, and in the group if one is named."""
    raise NotImplementedError


def why_not(request: ApprovalRequest, user: User) -> str:
    """Why this person may not vote on this request; "" when she may."""
    raise NotImplementedError


def vote(
    *,
    request_id: str,
    user: User,
    approve: bool,
    reason: str = "",
    arguments: Mapping[str, Any] | None = None,
    seen: str = "",
    permit: PermitWish | None = None,
    via: str,
    now: datetime | None = None,
) -> ApprovalRequest:
    """One person's word. A rejection ends the call; the last approval of the quorum lets it run.

    ``seen`` is ``arguments_hash(request)`` of what the person was shown: a vote on other bytes than
    those that would run now is refused. ``arguments``: approve with these instead (an edit). Raises
    NotFound, AlreadyDecided, Denied (not eligible, with the reason), ArgumentsInvalid (the edit),
    Conflict (the bytes were edited meanwhile, or this person has voted), ConfigInvalid (the permit).
    """
    raise NotImplementedError


def arguments_hash(request: ApprovalRequest) -> str:
    """SHA-256 of the arguments that would run now: the edited ones, else those asked for."""
    return digest(request.edited or request.call.arguments)


def confirm(*, request_id: str, by: str, now: datetime | None = None) -> ApprovalRequest:
    """The person at the host says yes; only where the rule lets the requester confirm. ``by`` names the host."""
    raise NotImplementedError


def refuse(*, request_id: str, by: str, reason: str = "", now: datetime | None = None) -> ApprovalRequest:
    """The person at the host says no."""
    raise NotImplementedError
