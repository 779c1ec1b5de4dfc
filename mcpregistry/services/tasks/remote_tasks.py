"""Tasks that servers made of our calls: taken on, followed under a lease, passed on, ended.

The call stays dispatched while a process follows the server's task. Its lease is short and renewed;
when a process dies, any other follows on (the task lives at the server), except for servers on
stdio, whose tasks died with the process. Every write is fenced: who lost the lease changes nothing
any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json
from mcpregistry.models import HostTask, Invocation
from mcpregistry.models.server import Transport
from mcpregistry.services.records import audit
from mcpregistry.services.tasks import host_tasks, long_calls

LEASE = timedelta(seconds=15)  # a process that says nothing for so long is taken for dead
# for which a task of a remote server waits for a process to follow it
PATIENCE = timedelta(minutes=15)
_BATCH = 50
_STDIO = Transport.STDIO


@dataclass(frozen=True, slots=True)
class FollowedTask:
    """What a follower needs to know of one task."""

    task_id: str
    call_id: str
    fence: int
    server_id: int
    downstream_id: str
    poll_ms: int
    deadline: datetime | None  # when the server's own promise to keep it is long over
    remote: bool


@dataclass(frozen=True, slots=True)
class HostRequest:
    """What a host wants passed on to the server: answers by key, and perhaps the end."""

    responses: Mapping[str, Any]
    cancel: bool


class Lost(Conflict):
    """Another process follows the task now, or the call has ended."""

    code = "LEASE_LOST"


@transaction.atomic
def adopt_task(
    *,
    call_id: str,
    fence: int,
    agent: str,
    endpoint: str,
    server_id: int,
    downstream_id: str,
    ttl_ms: int | None,
    poll_ms: int,
    message: str = "",
    now: datetime | None = None,
) -> FollowedTask:
    """Take on the task that a server made of a dispatched call; the host gets our handle, or has
    one already.

    Raises Lost when the call is not ours any more, Busy when the agent has too many tasks open.
    """
    now = now or read_database_now()
    _renew(call_id, fence, now)
    known = {"server_id": server_id, "downstream_id": downstream_id}
    mine = HostTask.objects.filter(call_id=call_id)
    poll = min(max(poll_ms, host_tasks.POLL_MIN_MS), host_tasks.POLL_MAX_MS)
    if not mine.update(
        **known, poll_ms=poll, status_message=clean_text(message, 500), updated_at=now
    ):
        host_tasks.create_task(
            call_id=call_id,
            agent=agent,
            endpoint=endpoint,
            ttl_ms=ttl_ms,
            poll_ms=poll_ms,
            message=message,
            now=now,
            **known,
        )
    audit.record_entry(
        kind="task.adopted", actor=agent, subject=f"call:{call_id}", server=server_id
    )
    return _make_followed_task(mine.select_related("call", "server").get())


def _renew(call_id: str, fence: int, now: datetime) -> None:
    held = Invocation.objects.filter(pk=call_id, fence=fence, state=InvocationState.DISPATCHED)
    if not held.update(lease_until=now + LEASE):
        raise Lost("Another process has taken over the call.")


def renew_task_leases(followed: Collection[FollowedTask], now: datetime | None = None) -> set[str]:
    """Renew the leases; returns the ids of tasks that are ours no more. Those are ours that only
    the clock has ended."""
    now = now or read_database_now()
    still: set[str] = set()
    for fence in {each.fence for each in followed}:
        calls = [each.call_id for each in followed if each.fence == fence]
        held = Invocation.objects.filter(pk__in=calls, fence=fence)
        held.filter(state=InvocationState.DISPATCHED).update(lease_until=now + LEASE)
        still |= set(held.without_known_end().values_list("pk", flat=True))
    return {each.task_id for each in followed if each.call_id not in still}


def load_host_wishes(task_ids: Iterable[str]) -> dict[str, HostRequest]:
    """What hosts have said, in any process, about these tasks since it was passed on last."""
    said = HostTask.objects.filter(pk__in=[*task_ids]).only("input_responses", "cancel_requested")
    return {
        task.pk: HostRequest(
            host_tasks.parse_stored_object(task.input_responses), task.cancel_requested
        )
        for task in said
    }


@transaction.atomic
def record_passed_answers(*, task_id: str, keys: Collection[str]) -> None:
    """Note that the server has these answers; what it asks next is what it says next."""
    task = HostTask.objects.select_for_update().get(pk=task_id)
    asked = host_tasks.parse_stored_object(task.input_requests)
    answered = host_tasks.parse_stored_object(task.input_responses)
    HostTask.objects.filter(pk=task_id).update(
        input_requests=_encode_answers({k: v for k, v in asked.items() if k not in keys}),
        input_responses=_encode_answers({k: v for k, v in answered.items() if k not in keys}),
    )


def record_task_status(
    *,
    followed: FollowedTask,
    message: str,
    requests: Mapping[str, Any],
    poll_ms: int,
    now: datetime | None = None,
) -> None:
    """The server's task goes on; hosts are told if anything that they can see has changed. Raises
    Lost."""
    _require_ownership(followed)
    seen = {
        "status_message": clean_text(message, 500),
        "input_requests": _encode_answers(requests),
        "poll_ms": min(max(poll_ms, host_tasks.POLL_MIN_MS), host_tasks.POLL_MAX_MS),
    }
    changed = HostTask.objects.filter(pk=followed.task_id).exclude(**seen)
    changed.update(**seen, version=F("version") + 1, updated_at=now or timezone.now())


def _require_ownership(followed: FollowedTask) -> None:
    mine = Invocation.objects.filter(pk=followed.call_id, fence=followed.fence)
    if not mine.without_known_end().exists():
        raise Lost("Another process has taken over the call.")


def finish_task(
    *,
    followed: FollowedTask,
    state: InvocationState,
    code: str = "",
    reason: str = "",
    outcome: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> bool:
    """End the call as the server's task has ended: by compare-and-set under the fence, see
    ``long_calls.end_long_call``."""
    return long_calls.end_long_call(
        call_id=followed.call_id,
        fence=followed.fence,
        state=state,
        code=code,
        reason=reason,
        outcome=outcome,
        now=now,
    )


def list_orphaned_tasks(now: datetime | None = None) -> list[str]:
    """Tasks at remote servers that nobody follows, a batch at a time."""
    now = now or read_database_now()
    waiting = select_followed_calls().filter(lease_until__lt=now).order_by("lease_until")
    return list(waiting.values_list("host_task__pk", flat=True)[:_BATCH])


def select_followed_calls() -> QuerySet[Invocation]:
    """Return the open calls whose task at a remote server some process follows.

    From the few open calls to their tasks, not the other way round: ended tasks are many.
    """
    remote = Invocation.objects.open().filter(
        state=InvocationState.DISPATCHED, host_task__server__isnull=False
    )
    return remote.exclude(host_task__downstream_id="").exclude(host_task__server__transport=_STDIO)


@transaction.atomic
def take_over_task(*, task_id: str, now: datetime | None = None) -> FollowedTask | None:
    """Follow a task whose process is gone. None when another was faster."""
    now = now or read_database_now()
    task = HostTask.objects.select_related("call", "server").get(pk=task_id)
    call = task.call
    free = Invocation.objects.filter(
        pk=call.pk, state=InvocationState.DISPATCHED, fence=call.fence, lease_until__lt=now
    )
    if not free.update(fence=F("fence") + 1, lease_until=now + LEASE):
        return None
    audit.record_entry(
        kind="task.taken_over", actor="follower", subject=f"call:{call.pk}", fence=call.fence + 1
    )
    call.fence += 1
    return _make_followed_task(task)


def release_task(*, followed: FollowedTask, now: datetime | None = None) -> None:
    """Give the task up, because this process stops; another may follow at once."""
    now = now or read_database_now()
    held = Invocation.objects.filter(
        pk=followed.call_id, fence=followed.fence, state=InvocationState.DISPATCHED
    )
    held.update(lease_until=now - timedelta(milliseconds=1))


def list_calls_left_to_followers(now: datetime) -> list[str]:
    """Keys of calls that the reaper does not end yet: some process will follow their task."""
    left = (
        select_followed_calls()
        .filter(lease_until__lt=now, lease_until__gte=now - PATIENCE)
        .order_by("lease_until")
    )
    return list(left.values_list("pk", flat=True))


def _make_followed_task(task: HostTask) -> FollowedTask:
    assert task.server is not None
    return FollowedTask(
        task_id=task.pk,
        call_id=task.call_id,
        fence=task.call.fence,
        server_id=task.server.pk,
        downstream_id=task.downstream_id,
        poll_ms=task.poll_ms,
        deadline=task.created_at + timedelta(milliseconds=task.ttl_ms) if task.ttl_ms else None,
        remote=task.server.transport != _STDIO,
    )


def _encode_answers(value: Mapping[str, Any]) -> str:
    """Empty for nothing. What is too large to be kept counts as nothing: its task then ends with
    its time."""
    text = encode_lossy_json(dict(value)) if value else ""
    return text if len(text) <= long_calls.MAX_KEPT else ""
