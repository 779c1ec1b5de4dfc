"""What happened to one call, step by step with the time between, read from its record and the audit
log's entries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.domain.text.secret_names import is_secret_name
from mcpregistry.models import (
    ApprovalRequest,
    ApprovalVote,
    AuditEntry,
    AuditSeal,
    Invocation,
    PolicyRule,
)
from mcpregistry.queries.approvals import when_it_runs
from mcpregistry.services.records.chains import explain_entry_problem
from mcpregistry.services.records.signed_calls import Forgotten, find_misfits

_RULE = re.compile(r"rule '(.+)'", re.DOTALL)  # as decisions are reasoned


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One thing that happened. ``tone``: good, wrong or nothing; ``after``: milliseconds since the
    step before."""

    icon: str
    what: str
    detail: str = ""
    at: datetime | None = None
    tone: str = ""
    after: float | None = None
    approval: str = ""  # the id of the request that it is about
    rule: int | None = None


def list_story_steps(
    call: Invocation, entries: Sequence[AuditEntry], *, people: bool = True
) -> list[StoryStep]:
    """From the asking to the end, then whether the record fits what the log has signed. ``entries``
    are the call's own.

    ``people`` False: not who decided and why, for whoever sees calls and no approvals.
    """
    held = ApprovalRequest.objects.filter(call=call).defer("result").first()
    steps = [
        _describe_request(call),
        _describe_decision(call, held),
        *_describe_votes(held, named=people),
        *_describe_sending(call),
        _describe_end(call, held),
    ]
    return [*_add_gaps(steps), _describe_verification(call, entries)]


def _describe_request(call: Invocation) -> StoryStep:
    text = (
        _("Requested by %(agent)s for %(requester)s")
        if call.requester
        else _("Requested by %(agent)s")
    )
    who = text % {"agent": call.agent_slug, "requester": call.requester}
    ways = {
        "stdio": _("over stdio"),
        "http": _("over HTTP"),
        "rest": _("over REST or from a page"),
        "run": _("by a run"),
        "test": _("by a test of the server"),
        "trial": _("by a trial of the server"),
    }
    where = [
        _("from %(host)s") % {"host": call.host_name} if call.host_name else "",
        ways.get(call.origin, call.origin),
        _("at the endpoint %(endpoint)s") % {"endpoint": call.endpoint_slug}
        if call.endpoint_slug
        else "",
    ]
    return StoryStep("input", who, " ".join(part for part in where if part), call.received_at)


def _describe_decision(call: Invocation, held: ApprovalRequest | None) -> StoryStep:
    words = {"allow": _("Allowed"), "ask": _("Approval required"), "deny": _("Denied")}
    said = words.get(call.outcome, _("No decision"))
    tone = {"allow": "good", "deny": "wrong"}.get(call.outcome, "")
    if held:
        why = held.rule_name
    elif call.error_code:
        why = ""
    else:
        why = call.reason
    rule = held.rule_id if held else _find_rule(why)
    return StoryStep(
        "policy", said, why, held.asked_at if held else call.received_at, tone, rule=rule
    )


def _find_rule(reason: str) -> int | None:
    """The rule that a reason names, if one is called so still."""
    named = _RULE.fullmatch(reason)
    return (
        PolicyRule.objects.filter(name=named[1]).values_list("pk", flat=True).first()
        if named
        else None
    )


def _describe_votes(held: ApprovalRequest | None, *, named: bool) -> Iterator[StoryStep]:
    if held is None:
        return
    yield StoryStep(
        "hourglass",
        ngettext("Held for %(count)s approval", "Held for %(count)s approvals", held.quorum)
        % {"count": held.quorum},
        _("can be decided until %(time)s") % {"time": f"{held.decide_by:%H:%M:%S}"},
        held.asked_at,
        approval=held.pk,
    )
    votes = list(held.votes.all()[:50])
    if named:
        yield from map(_vote, votes)
    elif votes and held.decided_at is not None:
        yield StoryStep(
            "how_to_vote", _("A decision was made"), "", held.decided_at, approval=held.pk
        )
    if held.edited:
        yield StoryStep(
            "edit",
            _("An approver changed the arguments"),
            _("The call can run only with the changed arguments."),
            held.decided_at,
            approval=held.pk,
        )


