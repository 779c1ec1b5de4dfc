"""What happened to one call, step by step with the time between, read from its record and the audit log's entries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mcpregistry.domain.lifecycle import TERMINAL, State
from mcpregistry.domain.text.secret_names import is_secret_name
from mcpregistry.models import ApprovalRequest, ApprovalVote, AuditEntry, AuditSeal, Invocation, PolicyRule
from mcpregistry.queries.approvals import when_it_runs
from mcpregistry.services.records.bound import Forgotten, misfits
from mcpregistry.services.records.chains import entry_problem

_RULE = re.compile(r"rule '(.+)'", re.DOTALL)  # as decisions are reasoned


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened. ``tone``: good, wrong or nothing; ``after``: milliseconds since the step before."""

    icon: str
    what: str
    detail: str = ""
    at: datetime | None = None
    tone: str = ""
    after: float | None = None
    approval: str = ""  # the id of the request that it is about
    rule: int | None = None


def story_of(call: Invocation, entries: Sequence[AuditEntry], *, people: bool = True) -> list[Step]:
    """From the asking to the end, then whether the record fits what the log has signed. ``entries`` are the call's own.

    ``people`` False: not who decided and why, for whoever sees calls and no approvals.
    """
    held = ApprovalRequest.objects.filter(call=call).defer("result").first()
    steps = [_asked(call), _decided(call, held), *_people(held, named=people), *_sent(call), _ended(call, held)]
    return [*_timed(steps), _verified(call, entries)]


def _asked(call: Invocation) -> Step:
    who = f"{call.agent_slug}" + (f", for {call.requester}" if call.requester else "")
    door = {"stdio": "over stdio", "http": "over HTTP", "rest": "over REST or from a page", "run": "from a run"}
    door |= {"test": "by a test of the server", "trial": "by a trial of the server"}
    where = [f"from {call.host_name}" if call.host_name else "", door.get(call.origin, call.origin)]
    where += [f"at {call.endpoint_slug}" if call.endpoint_slug else ""]
    return Step("input", f"Requested by {who}", " ".join(part for part in where if part), call.received_at)


def _decided(call: Invocation, held: ApprovalRequest | None) -> Step:
    said = {"allow": "Allowed", "ask": "Approval required", "deny": "Denied"}.get(call.outcome, "No decision")
    tone = {"allow": "good", "deny": "wrong"}.get(call.outcome, "")
    why = held.rule_name if held else "" if call.error_code else call.reason
    rule = held.rule_id if held else _rule_named(why)
    return Step("policy", said, why, held.asked_at if held else call.received_at, tone, rule=rule)


def _rule_named(reason: str) -> int | None:
    """The rule that a reason names, if one is called so still."""
    named = _RULE.fullmatch(reason)
    return PolicyRule.objects.filter(name=named[1]).values_list("pk", flat=True).first() if named else None


def _people(held: ApprovalRequest | None, *, named: bool) -> Iterator[Step]:
    if held is None:
        return
    yield Step(
        "hourglass",
        f"Asked for {held.quorum} approval{'' if held.quorum == 1 else 's'}",
        f"can be decided until {held.decide_by:%H:%M:%S}",
        held.asked_at,
        approval=held.pk,
    )
    votes = list(held.votes.all()[:50])
    if named:
        yield from map(_vote, votes)
    elif votes and held.decided_at is not None:
        yield Step("how_to_vote", "A decision was made", "", held.decided_at, approval=held.pk)
    if held.edited:
        yield Step(
            "edit", "An approver changed the arguments", "Only these may run.", held.decided_at, approval=held.pk
        )


def _vote(vote: ApprovalVote) -> Step:
    tone, said = ("good", "Approved") if vote.approve else ("wrong", "Rejected")
    why = " ".join(filter(None, [f"({vote.via})", vote.reason]))
    return Step("how_to_vote", f"{said} by {vote.name}", why, vote.at, tone, approval=vote.request_id)


def _sent(call: Invocation) -> Iterator[Step]:
    if call.dispatched_at is not None:
        yield Step(
            "send",
            f"Sent to {call.server_slug}" if call.server_slug else "Sent",
            f"revision {call.server_revision} of its configuration" if call.server_slug else "",
            call.dispatched_at,
        )


def _still_open(call: Invocation, held: ApprovalRequest | None) -> Step:
    if call.state == State.PENDING:
        return Step("pending", "Waiting for approval", "No end is recorded yet.")
    if call.state == State.READY and held is not None:
        return Step("pending", "Not sent yet", when_it_runs(held))
    return Step("pending", "In progress", "No end is recorded yet.")


def _ended(call: Invocation, held: ApprovalRequest | None) -> Step:
    if call.state not in TERMINAL:
        return _still_open(call, held)
    tone = "good" if call.state == State.SUCCEEDED else "wrong"
    said = {
        State.SUCCEEDED: "Answered", State.TOOL_ERROR: "The tool answered with an error", State.NOT_SENT: "Not sent",
        State.UNKNOWN: "Outcome unknown", State.DENIED: "Refused", State.REJECTED: "Rejected",
        State.EXPIRED: "Not decided in time", State.CANCELLED: "Cancelled", State.VOID: "No longer valid",
    }  # fmt: skip
    code = f"{call.error_code} " if call.error_code else ""
    size = f"{call.result_bytes:,} bytes" if call.result_bytes else ""
    return Step("flag", said.get(State(call.state), call.state), f"{code}{size}".strip(), call.finished_at, tone)


def _timed(steps: Iterable[Step]) -> Iterator[Step]:
    before: datetime | None = None
    for step in steps:
        gap = (step.at - before).total_seconds() * 1000 if step.at and before else None
        yield replace(step, after=gap if gap is not None and gap >= 0 else None)
        before = step.at or before


def _verified(call: Invocation, entries: Sequence[AuditEntry]) -> Step:
    """Looked at now: each entry's signature, the record against what they say, and the newest seal."""
    if not entries:
        return Step("gpp_maybe", "Nothing in the audit log", "Its entries are archived or not written yet.")
    problem = next(filter(None, map(entry_problem, entries)), "") or next(misfits(entries, Forgotten()), "")
    if problem:
        return Step("gpp_bad", "The record does not match the audit log", problem, tone="wrong")
    newest = AuditSeal.objects.order_by("-number").first()
    sealed = newest is not None and newest.upto >= entries[-1].pk
    count = f"{len(entries)} signed {'entry' if len(entries) == 1 else 'entries'}"
    return Step(
        "verified_user",
        "The record matches the audit log",
        f"{count}, {'sealed' if sealed else 'not sealed yet'}",
        tone="good",
    )


def arguments_of(call: Invocation) -> str:
    """The arguments as text for a form, where they are short enough for an address; else nothing. Without those whose
    names say that they are secret: addresses stand in logs and histories.
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
