"""Deciding on held calls: who may, votes, edits, and what follows from them. For every face alike.

One rejection ends a call. Approvals count only on the bytes that will run, from different people
who may decide at that moment; they are looked at once more before the call runs
(``explain_lost_quorum``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Conflict, Denied, SlipsnisseError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.notifications.events import NotificationEvent
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.failpoints import failpoint
from mcpregistry.models import Agent, ApprovalRequest, ApprovalVote, Invocation
from mcpregistry.services.access.roles import DECIDE
from mcpregistry.services.approvals import edits, held_calls, refusals, waiters
from mcpregistry.services.approvals.announce import announce
from mcpregistry.services.approvals.requests import (
    get_current_arguments,
    has_steered,
    has_written,
    hash_current_arguments,
    is_requester,
    recompute_binding,
)
from mcpregistry.services.configuration.dispatch import wake_worker
from mcpregistry.services.policy import permits
from mcpregistry.services.policy.permits import PermitWish
from mcpregistry.services.records import audit, signed_approvals

HOST = "host"  # votes of the person at the host, who needs no account

_ANOTHER = "Ask another approver to decide."
_SO_ANOTHER = "so another approver must decide"
_ONE_MORE = "Another approver must approve it as well."
_REVIEW_CALL = "To see the decision, open the page of the call again."


class AlreadyDecided(Conflict):
    """Somebody else was faster, or time was; the message names who (HTTP 409)."""

    code = "ALREADY_DECIDED"


# Who may


def explain_ineligibility(request: ApprovalRequest, user: User) -> str:
    """Why this person may not vote on this request; "" when she may."""
    told = _explain_ineligibility(request, user)
    if told:
        return told
    voted = ApprovalVote.objects.filter(
        request=request, user=user, arguments_hash=hash_current_arguments(request)
    )
    return "You have already voted on this call." if voted.exists() else ""


def _explain_ineligibility(request: ApprovalRequest, user: User) -> str:
    if not user.is_active:
        return "This account is disabled."
    if told := _explain_own_request(request, user):
        return "" if request.requester_may_confirm else told
    if not user.has_perm(DECIDE):
        return f"{error_texts.say_not_permitted('decide on', 'held calls')} {error_texts.advise_role('approver')}"
    if request.group is not None and not user.groups.filter(pk=request.group_id).exists():
        return f"Only members of the group {request.group.name} can decide on this call."
    return ""


def _explain_own_request(request: ApprovalRequest, user: User) -> str:
    """Words for somebody whose own request this is, through whichever door; "" for everybody
    else."""
    if is_requester(request, user):
        return f"You requested this call, {_SO_ANOTHER}."
    if has_written(request, user):
        return f"You have written in the conversation of this call, {_SO_ANOTHER}."
    if has_steered(request, user):
        return f"You have recorded the outcome of another call of this run, {_SO_ANOTHER}."
    return (
        f"You own the agent of this call, {_SO_ANOTHER}."
        if _find_owner_id(request) == user.pk
        else ""
    )


def _find_owner_id(request: ApprovalRequest) -> int | None:
    return (
        Agent.objects.filter(slug=request.call.agent_slug)
        .values_list("owner_id", flat=True)
        .first()
    )


# Votes


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
    """Vote as one person. A rejection ends the call; the last approval of the quorum lets it run.

    ``seen`` is ``arguments_hash(request)`` of what the person was shown: a vote on other bytes than
    those that would run now is refused. ``arguments``: approve with these instead (an edit).

    Raises NotFound, AlreadyDecided, Denied (not eligible, with the reason), ArgumentsInvalid (the
    edit), Conflict (the bytes were edited meanwhile), ConfigInvalid (the permit).
    """
    now = now or timezone.now()
    held_calls.expire(request_id=request_id, now=now)  # silence meant no, whoever comes now
    misfit = edits.find_misfit(request_id, arguments) if approve and arguments is not None else None
    with transaction.atomic():
        request = _lock_open_request(request_id)
        if told := _explain_ineligibility(request, user):
            raise Denied(told, remedy=_ANOTHER)
        if approve:
            _check_seen(request, seen)
            if arguments is not None:
                _edit(request, arguments, misfit, now)
            _check_approval(request, user, permit, now)
        _write(
            request,
            user=user,
            name=_name_voter(user),
            approve=approve,
            reason=reason,
            via=via,
            now=now,
        )
        if not approve:
            _reject(
                request, by=_name_voter(user), actor=f"user:{user.username}", reason=reason, now=now
            )
        elif _is_quorum_met(request):
            _release_call(request, actor=f"user:{user.username}", reason=reason, now=now)
            if permit is not None:
                permits.give(request=request, wish=permit, user=user)
    failpoint("voted")
    return request


def _check_approval(
    request: ApprovalRequest, user: User, permit: PermitWish | None, now: datetime
) -> None:
    """After an edit: whether this person may approve what would run now, and permit what was wished
    for."""
    if told := explain_ineligibility(request, user):
        raise Conflict(told, remedy=_ONE_MORE)
    if permit is not None:
        permits.check(permit, request=request, arguments=get_current_arguments(request), now=now)
        if _explain_own_request(request, user):
            raise Denied(
                "You can confirm your own call, but you cannot create a permit for further calls.",
                remedy="Approve the call without a permit.",
            )


def confirm(*, request_id: str, by: str, now: datetime | None = None) -> ApprovalRequest:
    """The person at the host says yes, which counts only where the rule lets the requester confirm.

    ``by`` names the host. Raises ``Denied`` elsewhere.
    """
    now = now or timezone.now()
    held_calls.expire(request_id=request_id, now=now)
    with transaction.atomic():
        request, owner = _lock_for_host(request_id)
        _write(request, user=owner, name=by, approve=True, reason="", via=HOST, now=now)
        if _is_quorum_met(request):
            _release_call(request, actor=f"agent:{request.call.agent_slug}", reason="", now=now)
    failpoint("voted")
    return request


def refuse(
    *, request_id: str, by: str, reason: str = "", now: datetime | None = None
) -> ApprovalRequest:
    """The person at the host says no."""
    now = now or timezone.now()
    held_calls.expire(request_id=request_id, now=now)
    with transaction.atomic():
        request, owner = _lock_for_host(request_id)
        _write(request, user=owner, name=by, approve=False, reason=reason, via=HOST, now=now)
        _reject(request, by=by, actor=f"agent:{request.call.agent_slug}", reason=reason, now=now)
    failpoint("voted")
    return request


@transaction.atomic
def lift_refusal(*, request_id: str, user: User, reason: str = "") -> ApprovalRequest:
    """Take a refusal back: the identical call is asked about again at once. The refused call itself
    stays refused.

    Raises NotFound, Denied (whoever may not decide on it), Conflict (no refusal of it is kept).
    """
    request = held_calls.lock_request(request_id)
    if told := _explain_ineligibility(request, user):
        raise Denied(told, remedy=_ANOTHER)
    if not refusals.forget(request):
        raise Conflict(
            "The earlier rejection of this call no longer applies.",
            remedy="You need to do nothing: approvers are asked when an agent makes this call again.",
        )
    audit.record_entry(
        kind="approval.refusal_lifted",
        actor=f"user:{user.username}",
        subject=f"call:{request.call_id}",
        reason=clean_text(reason),
    )
    return request


def _lock_for_host(request_id: str) -> tuple[ApprovalRequest, User | None]:
    request = _lock_open_request(request_id)
    if not request.requester_may_confirm:
        raise Denied(
            "The rule of this call does not allow the user of the host to decide.", remedy=_ANOTHER
        )
    owner = User.objects.filter(agents__slug=request.call.agent_slug).first()
    if owner is not None and not owner.is_active:
        raise Denied("The account of the agent's owner is disabled.", remedy=_ANOTHER)
    said = ApprovalVote.objects.filter(
        request=request, arguments_hash=hash_current_arguments(request)
    )
    if said.filter(Q(via=HOST) | Q(user=owner, user__isnull=False)).exists():
        raise Conflict("The requester has already confirmed this call.", remedy=_ONE_MORE)
    return request, owner


def _lock_open_request(request_id: str) -> ApprovalRequest:
    request = held_calls.lock_request(request_id)
    if request.call.state != InvocationState.PENDING:
        raise AlreadyDecided(describe_decision(request), remedy=_REVIEW_CALL)
    return request


def describe_decision(request: ApprovalRequest) -> str:
    """One sentence: who decided, or why nobody can any more."""
    state = InvocationState(request.call.state)
    votes = request.votes.filter(approve=request.call.state != InvocationState.REJECTED)
    names = " and ".join(votes.values_list("name", flat=True)) or "An approver"
    if state is InvocationState.REJECTED:
        return f"{names} already rejected this call."
    if state in (InvocationState.EXPIRED, InvocationState.CANCELLED, InvocationState.VOID):
        return f"You can no longer decide on this call: {request.decided_reason}"
    return f"{names} already approved this call."


def _check_seen(request: ApprovalRequest, seen: str) -> None:
    if seen and seen != hash_current_arguments(request):
        raise Conflict(
            "The arguments were changed after you opened this page.",
            remedy="Open the page of the call again, and review the new arguments.",
        )


def _write(
    request: ApprovalRequest,
    *,
    user: User | None,
    name: str,
    approve: bool,
    reason: str,
    via: str,
    now: datetime,
) -> None:
    facts = {
        "name": clean_text(name, 150),
        "approve": approve,
        "reason": clean_text(reason),
        "arguments_hash": hash_current_arguments(request),
        "via": via,
        "at": now,
    }
    if user is None:
        ApprovalVote.objects.create(request=request, user=None, **facts)
    else:  # whoever voted on other bytes may vote again; the audit log keeps both
        ApprovalVote.objects.update_or_create(request=request, user=user, defaults=facts)
    audit.record_entry(
        kind="approval.vote",
        actor=f"user:{user.username}" if user else f"agent:{request.call.agent_slug}",
        subject=f"call:{request.call_id}",
        approve=approve,
        arguments=facts["arguments_hash"],
        via=via,
        reason=facts["reason"],
        **signed_approvals.build_vote_facts(facts, user.pk if user else None),
    )


def _reject(request: ApprovalRequest, *, by: str, actor: str, reason: str, now: datetime) -> None:
    why = f": {clean_text(reason, 5000).rstrip('. ')}" if reason.strip() else ""
    words = f"REJECTED by {by}{why}. The call was not made. Do not retry it unchanged."
    _require_moved(
        request,
        held_calls.end(
            request, InvocationState.REJECTED, reason=words, actor=actor, now=now, decided=reason
        ),
    )
    refusals.remember(request)


def _release_call(request: ApprovalRequest, *, actor: str, reason: str, now: datetime) -> None:
    call = request.call
    execute_by = now + timedelta(seconds=request.execute_seconds)
    pending = Invocation.objects.filter(
        pk=call.pk, state=InvocationState.PENDING, binding=call.binding
    )
    _require_moved(
        request,
        pending.update(state=InvocationState.READY, lease_until=execute_by + held_calls.SLACK),
    )
    call.state = InvocationState.READY
    request.decided_at = now
    request.decided_reason = clean_text(reason)
    request.execute_by = execute_by
    ApprovalRequest.objects.filter(pk=request.pk).update(
        decided_at=now, decided_reason=request.decided_reason, execute_by=execute_by
    )
    audit.record_entry(
        kind="call.approved",
        actor=actor,
        subject=f"call:{call.pk}",
        binding=call.binding,
        by=[each.name for each in select_valid_votes(request, list_votes(request))],
        **signed_approvals.build_approval_facts(request),
    )
    announce(NotificationEvent.APPROVED, request, now)
    if is_run_by_worker(request):
        transaction.on_commit(lambda: wake_worker("run_approved", call.pk))


def _require_moved(request: ApprovalRequest, moved: int) -> None:
    """It was locked and pending, so only the reaper can have been faster."""
    if not moved:
        request.call.refresh_from_db()
        raise AlreadyDecided(describe_decision(request), remedy=_REVIEW_CALL)


def is_run_by_worker(request: ApprovalRequest) -> bool:
    """Once approved, a worker runs it: its caller polls a task, or nobody waits and the rule says
    run anyway."""
    return request.waiting_as == ApprovalRequest.Waiting.TASK or (
        request.run_if_caller_left and not waiters.has_waiting_caller(request)
    )


# What counts


def list_votes(request: ApprovalRequest) -> list[ApprovalVote]:
    """All votes on it, with the accounts."""
    return list(request.votes.select_related("user"))


def select_valid_votes(
    request: ApprovalRequest, votes: Iterable[ApprovalVote]
) -> list[ApprovalVote]:
    """Of the votes on it, the approvals of these very bytes by people who may decide at this
    moment."""
    return [
        each for each in _select_agreeing_votes(request, votes) if not _is_vote_lost(request, each)
    ]


def explain_lost_quorum(request: ApprovalRequest, votes: Iterable[ApprovalVote]) -> str:
    """Why the quorum that was met by the votes on it no longer is; "" while it holds."""
    agreeing = _select_agreeing_votes(request, votes)
    lost = [each for each in agreeing if _is_vote_lost(request, each)]
    if len(agreeing) - len(lost) >= request.quorum:
        return ""
    why = [f"{each.name} no longer has permission to approve the call" for each in lost]
    return "; ".join(why) or "too few approvers have approved these arguments"


def _select_agreeing_votes(
    request: ApprovalRequest, votes: Iterable[ApprovalVote]
) -> list[ApprovalVote]:
    shown = hash_current_arguments(request)
    return [each for each in votes if each.approve and each.arguments_hash == shown]


def _is_quorum_met(request: ApprovalRequest) -> bool:
    return len(select_valid_votes(request, list_votes(request))) >= request.quorum


def _is_vote_lost(request: ApprovalRequest, vote: ApprovalVote) -> bool:
    if vote.via == HOST:
        return not request.requester_may_confirm or (
            vote.user is not None and not vote.user.is_active
        )
    return vote.user is None or bool(_explain_ineligibility(request, vote.user))


# Edits


def _edit(
    request: ApprovalRequest,
    arguments: Mapping[str, Any],
    misfit: SlipsnisseError | None,
    now: datetime,
) -> None:
    """From now on these arguments would run; earlier votes were on others and count no more."""
    call = request.call
    text = edits.canonicalize_arguments(arguments)
    if text == get_current_arguments(request):
        return
    edits.check(request, json.loads(text), misfit, now)
    request.edited = "" if text == call.arguments else text
    binding = recompute_binding(request)
    _require_moved(
        request,
        Invocation.objects.filter(pk=call.pk, state=InvocationState.PENDING).update(
            binding=binding
        ),
    )
    ApprovalRequest.objects.filter(pk=request.pk).update(edited=request.edited)
    audit.record_entry(
        kind="approval.edited",
        actor="approvals",
        subject=f"call:{call.pk}",
        before=call.binding,
        binding=binding,
        arguments=hash_current_arguments(request),
    )
    call.binding = binding


def _name_voter(user: User) -> str:
    return user.get_full_name() or user.username
