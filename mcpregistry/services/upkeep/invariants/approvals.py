"""What must be true of held calls: what ran is what was approved, by enough people, once, in
time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from mcpregistry.db import stream_rows
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.models import ApprovalRequest, ApprovalVote, AuditEntry, Invocation
from mcpregistry.services.approvals.requests import hash_current_arguments, recompute_binding
from mcpregistry.services.records import signed_calls, signed_permits
from mcpregistry.services.records.signed_approvals import KINDS, SignedApproval, find_differences

_GRACE = timedelta(seconds=30)  # the reaper comes by every ten seconds
_BATCH = 200  # calls whose votes or entries are read in one query
_APPROVED = [
    InvocationState.READY,
    InvocationState.DISPATCHED,
    InvocationState.SUCCEEDED,
    InvocationState.TOOL_ERROR,
    InvocationState.NOT_SENT,
    InvocationState.UNKNOWN,
]


def _select_approved_requests() -> QuerySet[ApprovalRequest]:
    """Requests whose calls were approved, by their state."""
    rows = ApprovalRequest.objects.filter(call__state__in=_APPROVED, call__outcome="ask").order_by()
    return rows.select_related("call")


def find_calls_without_request(now: datetime) -> Iterator[str]:
    """Calls that wait, or were decided, and have no request."""
    asked = Invocation.objects.filter(
        Q(outcome="ask", state__in=_APPROVED) | Q(state=InvocationState.PENDING)
    )
    return _iterate_keys(
        asked.filter(~Exists(ApprovalRequest.objects.filter(call_id=OuterRef("pk"))))
    )


def find_runs_without_quorum(now: datetime) -> Iterator[str]:
    """Different people, agreeing on one and the same bytes: those that ran, as far as they are
    still stored."""
    for request in stream_rows(_select_approved_requests().prefetch_related("votes"), _BATCH):
        agreeing = Counter(vote.arguments_hash for vote in request.votes.all() if vote.approve)
        if request.call.arguments:
            bytes_that_ran = hash_current_arguments(request)
            agreeing = Counter({bytes_that_ran: agreeing[bytes_that_ran]})
        if max(agreeing.values(), default=0) < request.quorum:
            yield request.call_id


def find_approvals_not_as_signed(now: datetime) -> Iterator[str]:
    """Held calls whose terms, votes or approval differ from the signed entries of the audit log."""
    forgotten = signed_calls.Forgotten()
    requests = (
        ApprovalRequest.objects.select_related("call").prefetch_related("votes").order_by("pk")
    )
    rows = stream_rows(requests, _BATCH)
    while batch := list(islice(rows, _BATCH)):
        signed = _load_signed_approvals([request.call_id for request in batch])
        for request in batch:
            erased = request.call.received_at < forgotten.payloads
            votes = list(request.votes.all())
            entries = signed.get(request.call_id, SignedApproval())
            found = any(find_differences(request, entries, votes, erased=erased))
            # it may have moved on in between
            if found and signed_calls.find_call_misfits(request.call_id, forgotten):
                yield request.call_id


def _load_signed_approvals(calls: list[str]) -> dict[str, SignedApproval]:
    """By call, what its entries say. An entry that is not as it was written is found with its
    chain."""
    entries: dict[str, list[AuditEntry]] = {}
    for entry in AuditEntry.objects.filter(
        subject__in=[f"call:{call}" for call in calls], kind__in=KINDS
    ):
        entries.setdefault(entry.subject.removeprefix("call:"), []).append(entry)
    return {
        call: read
        for call, each in entries.items()
        if (read := _read_signed_approval(each)) is not None
    }


def _read_signed_approval(entries: list[AuditEntry]) -> SignedApproval | None:
    try:
        return SignedApproval.read(entries)
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def find_permits_not_as_signed(now: datetime) -> Iterator[str]:
    """Permits that could be used and differ from the signed entries."""
    return signed_permits.find_differences(now)


def find_sent_after_rejection(now: datetime) -> Iterator[str]:
    """Calls that somebody rejected and that ran all the same."""
    against = ApprovalVote.objects.filter(request=OuterRef("pk"), approve=False)
    return stream_rows(
        _select_approved_requests().filter(Exists(against)).values_list("call_id", flat=True)
    )


def find_unallowed_confirmations(now: datetime) -> Iterator[str]:
    """Calls that the person at the host confirmed although their rule does not let the
    requester."""
    odd = ApprovalVote.objects.filter(via="host", request__requester_may_confirm=False)
    return (each.request.call_id for each in stream_rows(odd.select_related("request").order_by()))


def find_self_approvals(now: datetime) -> Iterator[str]:
    """Calls that the person who asked for them approved, although their rule does not let the
    requester."""
    own = ApprovalVote.objects.filter(approve=True, user_id=F("request__call__requester_id"))
    odd = own.filter(request__requester_may_confirm=False).order_by()
    return stream_rows(odd.values_list("request__call_id", flat=True))


def find_calls_not_as_approved(now: datetime) -> Iterator[str]:
    """The record still says what its binding says, and what the audit log says was sent is that."""
    requests = stream_rows(_select_approved_requests(), _BATCH)
    while batch := list(islice(requests, _BATCH)):
        sent = _load_sent_bindings([request.call_id for request in batch])
        for request in batch:
            call = request.call
            forged = bool(call.arguments) and recompute_binding(request) != call.binding
            if forged or (
                call.state != InvocationState.READY and sent.get(call.pk) != call.binding
            ):
                yield call.pk


def _load_sent_bindings(calls: list[str]) -> dict[str, str | None]:
    """By call, the binding that the audit log names where it says that the call was sent."""
    subjects = [f"call:{call}" for call in calls]
    entries = AuditEntry.objects.filter(subject__in=subjects, kind="call.dispatched").order_by("id")
    told = entries.values_list("subject", "body")
    return {
        subject.removeprefix("call:"): json.loads(body).get("binding") for subject, body in told
    }


def find_joinable_after_end(now: datetime) -> Iterator[str]:
    """Requests that would give an end to the identical call although it was told already, or is
    stale."""
    kept = (
        ApprovalRequest.objects.exclude(join_key=None)
        .filter(call__state__in=[*TERMINAL])
        .select_related("call")
    )
    for request in stream_rows(kept.order_by()):
        ended = request.call.finished_at or now
        if (
            request.delivered_at is not None
            or ended + timedelta(seconds=request.execute_seconds) < now - _GRACE
        ):
            yield request.call_id


def find_overdue_requests(now: datetime) -> Iterator[str]:
    """Held calls that are open though their deadline is over by more than the reaper needs."""
    late = Q(call__state=InvocationState.PENDING, decide_by__lt=now - _GRACE) | Q(
        call__state=InvocationState.READY, execute_by__lt=now - _GRACE
    )
    return (each.call_id for each in stream_rows(ApprovalRequest.objects.filter(late).order_by()))


def find_decisions_without_time(now: datetime) -> Iterator[str]:
    """Decided requests without the time of the decision."""
    decided = ApprovalRequest.objects.exclude(call__state=InvocationState.PENDING).filter(
        decided_at=None
    )
    return _iterate_keys(decided)


def _iterate_keys(rows: QuerySet[Any]) -> Iterator[str]:
    return (str(key) for key in stream_rows(rows.order_by().values_list("pk", flat=True)))


RULES = [
    ("Every held call has its approval request.", find_calls_without_request),
    (
        "Held calls ran only with enough approvals of exactly their arguments.",
        find_runs_without_quorum,
    ),
    ("Terms, votes and approvals match the audit log.", find_approvals_not_as_signed),
    ("Permits match the audit log.", find_permits_not_as_signed),
    ("Rejected calls never ran.", find_sent_after_rejection),
    (
        "Requesters confirmed their own calls only if the rule allowed it.",
        find_unallowed_confirmations,
    ),
    ("No user approved their own call.", find_self_approvals),
    (
        "Each call ran as it was approved: agent, server, definition, arguments and rule.",
        find_calls_not_as_approved,
    ),
    (
        "The outcome of a held call is not kept after the caller has received it, or after the time limit.",
        find_joinable_after_end,
    ),
    ("No held call is open after its time limit.", find_overdue_requests),
    ("Every decided call has the time of its decision.", find_decisions_without_time),
]
