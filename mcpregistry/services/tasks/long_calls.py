"""Calls that are answered by work of ours which may outlive this process: a run of an expert tool, or a task
that a server made of our call and that is followed (see ``services.following``).

A process that waits for the work keeps the call's lease alive. Where the host has taken a task instead,
nobody waits: the work's own records stand for the call, and its end is written together with theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from mcpregistry.domain.canonical import plain, stored
from mcpregistry.domain.lifecycle import State
from mcpregistry.models import ApprovalRequest, Invocation, Task
from mcpregistry.services import audit, tasks

MAX_KEPT = 8 * 1024 * 1024  # characters of a result; a larger one is told, not kept
KEEP = timedelta(seconds=90)  # a process that says nothing for so long is taken for dead
_RECORDED = 64 * 1024  # as the recorder keeps
_WITH_THE_WORK = timedelta(days=3650)  # no process holds the call any more: it ends with the work, whenever that is


def keep(*, call_id: str, fence: int, now: datetime | None = None) -> bool:
    """This process waits still. False: the call has ended, so there is nothing to wait for."""
    held = Invocation.objects.filter(pk=call_id, fence=fence, state=State.DISPATCHED)
    return bool(held.update(lease_until=(now or timezone.now()) + KEEP))


def hand_over(
    *, call_id: str, fence: int, agent: str, endpoint: str, ttl_ms: int | None, poll_ms: int, message: str = "",
    now: datetime | None = None,
) -> Task | None:  # fmt: skip
    """A handle for the host, in the transaction that begins the work. None: the call has ended meanwhile.

    Raises Busy when the agent has too many tasks open.
    """
    now = now or timezone.now()
    held = Invocation.objects.filter(pk=call_id, fence=fence, state=State.DISPATCHED)
    if not held.update(lease_until=now + _WITH_THE_WORK):
        return None
    return tasks.create(
        call_id=call_id, agent=agent, endpoint=endpoint, ttl_ms=ttl_ms, poll_ms=poll_ms, message=message, now=now
    )


@transaction.atomic
def end(
    *, call_id: str, fence: int, state: State, code: str = "", reason: str = "",
    outcome: Mapping[str, Any] | None = None, now: datetime | None = None,
) -> bool:  # fmt: skip
    """End a call that is out. ``outcome`` is ``{"result": …}`` or ``{"error": …}``, kept whole for its task.

    By compare-and-set under the fence; False when another has ended it.
    """
    now = now or timezone.now()
    text = stored(outcome) if outcome else ""
    if len(text) > MAX_KEPT:
        text, state, code = "", State.TOOL_ERROR, "RESOURCE_LIMIT"
        reason = "The result is too large to be kept. Ask for less."
    held = Invocation.objects.filter(pk=call_id, fence=fence, state=State.DISPATCHED)
    call = held.first()
    if call is None:
        return False
    result = stored(outcome["result"]) if text and outcome and "result" in outcome else ""
    ended = held.update(
        state=state, error_code=code, reason=plain(reason) or F("reason"), finished_at=now, lease_until=None,
        duration_ms=(now - call.received_at).total_seconds() * 1000,
        result=result[:_RECORDED] + "…" if len(result) > _RECORDED else result, result_bytes=len(result),
    )  # fmt: skip
    if not ended:
        return False
    Task.objects.filter(call_id=call_id).update(
        result=text, input_requests="", input_responses="", version=F("version") + 1, updated_at=now
    )
    if result:
        ApprovalRequest.objects.filter(call_id=call_id).update(result=result)
    audit.record(
        kind=f"call.{state}", actor=call.agent_slug, subject=f"call:{call.pk}", binding=call.binding,
        tool=f"{call.server_slug}::{call.tool_name}", state=state, error=code,
    )  # fmt: skip
    return True
