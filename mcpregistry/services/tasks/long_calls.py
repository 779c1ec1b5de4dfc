"""Calls that are answered by work of ours which may outlive this process.

That is a run of an expert tool, or a task that a server made of our call and that is followed
(``remote_tasks``). A process that waits for the work keeps the call's lease alive. Where the host
has taken a task instead, nobody waits: the work's own records stand for the call, and its end is
written together with theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from mcpregistry.db import read_database_now
from mcpregistry.domain.calls.outcome_texts import LOOK_FIRST
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.schema.output import check_output
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.models import Definition, HostTask, Invocation
from mcpregistry.services.records import ending
from mcpregistry.services.tasks import host_tasks

# characters of a result; of a larger one the task says that it was too large
MAX_KEPT = 8 * 1024 * 1024
KEEP = timedelta(seconds=90)  # a process that says nothing for so long is taken for dead
# no process holds the call any more: it ends with the work, whenever that is
_WITH_THE_WORK = timedelta(days=3650)


def renew_call_lease(*, call_id: str, fence: int, now: datetime | None = None) -> bool:
    """Renew the call's lease, because this process waits still. False: the call has ended.

    A call that the clock has given up is waited for on: its end will replace what was supposed.
    """
    mine = Invocation.objects.filter(pk=call_id, fence=fence)
    held = mine.filter(state=InvocationState.DISPATCHED).update(
        lease_until=(now or read_database_now()) + KEEP
    )
    return bool(held) or mine.without_known_end().exists()


def match_handed_over_calls(now: datetime) -> Q:
    """Calls that no process holds, because they end with their work."""
    return Q(lease_until__gt=now + _WITH_THE_WORK / 2)


def hand_over_call(
    *,
    call_id: str,
    fence: int,
    agent: str,
    endpoint: str,
    ttl_ms: int | None,
    poll_ms: int,
    message: str = "",
    now: datetime | None = None,
) -> HostTask | None:
    """Give the host a handle, in the transaction that begins the work. None: the call has ended
    meanwhile.

    Raises Busy when the agent has too many tasks open.
    """
    now = now or read_database_now()
    held = Invocation.objects.filter(pk=call_id, fence=fence, state=InvocationState.DISPATCHED)
    if not held.update(lease_until=now + _WITH_THE_WORK):
        return None
    return host_tasks.create_task(
        call_id=call_id,
        agent=agent,
        endpoint=endpoint,
        ttl_ms=ttl_ms,
        poll_ms=poll_ms,
        message=message,
        now=now,
    )


def end_long_call(
    *,
    call_id: str,
    fence: int,
    state: InvocationState,
    code: str = "",
    reason: str = "",
    outcome: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> bool:
    """End a call that is out. ``outcome`` is ``{"result": …}`` or ``{"error": …}``, kept whole for
    its task.

    By compare-and-set under the fence; False when another has ended it. What the clock supposed
    meanwhile gives way.
    """
    now = now or timezone.now()
    outcome = outcome or {}
    call = Invocation.objects.filter(pk=call_id, fence=fence).without_known_end().first()
    if call is None:
        return False
    result = outcome.get("result")
    if state is InvocationState.UNKNOWN:
        reason = f"{reason} {LOOK_FIRST}".strip()
    ended = ending.build_end_columns(
        state,
        received_at=call.received_at,
        now=now,
        reason=reason,
        code=code,
        result=result,
        warning=_find_warning(call, result) if state is InvocationState.SUCCEEDED else "",
    )
    text = encode_lossy_json(outcome) if outcome else ""
    return _write_end(call, ended, text if len(text) <= MAX_KEPT else "")


@transaction.atomic
def _write_end(call: Invocation, ended: ending.CallEndColumns, kept: str) -> bool:
    if not ending.write_end(call, ended, actor=call.agent_slug, keep=ended["result"] is not None):
        return False
    HostTask.objects.filter(call_id=call.pk).update(
        result=kept,
        input_requests="",
        input_responses="",
        version=F("version") + 1,
        updated_at=ended["finished_at"],
    )
    return True


def _find_warning(call: Invocation, result: Any) -> str:
    approved = Definition.objects.filter(
        hash=call.definition_hash, tool__name=call.tool_name, tool__server__slug=call.server_slug
    ).first()
    return check_output(approved.data, result) if approved else ""
