"""Handles for hosts that speak the Tasks extension: made with the call they stand for, read by
polling.

A task has no state of its own. What has become of it is written in the call, its request and, where
a server made the task, in what that server said last (see ``remote_tasks``). Rows live as long as
their calls do: a host may come back after a crash, and Claude Code polls an unknown id for ever.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from mcpregistry.domain.calls.forwarding import attribute_question
from mcpregistry.domain.calls.outcome_texts import advise_after_end
from mcpregistry.domain.calls.task_view import (
    compose_tool_error,
    embed_result,
    map_task_status,
    mark_corrected_result,
)
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.notifications.events import NotificationEvent
from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json
from mcpregistry.extensions import list_extensions
from mcpregistry.models import ApprovalRequest, HostTask, Invocation
from mcpregistry.prepared_queries import Given, Update
from mcpregistry.services.approvals.requests import build_agent_result, describe_approvers
from mcpregistry.services.records import ending

MAX_OPEN = 1_000  # of one agent: each is a durable row that a caller makes
# how long a result stays at least, as told to hosts; retention keeps it longer
KEPT_MS = 24 * 60 * 60 * 1000
POLL_MIN_MS = 100
POLL_MAX_MS = 60_000
_POLL_MS = 1_000  # of a handle whose row cannot be read
_SEEN_EVERY = timedelta(seconds=1)


def create_task(
    *,
    call_id: str,
    agent: str,
    endpoint: str,
    ttl_ms: int | None,
    poll_ms: int,
    message: str = "",
    now: datetime | None = None,
    **more: Any,
) -> HostTask:
    """A new handle, in the caller's transaction (the call's row must be part of it, or there
    already).

    Raises Busy when the agent has too many open.
    """
    now = now or timezone.now()
    if (
        Invocation.objects.open()
        .filter(agent_slug=agent, host_task__isnull=False)[:MAX_OPEN]
        .count()
        >= MAX_OPEN
    ):
        raise QueueFullError(
            f"The agent already has {MAX_OPEN:,} open tasks.",
            remedy="Wait until some of these tasks have ended, or cancel some of them.",
        )
    return HostTask.objects.create(
        id=secrets.token_urlsafe(32),
        call_id=call_id,
        agent_slug=agent,
        endpoint_slug=endpoint,
        created_at=now,
        updated_at=now,
        ttl_ms=ttl_ms,
        poll_ms=min(max(poll_ms, POLL_MIN_MS), POLL_MAX_MS),
        status_message=clean_text(message, 500),
        **more,
    )


@dataclass(frozen=True, slots=True)
class TaskWish:
    """The handle that a host speaking the Tasks extension shall get for a held call; times in
    milliseconds."""

    ttl_ms: int | None
    poll_ms: int
    message: str = ""

    def __call__(self, call: Invocation) -> str:
        """Make the handle of this call, in the caller's transaction. Returns its id."""
        made = create_task(
            call_id=call.pk,
            agent=call.agent_slug,
            endpoint=call.endpoint_slug,
            ttl_ms=self.ttl_ms,
            poll_ms=self.poll_ms,
            message=self.message,
        )
        return made.pk


def update_announced_task(
    *, event: NotificationEvent, request: ApprovalRequest, now: datetime, **_: object
) -> None:
    """The handle of a held call changes with it; connected in ``mcpregistry.apps``. One just asked
    has none yet."""
    if event is not NotificationEvent.ASKED:
        HostTask.objects.filter(call_id=request.call_id).update(
            version=F("version") + 1, updated_at=now
        )


# What hosts read


def find_task(task_id: str, *, agent: str, endpoint: str) -> HostTask | None:
    """The caller's own task, by its key, with what its view needs. Somebody else's is as absent as
    no task."""
    return next(iter(filter_own_tasks([task_id], agent=agent, endpoint=endpoint)), None)


def filter_own_tasks(task_ids: Collection[str], *, agent: str, endpoint: str) -> list[HostTask]:
    """Those of the tasks that are this caller's."""
    return list(_select_full_tasks(task_ids).filter(agent_slug=agent, endpoint_slug=endpoint))


def load_tasks(task_ids: Collection[str]) -> list[HostTask]:
    """The tasks with these keys, for whoever has checked already whose they are."""
    return list(_select_full_tasks(task_ids))