def _vote(vote: ApprovalVote) -> StoryStep:
    tone, text = (
        ("good", _("Approved by %(name)s"))
        if vote.approve
        else ("wrong", _("Rejected by %(name)s"))
    )
    why = " ".join(filter(None, [f"({vote.via})", vote.reason]))
    return StoryStep(
        "how_to_vote", text % {"name": vote.name}, why, vote.at, tone, approval=vote.request_id
    )


def _describe_sending(call: Invocation) -> Iterator[StoryStep]:
    if call.dispatched_at is not None:
        yield StoryStep(
            "send",
            _("Sent to %(server)s") % {"server": call.server_slug}
            if call.server_slug
            else _("Sent"),
            _("revision %(revision)s of its settings") % {"revision": call.server_revision}
            if call.server_slug
            else "",
            call.dispatched_at,
        )


def _describe_open(call: Invocation, held: ApprovalRequest | None) -> StoryStep:
    if call.state == InvocationState.PENDING:
        return StoryStep("pending", _("Waiting for approval"), _("No outcome is recorded yet."))
    if call.state == InvocationState.READY and held is not None:
        return StoryStep("pending", _("Not sent yet"), when_it_runs(held))
    return StoryStep("pending", _("In progress"), _("No outcome is recorded yet."))


def _describe_end(call: Invocation, held: ApprovalRequest | None) -> StoryStep:
    if call.state not in TERMINAL:
        return _describe_open(call, held)
    tone = "good" if call.state == InvocationState.SUCCEEDED else "wrong"
    said = {
        InvocationState.SUCCEEDED: _("Answered"),
        InvocationState.TOOL_ERROR: _("The tool answered with an error"),
        InvocationState.NOT_SENT: _("Not sent"),
        InvocationState.UNKNOWN: _("Outcome unknown"),
        InvocationState.DENIED: _("Denied"),
        InvocationState.REJECTED: _("Rejected"),
        InvocationState.EXPIRED: _("Not decided in time"),
        InvocationState.CANCELLED: _("Cancelled"),
        InvocationState.VOID: _("No longer valid"),
    }
    code = f"{call.error_code} " if call.error_code else ""
    size = _("%(count)s bytes") % {"count": f"{call.result_bytes:,}"} if call.result_bytes else ""
    return StoryStep(
        "flag",
        said.get(InvocationState(call.state), call.state),
        f"{code}{size}".strip(),
        call.finished_at,
        tone,
    )


def _add_gaps(steps: Iterable[StoryStep]) -> Iterator[StoryStep]:
    before: datetime | None = None
    for step in steps:
        gap = (step.at - before).total_seconds() * 1000 if step.at and before else None
        yield replace(step, after=gap if gap is not None and gap >= 0 else None)
        before = step.at or before


def _describe_verification(call: Invocation, entries: Sequence[AuditEntry]) -> StoryStep:
    """Looked at now: each entry's signature, the record against what they say, and the newest
    seal."""
    if not entries:
        return StoryStep(
            "gpp_maybe",
            _("Nothing in the audit log"),
            _("The entries of this call are archived or not written yet."),
        )
    problem = next(filter(None, map(explain_entry_problem, entries)), "") or next(
        find_misfits(entries, Forgotten()), ""
    )
    if problem:
        return StoryStep(
            "gpp_bad", _("The record does not match the audit log"), problem, tone="wrong"
        )
    newest = AuditSeal.objects.order_by("-number").first()
    sealed = newest is not None and newest.upto >= entries[-1].pk
    count = ngettext("%(count)s signed entry", "%(count)s signed entries", len(entries)) % {
        "count": len(entries)
    }
    coverage = _("covered by a checkpoint") if sealed else _("not covered by a checkpoint yet")
    return StoryStep(
        "verified_user",
        _("The record matches the audit log"),
        f"{count}, {coverage}",
        tone="good",
    )


def arguments_of(call: Invocation) -> str:
    """The arguments as text for a form, where they are short enough for an address; else nothing.
    Without those whose names say that they are secret: addresses stand in logs and histories.
    """
    try:
        value = json.loads(call.arguments) if 0 < len(call.arguments) <= 1_500 else None
    except (ValueError, RecursionError):
        return ""
    return json.dumps(_open_parts(value), ensure_ascii=False) if isinstance(value, dict) else ""


def _open_parts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _open_parts(part) for name, part in value.items() if not is_secret_name(name)}
    return [_open_parts(part) for part in value] if isinstance(value, list) else value
