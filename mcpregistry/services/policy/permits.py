"""Permits: approvals given ahead, which only ever narrow what a request asked for.

A permit covers calls of one agent and one tool as they were when it was given: the same definition,
the same revision of the server, under the very rule that asked. Any change ends it. It counts only
while the person who gave it could still approve: with that right, in the group that the rule names,
and not as the owner of the agent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, F, OuterRef
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.lifecycle import NEVER_RAN
from mcpregistry.domain.policy.access import match_pins
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.models import Agent, ApprovalRequest, AuditEntry, Invocation, Message, Permit, Tool
from mcpregistry.models.conversation import MessageKind
from mcpregistry.services.access.roles import DECIDE
from mcpregistry.services.records import audit, signed_permits
from mcpregistry.services.records.chains import explain_entry_problem

log = structlog.get_logger(__name__)

_USED = "permit.used"
_RETURNED = "permit.returned"
LONGEST = timedelta(days=30)
# after a call's end; who made it has given its use back long before, if it lives
_GIVEN_UP = timedelta(minutes=1)
# A use is taken just before its call is sent. By then the clock has looked hundreds of times: older
# ones need no reading.
_LOOK_BACK = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class PermitWish:
    """What an approver allows besides the call at hand: ``pins`` are some of its arguments, with
    their values."""

    until: datetime
    pins: Mapping[str, Any] = field(default_factory=dict)
    uses: int | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """One use of a permit (``id`` is its key) was taken; ``why`` says to the record by which right
    a call runs."""

    id: int
    why: str


def check(wish: PermitWish, *, request: ApprovalRequest, arguments: str, now: datetime) -> None:
    """Raise ConfigInvalid when the wish would allow more than this very call, longer than a month,
    or nothing."""
    if request.quorum > 1:
        raise ConfigInvalid(
            "You cannot create a permit for a call that requires several approvers.",
            remedy="Approve the call without a permit.",
        )
    if not now < wish.until <= now + LONGEST:
        raise ConfigInvalid(
            f"The expiry of a permit must be in the future, and at most 30 days from now (got {wish.until.isoformat(timespec='minutes')}).",
            remedy="Choose another expiry.",
        )
    if wish.uses is not None and wish.uses < 1:
        raise ConfigInvalid(
            f"A permit must allow at least one use (got {wish.uses}).",
            remedy="Enter 1 or more. For any number of uses, leave the field empty.",
        )
    if not match_pins(wish.pins, json.loads(arguments)):
        raise ConfigInvalid(
            "A permit can only pin arguments that this call has, with the values that they have in this call.",
            remedy="Remove the other arguments and values.",
        )


def give(*, request: ApprovalRequest, wish: PermitWish, user: User) -> Permit:
    """Store the permit in the transaction of the approval that it comes with, after ``check``.
    Raises Conflict."""
    call = request.call
    tool = Tool.offers.of_record(call.server_slug, call.tool_name).first()
    agent = Agent.objects.filter(slug=call.agent_slug).first()
    if tool is None or agent is None:
        raise Conflict(
            "The tool or the agent does not exist any more.",
            remedy="Approve the call without a permit, or reject it.",
        )
    permit = Permit.objects.create(
        agent=agent,
        tool=tool,
        definition_hash=call.definition_hash,
        server_revision=call.server_revision,
        argument_pins=dict(wish.pins),
        expires_at=wish.until,
        uses_left=wish.uses,
        request=request,
        created_by=user,
    )
    # the database may store another spelling of a number
    permit.refresh_from_db(fields=["argument_pins"])
    audit.record_entry(
        kind="permit.given",
        actor=f"user:{user.username}",
        subject=f"permit:{permit.pk}",
        agent=agent.slug,
        tool=str(tool),
        pins=encode_lossy_json(sorted(wish.pins)),
        until=wish.until.isoformat(),
        uses=wish.uses,
        **signed_permits.build_permit_facts(permit),
    )
    return permit


@transaction.atomic
def revoke(*, permit: Permit, actor: str) -> Permit:
    """End a permit now. Doing it twice is no error."""
    now = timezone.now()
    permit = Permit.objects.select_for_update().get(pk=permit.pk)
    if permit.revoked_at is None:
        permit.revoked_at = now
        permit.save(update_fields=["revoked_at"])
        audit.record_entry(
            kind="permit.revoked",
            actor=actor,
            subject=f"permit:{permit.pk}",
            **signed_permits.build_permit_facts(permit),
        )
    return permit


def find_covering_permits(
    *,
    agent_slug: str,
    tool_id: int,
    definition_hash: str,
    server_revision: int,
    arguments: Mapping[str, Any],
    fingerprint: str,
    now: datetime,
    requester: int | None = None,
    conversation: str = "",
) -> list[Permit]:
    """The live permits that allow this call, those with the fewest uses first.

    ``requester`` is the key of the person who asks, for whom what they have permitted themselves
    does not count. Nor does it for people who have written to the agent in the ``conversation`` of
    the call.
    """
    live = Permit.objects.filter(
        agent__slug=agent_slug,
        tool_id=tool_id,
        definition_hash=definition_hash,
        server_revision=server_revision,
        revoked_at=None,
        expires_at__gt=now,
        request__rule_fingerprint=fingerprint,
    ).exclude(uses_left=0)
    if requester is not None:
        live = live.exclude(created_by=requester)
    if conversation:
        written = Message.objects.filter(
            conversation=conversation, kind=MessageKind.IN, author_id=OuterRef("created_by")
        )
        live = live.filter(~Exists(written))
    found = live.select_related("agent", "created_by", "request").order_by(
        F("uses_left").asc(nulls_last=True), "expires_at"
    )
    return [
        permit
        for permit in found
        if match_pins(permit.argument_pins, arguments) and _can_giver_still_approve(permit)
    ]


@transaction.atomic
def use_permit(
    *, call_id: str, permits: Iterable[Permit], agent_slug: str, now: datetime
) -> Used | None:
    """Take one use of the first of these that still has one. None when none has.

    A permit that is not as the log says ends here, without the use: people are asked.
    """
    for permit in permits:
        live = Permit.objects.filter(pk=permit.pk, revoked_at=None, expires_at__gt=now)
        uses = live.filter(uses_left__gt=0)
        if not (
            uses.update(uses_left=F("uses_left") - 1)
            if permit.uses_left is not None
            else live.exists()
        ):
            continue
        # another use may have been faster
        left = Permit.objects.values_list("uses_left", flat=True).get(pk=permit.pk)
        permit.uses_left = None if left is None else left + 1
        if problem := signed_permits.find_difference(permit):
            _end_unproven(permit, problem, now)
            continue
        permit.uses_left = left
        facts = signed_permits.build_permit_facts(permit)
        audit.record_entry(
            kind=_USED, actor=agent_slug, subject=f"permit:{permit.pk}", call=call_id, **facts
        )
        return Used(
            permit.pk,
            f"permit {permit.pk}, created by {permit.created_by} with request {permit.request_id}",
        )
    return None


def _end_unproven(permit: Permit, problem: str, now: datetime) -> None:
    """Somebody has written it by hand, or changed it: it is never used again, and the operator is
    told."""
    # the use is not taken
    Permit.objects.filter(pk=permit.pk).update(revoked_at=now, uses_left=permit.uses_left)
    audit.record_entry(
        kind="permit.unproven", actor="permits", subject=f"permit:{permit.pk}", problem=problem
    )
    transaction.on_commit(partial(log.error, "permit.unproven", permit=permit.pk, problem=problem))


@transaction.atomic
def give_back(*, permit_id: int, call_id: str, agent_slug: str) -> None:
    """The call that may have taken a use never ran: another one may have it, if it has. Again does
    nothing."""
    rows = Permit.objects.select_for_update(of=("self",)).select_related("request")
    permit = rows.filter(pk=permit_id).first()  # one after another: the log is looked at first
    told = list(
        AuditEntry.objects.filter(
            subject=f"permit:{permit_id}", body__contains=encode_lossy_json({"call": call_id})[1:-1]
        )
    )
    if (
        permit is None
        or {each.kind for each in told} != {_USED}
        or any(map(explain_entry_problem, told))
    ):
        return
    if signed_permits.find_difference(permit):  # its next use ends it
        return
    Permit.objects.filter(pk=permit_id, uses_left__isnull=False).update(
        uses_left=F("uses_left") + 1
    )
    permit.uses_left = None if permit.uses_left is None else permit.uses_left + 1
    facts = signed_permits.build_permit_facts(permit)
    audit.record_entry(
        kind=_RETURNED, actor=agent_slug, subject=f"permit:{permit_id}", call=call_id, **facts
    )


def give_back_left(now: datetime) -> int:
    """Give back the uses of calls that never ran, as their records say, whose process died before
    it did. Returns how many.

    Not of calls without a record: their process may only be slow, and would make them on a use that
    another has by then.
    """
    limited = Permit.objects.filter(revoked_at=None, expires_at__gt=now, uses_left__isnull=False)
    agents = {f"permit:{pk}": slug for pk, slug in limited.values_list("pk", "agent__slug")}
    told = AuditEntry.objects.filter(
        subject__in=agents, kind__in=(_USED, _RETURNED), at__gt=now - _LOOK_BACK
    )
    taken: dict[str, set[tuple[str, str]]] = {_USED: set(), _RETURNED: set()}
    for kind, subject, body in told.order_by().values_list("kind", "subject", "body"):
        taken[kind].add((json.loads(body)["call"], subject))
    open_uses = taken[_USED] - taken[_RETURNED]
    ended = Invocation.objects.filter(state__in=NEVER_RAN, finished_at__lt=now - _GIVEN_UP)
    left = {*ended.filter(pk__in=[call for call, _ in open_uses]).values_list("pk", flat=True)}
    for call, subject in open_uses:
        if call in left:
            give_back(
                permit_id=int(subject.partition(":")[2]), call_id=call, agent_slug=agents[subject]
            )
    return len(left)


def _can_giver_still_approve(permit: Permit) -> bool:
    """Whether the giver could approve the call that the permit was given with, at this moment."""
    giver = permit.created_by
    request = permit.request
    if giver is None or request is None or not giver.is_active or not giver.has_perm(DECIDE):
        return False
    if permit.agent.owner_id == giver.pk:
        return False
    return request.group_id is None or giver.groups.filter(pk=request.group_id).exists()
