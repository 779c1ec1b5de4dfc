"""Held calls from the caller's side: asked, joined, waited for, left, and ended when nobody
decides.

A held call is an Invocation in the state pending or ready; its ApprovalRequest keeps what the rule
said when it asked. Every move is one compare-and-set on the call's state, so of two at once one
wins.

Whoever waits has a seat (``waiters.py``). The identical call of the same agent joins the request
that is open, or that has ended and was told to nobody yet: whoever was answered "pending" comes
back and gets the end, once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from mcpregistry.domain.errors import NotFound, QueueFullError
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState, is_move_allowed
from mcpregistry.domain.notifications.events import NotificationEvent
from mcpregistry.domain.policy.decision import Terms
from mcpregistry.domain.policy.risk import Risk
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.failpoints import failpoint
from mcpregistry.models import ApprovalRequest, Invocation, PolicyRule
from mcpregistry.services.approvals import refusals, waiters
from mcpregistry.services.approvals.announce import announce
from mcpregistry.services.approvals.requests import describe_approvers
from mcpregistry.services.records import audit, ending, signed_calls
from mcpregistry.services.records.call_rows import HeldCallColumns

SLACK = timedelta(seconds=60)  # after a deadline; then the reaper ends what nobody else has
MOST_OPEN = 1_000  # held calls of one agent: more would bury the people who are asked
SILENCE = "The call was not approved in time, so it was not made."
TOO_LATE = (
    "The call was approved, but the agent did not call again in time, so the call was not made."
)
UNHEARD = "The process to which the caller was connected has not responded for a minute"
_NO_REQUEST = "The approval request does not exist."
_LIST_REQUESTS = "List the requests on the page Approvals, or with GET /api/v1/approvals."
_HOLDER_IS_FASTER = timedelta(seconds=1)
_TRIES = 5
_BATCH = 200
_KEPT = {ApprovalRequest.Waiting.AWAY, ApprovalRequest.Waiting.TASK}  # their callers come back


@dataclass(frozen=True, slots=True)
class HeldCallTicket:
    """What a caller holds of a held call. ``joined``: the identical call was waiting already.

    ``caller``: whose seat goes with it, the id of the call that the caller made; empty for who only
    looks, or polls.
    """

    id: str  # of the ApprovalRequest
    call_id: str
    state: InvocationState
    joined: bool
    decide_by: datetime
    asked_of: str  # words for people: "2 people of the group operators"
    task_id: str = ""
    url: str = ""  # the page where it is decided
    caller: str = ""


# Makes the handle by which a host follows the call it is given, in the same transaction; returns
# its id.
MakeTask = Callable[[Invocation], str]


# Asking


def ask(
    *,
    row: HeldCallColumns,
    terms: Terms,
    risk: Risk,
    waiting_as: str,
    now: datetime,
    said: str = "",
    expert: str = "",
    host: str = "",
    task: MakeTask | None = None,
) -> HeldCallTicket:
    """Hold a call: its record, the request with the rule's frozen terms, the audit entry, all in
    one.

    ``row`` are the Invocation's columns; ``expert`` and ``host`` what else the rule could see;
    ``task`` is for a host that wants a handle (``host_tasks.TaskWish``). The identical call (same
    binding) joins, except with a task. Raises Busy when the agent has too many calls waiting,
    RefusedBefore when people have refused this very call lately.
    """
    for _ in range(_TRIES):
        if task is None and (joined := join(row=row, now=now)):
            return joined
        refusals.check(row=row, terms=terms, now=now)
        try:
            words = {
                "said": clean_text(said),
                "expert": clean_text(expert, 100),
                "host": clean_text(host, 200),
            }
            ticket = _hold(
                row=row,
                terms=terms,
                risk=risk,
                waiting_as=waiting_as,
                now=now,
                words=words,
                task=task,
            )
        except IntegrityError:  # the identical call was faster by a moment
            continue
        failpoint("held")
        return ticket
    raise QueueFullError(
        "Another caller is requesting the same call at this moment.",
        remedy="Call again in a moment.",
    )


@transaction.atomic
def join(*, row: HeldCallColumns, now: datetime) -> HeldCallTicket | None:
    """One more caller, whose call ``row`` is, waits for the open request of its binding, if there
    is one."""
    request = _lock(join_key=row["binding"])
    if request is None or _forget_if_due(request, now):
        return None
    return _take_seat(request, row)


def _take_seat(request: ApprovalRequest, row: HeldCallColumns) -> HeldCallTicket:
    waiters.take_seat(request, caller=row["id"], process=row["writer"])
    return make_ticket(request, joined=True, caller=row["id"])


def is_caller_expected(*, binding: str, now: datetime) -> bool:
    """Whether somebody has decided about this very call and its caller, who was told to come back,
    has not been yet."""
    request = ApprovalRequest.objects.select_related("call").filter(join_key=binding).first()
    return (
        request is not None
        and request.call.state != InvocationState.PENDING
        and not _forget_if_due(request, now)
    )


@transaction.atomic
def rejoin(*, request_id: str, row: HeldCallColumns) -> HeldCallTicket | None:
    """The very request, whatever has become of it, if ``row`` (an Invocation's columns) is the call
    it is about."""
    request = _lock(
        pk=request_id,
        call__agent_slug=row["agent_slug"],
        call__endpoint_slug=row["endpoint_slug"],
        call__server_slug=row["server_slug"],
        call__tool_name=row["tool_name"],
        call__arguments=row["arguments"],
        call__requester_id=row["requester_id"],
        call__conversation_id=row["conversation_id"],
    )
    return None if request is None else _take_seat(request, row)


def find(*, held_id: str, agent_slug: str) -> HeldCallTicket | None:
    """The agent's own request, by its id or by that of its call; None for anybody else's."""
    own = ApprovalRequest.objects.select_related("call", "group").filter(
        call__agent_slug=agent_slug
    )
    request = own.filter(pk=held_id).first() or own.filter(call_id=held_id).first()
    return make_ticket(request) if request else None


@transaction.atomic
def _hold(
    *,
    row: HeldCallColumns,
    terms: Terms,
    risk: Risk,
    waiting_as: str,
    now: datetime,
    words: Mapping[str, str],
    task: MakeTask | None,
) -> HeldCallTicket:
    _refuse_flood(row["agent_slug"])
    _refuse_stale(terms)
    decide_by = now + timedelta(seconds=terms.decide_seconds)
    call = Invocation.objects.create(
        **row, state=InvocationState.PENDING, lease_until=decide_by + SLACK
    )
    request = ApprovalRequest.objects.create(
        id=secrets.token_hex(16),
        call=call,
        rule_id=terms.rule_id,
        rule_name=clean_text(terms.rule, 200),
        rule_fingerprint=terms.fingerprint,
        group_id=terms.group_id,
        quorum=terms.quorum,
        execute_seconds=terms.execute_seconds,
        requester_may_confirm=terms.requester_may_confirm,
        run_if_caller_left=terms.run_if_caller_left,
        risk=risk.level.value,
        risk_rank=risk.level.rank,
        waiting_as=waiting_as,
        **words,
        asked_at=now,
        decide_by=decide_by,
        join_key=None if task else call.binding,
    )
    audit.record_entry(
        kind="call.pending",
        actor=call.agent_slug,
        subject=f"call:{call.pk}",
        binding=call.binding,
        tool=f"{call.server_slug}::{call.tool_name}",
        requester=call.requester,
        **signed_calls.build_question_facts(request),
    )
    announce(NotificationEvent.ASKED, request, now)
    if task:
        return make_ticket(request, task_id=task(call))
    waiters.take_seat(request, caller=call.pk, process=row["writer"])
    return make_ticket(request, caller=call.pk)


def _refuse_stale(terms: Terms) -> None:
    """A process hears of a change within a second; until then it may ask in the name of a rule that
    is gone."""
    if terms.rule_id is not None and not PolicyRule.objects.filter(pk=terms.rule_id).exists():
        raise QueueFullError(
            "The rule that applies to this call was just deleted.", remedy="Call again in a moment."
        )


def _refuse_flood(agent_slug: str) -> None:
    if (
        Invocation.objects.open()
        .filter(agent_slug=agent_slug, state=InvocationState.PENDING)
        .count()
        >= MOST_OPEN
    ):
        raise QueueFullError(
            f"{MOST_OPEN} calls of this agent already wait for approval.",
            remedy="Wait until some of these calls are decided.",
        )


def _forget_if_due(request: ApprovalRequest, now: datetime) -> bool:
    """An end that nobody came for in time is not told any more; the next identical call asks
    anew."""
    ended = request.call.finished_at
    if ended is None or ended + timedelta(seconds=request.execute_seconds) > now:
        return False
    ApprovalRequest.objects.filter(pk=request.pk).update(join_key=None)
    return True


# Looking


def load(request_id: str) -> ApprovalRequest:
    """The request with its call. Raises ``NotFound``."""
    request = ApprovalRequest.objects.select_related("call", "group").filter(pk=request_id).first()
    if request is None:
        raise NotFound(_NO_REQUEST, remedy=_LIST_REQUESTS)
    return request


def load_call_states(call_ids: Iterable[str]) -> dict[str, InvocationState]:
    """The states of these calls, for whoever waits for them; one indexed read for each few
    hundred."""
    ids = list(call_ids)
    found = {}
    for start in range(0, len(ids), 500):
        rows = (
            Invocation.objects.filter(pk__in=ids[start : start + 500])
            .order_by()
            .values_list("pk", "state")
        )
        found.update({key: InvocationState(state) for key, state in rows})
    return found


def make_ticket(
    request: ApprovalRequest, *, joined: bool = False, task_id: str = "", caller: str = ""
) -> HeldCallTicket:
    """What a caller holds of this request."""
    return HeldCallTicket(
        id=request.pk,
        call_id=request.call_id,
        state=InvocationState(request.call.state),
        joined=joined,
        decide_by=request.decide_by,
        asked_of=describe_approvers(request),
        task_id=task_id,
        url=f"{settings.SITE_URL}/approvals/{request.pk}/",
        caller=caller,
    )


def load_ready_ticket(*, call_id: str) -> HeldCallTicket | None:
    """For whoever was woken to run it; None when it is not ready (any more)."""
    request = (
        ApprovalRequest.objects.select_related("call", "group").filter(call_id=call_id).first()
    )
    return make_ticket(request) if request and request.call.state == InvocationState.READY else None


def list_calls_for_workers(now: datetime) -> list[str]:
    """Approved calls that a worker has to run: tasks, and those that run though their caller has
    left.

    The message that was to wake a worker may be lost, and the process that held the call gone:
    after a moment whoever looks here takes them. Twice is no harm, for one claims.
    """
    ready = ApprovalRequest.objects.filter_left_to_workers(now - _HOLDER_IS_FASTER).order_by(
        "decided_at"
    )
    return list(ready.values_list("call_id", flat=True)[:_BATCH])


# Waiting on


def change_way_of_waiting(*, request_id: str, waiting_as: str) -> None:
    """The caller waits in another way now. One who was told to come back stays expected."""
    rows = ApprovalRequest.objects.filter(pk=request_id)
    rows.exclude(waiting_as__in=_KEPT).update(waiting_as=waiting_as)


@transaction.atomic
def mark_caller_away(*, request_id: str, caller: str) -> HeldCallTicket:
    """A caller was told "pending": it waits no more, and its going ends nothing."""
    request = lock_request(request_id)
    ApprovalRequest.objects.filter(pk=request_id).update(waiting_as=ApprovalRequest.Waiting.AWAY)
    waiters.give_back(request, caller=caller)
    return make_ticket(request)


@transaction.atomic
def leave(*, request_id: str, caller: str, reason: str, now: datetime, keep: bool = False) -> bool:
    """A caller is gone. True: nobody is left for whom the call should go on, if it is out.

    What has not run is cancelled then, unless a caller is expected back, the rule says to run
    anyway, or ``keep`` (it is we who are leaving).
    """
    request = lock_request(request_id)
    waiters.give_back(request, caller=caller)
    return not keep and _handle_abandoned_seat(request, reason, request.call.agent_slug, now)


def _handle_abandoned_seat(
    request: ApprovalRequest, reason: str, actor: str, now: datetime
) -> bool:
    """A seat was given up. True: it was the last, and nobody is expected back; what has not run
    ends then."""
    if (
        waiters.has_waiting_caller(request)
        or request.run_if_caller_left
        or request.waiting_as in _KEPT
    ):
        return False
    if request.call.state in (InvocationState.PENDING, InvocationState.READY):
        end(
            request,
            InvocationState.CANCELLED,
            reason=f"{reason}. The call was not made.",
            actor=actor,
            now=now,
        )
    return True


def leave_dead_seats(now: datetime) -> int:
    """Callers have left whose processes say nothing any more; the clock calls it. Returns how
    many."""
    return sum(
        _leave_dead(request_id, caller, now) for caller, request_id in waiters.list_dead_seats(now)
    )


@transaction.atomic
def _leave_dead(request_id: str, caller: str, now: datetime) -> bool:
    """If its process renews it in the same moment, that stands."""
    request = lock_request(request_id)
    if not waiters.give_back(request, caller=caller, over=now):
        return False
    _handle_abandoned_seat(request, UNHEARD, "approvals", now)
    return True


@transaction.atomic
def record_delivery(*, request_id: str, caller: str, now: datetime) -> None:
    """The end was told to its caller: the identical call is a new one from now on."""
    ended = ApprovalRequest.objects.filter(pk=request_id, call__state__in=[*TERMINAL])
    # In one statement: an end that counts as told, and yet could be joined, would be told twice.
    ended.filter(Q(delivered_at=None) | Q(join_key__isnull=False)).update(
        delivered_at=Coalesce("delivered_at", now), join_key=None
    )
    if caller:
        waiters.forget(caller)


# Ending


@transaction.atomic
def cancel(*, request_id: str, reason: str, actor: str) -> InvocationState:
    """End a held call before it runs. Returns the state that it has afterwards; ended calls keep
    theirs."""
    request = lock_request(request_id)
    if request.call.state in (InvocationState.PENDING, InvocationState.READY):
        words = f"{clean_text(reason, 500)}. The call was not made."
        end(request, InvocationState.CANCELLED, reason=words, actor=actor, now=timezone.now())
    return InvocationState(request.call.state)


@transaction.atomic
def void(*, request_id: str, reason: str, now: datetime) -> InvocationState:
    """End a request because what was approved is not what would run; ``reason`` says what has
    changed."""
    request = lock_request(request_id)
    if request.call.state in (InvocationState.PENDING, InvocationState.READY):
        words = f"The approval is no longer valid: {reason}. The call was not made. Call again for a new approval."
        end(request, InvocationState.VOID, reason=words, actor="approvals", now=now)
    return InvocationState(request.call.state)


@transaction.atomic
def expire(*, request_id: str, now: datetime) -> InvocationState:
    """End the request if its time to be decided, or to be run, is over. Returns the state that it
    has afterwards."""
    request = lock_request(request_id)
    if request.call.state == InvocationState.PENDING and request.decide_by <= now:
        end(request, InvocationState.EXPIRED, reason=SILENCE, actor="approvals", now=now)
    elif (
        request.call.state == InvocationState.READY
        and request.execute_by is not None
        and request.execute_by <= now
    ):
        end(request, InvocationState.EXPIRED, reason=TOO_LATE, actor="approvals", now=now)
    return InvocationState(request.call.state)


def expire_due(now: datetime) -> int:
    """End held calls that nobody decided, or nobody ran, in time. Returns how many."""
    due = Invocation.objects.open().filter(
        state__in=[InvocationState.PENDING, InvocationState.READY],
        lease_until__lte=now + SLACK,
        approval__isnull=False,
    )
    ids = list(due.order_by("lease_until").values_list("approval__pk", flat=True)[:_BATCH])
    return sum(expire(request_id=each, now=now) is InvocationState.EXPIRED for each in ids)


def forget_ends(now: datetime) -> int:
    """Let go of ends that nobody came for in time, so that the identical call asks anew. Returns
    how many."""
    kept = (
        ApprovalRequest.objects.exclude(join_key=None)
        .filter(call__state__in=[*TERMINAL])
        .select_related("call")
    )
    return sum(
        _forget_if_due(request, now) for request in kept.order_by("call__finished_at")[:_BATCH]
    )


def end(
    request: ApprovalRequest,
    state: InvocationState,
    *,
    reason: str,
    actor: str,
    now: datetime,
    decided: str = "",
    code: str = "",
) -> bool:
    """Move a held call to an end, with all that follows. False when it had moved meanwhile.

    Within the caller's transaction; ``request.call`` holds the new state afterwards.
    """
    call = request.call
    assert is_move_allowed(InvocationState(call.state), state)
    ended = ending.build_end_columns(
        state,
        received_at=call.received_at,
        now=now,
        reason=reason,
        code=code or state.value.upper(),
    )
    if not ending.write_end(call, ended, actor=actor):
        call.refresh_from_db()
        return False
    call.state = state
    call.reason = ended["reason"]
    call.finished_at = now
    # the caller itself wants no more of it
    gone = {"join_key": None} if state is InvocationState.CANCELLED else {}
    own = ApprovalRequest.objects.filter(pk=request.pk)
    own.update(
        decided_at=request.decided_at or now, decided_reason=clean_text(decided or reason), **gone
    )
    announce(NotificationEvent(state.value), request, now)
    return True


def lock_request(request_id: str) -> ApprovalRequest:
    """The request for the rest of the transaction. Raises NotFound."""
    if (request := _lock(pk=request_id)) is None:
        raise NotFound(_NO_REQUEST, remedy=_LIST_REQUESTS)
    return request


def _lock(**which: Any) -> ApprovalRequest | None:
    """Requests go one by one: PostgreSQL locks the row; on SQLite the transaction has the database
    to itself.

    The call is read after the lock was got: one read with it could show what was before the wait.
    """
    key = (
        ApprovalRequest.objects.select_for_update(of=("self",))
        .filter(**which)
        .values_list("pk", flat=True)
        .first()
    )
    return ApprovalRequest.objects.select_related("call", "group").get(pk=key) if key else None