def _select_full_tasks(task_ids: Collection[str]) -> QuerySet[HostTask]:
    asked = [clean_text(task_id, 200) for task_id in task_ids]
    return HostTask.objects.filter(pk__in=asked).select_related("call", "call__approval__group")


def load_task_versions(task_ids: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """What changes whenever a host could see a change, for all these tasks in one query; streams
    compare it."""
    columns = ("pk", "version", "call__state", "call__approval__decided_at")
    return {
        row[0]: row[1:] for row in HostTask.objects.filter(pk__in=[*task_ids]).values_list(*columns)
    }


def build_task_view(task: HostTask, *, typed: bool = False) -> dict[str, Any]:
    """The task in wire shape, without ``resultType``. ``typed``: the tool was listed with an output
    schema.

    Hosts hold structured content against that schema, so our own words come in text alone then.
    """
    call = task.call
    ended = _read_task_end(task)
    questions = list_open_questions(task)
    withdrawn = task.cancel_requested and (
        call.state == InvocationState.CANCELLED or call.error_code == "CANCELLED"
    )
    was_corrected = ending.is_corrected(call)
    status = map_task_status(
        InvocationState(call.state),
        withdrawn=withdrawn,
        error="error" in ended,
        asking=bool(questions),
    )
    # it has been told as completed, with an unknown outcome; a status that is final stays as it is
    if was_corrected:
        status = "completed"
    shown: dict[str, Any] = {
        "taskId": task.id,
        "status": status,
        "createdAt": _format_moment(task.created_at),
        "lastUpdatedAt": _format_moment(_find_last_change(task)),
        "ttlMs": _compute_ttl(task),
        "pollIntervalMs": task.poll_ms,
    }
    if message := _compose_message(task, status):
        shown["statusMessage"] = message
    if status == "input_required":
        shown["inputRequests"] = {
            key: attribute_question(request, call.server_slug) for key, request in questions.items()
        }
    elif status == "failed":
        shown["error"] = ended["error"]
    elif status == "completed":
        result = _build_shown_result(task, ended, typed=typed)
        shown["result"] = (
            mark_corrected_result(result)
            if was_corrected and call.state != InvocationState.UNKNOWN
            else result
        )
    return shown


def build_task_handle(task: HostTask) -> dict[str, Any]:
    """The answer to ``tools/call``: the handle alone, whatever has become of the task already."""
    whole = build_task_view(task)
    return {"resultType": "task"} | {
        k: v for k, v in whole.items() if k not in ("result", "error", "inputRequests")
    }


def build_bare_handle(task_id: str, now: datetime) -> dict[str, Any]:
    """The handle of a task that was made a moment ago and cannot be read: what else it says, the
    host asks for next."""
    moment = _format_moment(now)
    return {
        "resultType": "task",
        "taskId": task_id,
        "status": "working",
        "createdAt": moment,
        "lastUpdatedAt": moment,
        "ttlMs": KEPT_MS,
        "pollIntervalMs": _POLL_MS,
    }


def list_open_questions(task: HostTask) -> dict[str, Any]:
    """What a server asks, by key, without what was answered already."""
    asked = parse_stored_object(task.input_requests)
    answered = parse_stored_object(task.input_responses)
    return {key: request for key, request in asked.items() if key not in answered}


def _read_task_end(task: HostTask) -> dict[str, Any]:
    """``{"result": …}`` or ``{"error": …}`` as it was kept; empty while there is none, or none any
    more."""
    request = getattr(task.call, "approval", None)
    if task.result:
        ended = parse_stored_object(task.result)
        if "error" in ended:
            return ended
        kept = ended.get("result", {})
    else:
        kept = parse_stored_object(
            request.result if request is not None and request.result else task.call.result
        )
    if kept and request is not None:
        kept = build_agent_result(request, kept)
    return {"result": kept} if kept else {}


def _build_shown_result(task: HostTask, ended: Mapping[str, Any], *, typed: bool) -> dict[str, Any]:
    if isinstance(ended.get("result"), dict):
        return embed_result(ended["result"])
    call = task.call
    code = call.error_code
    text = call.reason
    if call.state in (InvocationState.SUCCEEDED, InvocationState.TOOL_ERROR) and not code:
        code = "RESULT_ERASED"
        text = "The call was made, but its result is no longer stored."
        if call.result:  # cut, as every record's is
            code = "RESOURCE_LIMIT"
            text = "The call was made, but its result is too large to be stored. Request less data."
    state = InvocationState(call.state)
    if state is InvocationState.EXPIRED:
        text = f"{text} {advise_after_end(state)}"
    said = compose_tool_error(
        code=code or call.state.upper(),
        text=text,
        state=state,
        call=call.pk,
        **_list_request_facts(call),
    )
    if typed:
        del said["structuredContent"]
    return said


def _list_request_facts(call: Invocation) -> dict[str, str]:
    request: ApprovalRequest | None = getattr(call, "approval", None)
    return {"approval": request.pk, "reason": request.decided_reason} if request is not None else {}


def _compose_message(task: HostTask, status: str) -> str:
    request: ApprovalRequest | None = getattr(task.call, "approval", None)
    if task.call.state == InvocationState.READY:
        return "The call is approved and will run in a moment."
    if task.call.state == InvocationState.PENDING and request is not None:
        by = request.decide_by.isoformat(timespec="seconds").replace("+00:00", "Z")
        return f"Waiting for {describe_approvers(request)}, until {by}."
    return task.status_message if status in ("working", "input_required") else ""


def _find_last_change(task: HostTask) -> datetime:
    request: ApprovalRequest | None = getattr(task.call, "approval", None)
    times = [task.updated_at, task.call.finished_at, request.decided_at if request else None]
    return max(each for each in times if each is not None)


def _compute_ttl(task: HostTask) -> int | None:
    """Stretched at the end, so that a result that is found late can still be read."""
    finished = task.call.finished_at
    if task.ttl_ms is None or finished is None:
        return task.ttl_ms
    age = round((finished - task.created_at).total_seconds() * 1000)
    return max(task.ttl_ms, age + KEPT_MS)


def parse_stored_object(text: str) -> dict[str, Any]:
    """A stored JSON object; empty for text that the recorder's limit has cut."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _format_moment(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# What hosts do


def note_task_polls(task_ids: Iterable[str], now: datetime) -> None:
    """Note that their hosts have asked for these tasks, at most once a second each."""
    open_ones = HostTask.objects.filter(
        pk__in=[*task_ids], call__state__in=[InvocationState.PENDING, InvocationState.READY]
    )
    keys = list(
        open_ones.filter(Q(seen_at=None) | Q(seen_at__lt=now - _SEEN_EVERY)).values_list(
            "pk", flat=True
        )
    )
    if keys:
        HostTask.objects.filter(pk__in=keys).update(seen_at=now)


@transaction.atomic
def store_answers(
    *, task_id: str, responses: Mapping[str, Any], now: datetime | None = None
) -> bool:
    """Keep the answers to open questions for whoever follows the server's task; the rest is
    ignored.

    Returns whether any question was answered.
    """
    task = HostTask.objects.select_for_update().select_related("call").get(pk=task_id)
    fitting = {key: value for key, value in responses.items() if key in list_open_questions(task)}
    if not fitting or task.call.state != InvocationState.DISPATCHED:
        return False
    kept = encode_lossy_json(parse_stored_object(task.input_responses) | fitting)
    now = now or timezone.now()
    HostTask.objects.filter(pk=task_id).update(
        input_responses=kept, version=F("version") + 1, updated_at=now
    )
    return True


@transaction.atomic
def withdraw_task(*, task_id: str, now: datetime | None = None) -> bool:
    """Note that the client wants the task no more; True the first time. Ending it is for whoever
    has the call."""
    wanted = HostTask.objects.filter(pk=task_id, cancel_requested=False).exclude(
        call__state__in=_ENDED
    )
    call_id = wanted.values_list("call_id", flat=True).first()
    if call_id is None:
        return False
    # Before our own write: whoever ends the call takes these locks in this order, too.
    for extension in list_extensions():
        extension.handle_cancelled_task(call_id)
    return bool(
        wanted.update(
            cancel_requested=True, version=F("version") + 1, updated_at=now or timezone.now()
        )
    )


def set_status_message(*, call_id: str, message: str, now: datetime | None = None) -> None:
    """Tell the host of a call that became a task what goes on now; nothing for any other call."""
    _SAY(call=call_id, status_message=clean_text(message, 500), updated_at=now or timezone.now())


_SAY = Update(
    HostTask.objects.filter(call=Given("call")).exclude(status_message=Given("status_message")),
    "status_message",
    "updated_at",
    version=F("version") + 1,
)


_ENDED = [
    state
    for state in InvocationState
    if state not in (InvocationState.PENDING, InvocationState.READY, InvocationState.DISPATCHED)
]
