"""Compares held calls with what the audit log says of them: the question, the votes, and the
approval.

The entry ``call.pending`` has the terms on which people are asked, ``approval.vote`` the digest of
each vote, ``approval.edited`` that of the arguments which run instead, ``call.approved`` until when
the call may run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import Group, User

from mcpregistry.domain.lifecycle import State
from mcpregistry.domain.text.canonical import digest
from mcpregistry.models.approval import ApprovalRequest, ApprovalVote
from mcpregistry.models.audit import AuditEntry

QUESTION = "call.pending"
VOTE = "approval.vote"
EDIT = "approval.edited"
APPROVAL = "call.approved"
KINDS = frozenset({QUESTION, VOTE, EDIT, APPROVAL})
# States of a held call that only an approval leads to.
APPROVED = frozenset(
    {
        State.READY,
        State.DISPATCHED,
        State.SUCCEEDED,
        State.TOOL_ERROR,
        State.NOT_SENT,
        State.UNKNOWN,
    }
)
_VOTE = ("name", "approve", "reason", "arguments_hash", "via", "at")
# The columns of a request that never change, each with the words for it.
_TERMS = {
    "rule_name": "the name of its rule",
    "rule_fingerprint": "its rule",
    "group_id": "the group that can decide",
    "quorum": "the number of required approvals",
    "requester_may_confirm": "whether the requester can confirm",
    "run_if_caller_left": "whether it runs after its caller has left",
    "execute_seconds": "the time for which an approval is valid",
    "risk": "the risk",
    "risk_rank": "the rank of the risk",
    "expert": "its expert tool",
    "host": "its host",
}
_WORDS = _TERMS | {
    "request": "the request's id",
    "said": "the message of the agent",
    "asked_at": "the time of the request",
    "decide_by": "the deadline for the decision",
}


def moment_text(value: datetime | None) -> str:
    """A moment as digests and entries have it; empty for none."""
    return value.astimezone(UTC).isoformat() if value else ""


# What entries say


def of_question(request: ApprovalRequest) -> dict[str, object]:
    """Facts of the entry that says that people are asked."""
    terms = {name: getattr(request, name) for name in _TERMS}
    times = {"asked_at": moment_text(request.asked_at), "decide_by": moment_text(request.decide_by)}
    return terms | times | {"request": request.pk, "said": digest(request.said)}


def of_vote(vote: Mapping[str, Any], voter: int | None) -> dict[str, Any]:
    """Facts of the entry of a vote. The account is not part of the digest, because a vote outlives
    it."""
    words = (
        vote["name"],
        str(vote["approve"]),
        vote["reason"],
        vote["arguments_hash"],
        vote["via"],
    )
    return {"vote": digest(*words, moment_text(vote["at"])), "voter": voter}


def of_approval(request: ApprovalRequest) -> dict[str, object]:
    """Facts of the entry that says that a held call was approved."""
    return {
        "execute_by": moment_text(request.execute_by),
        "decided_at": moment_text(request.decided_at),
        "decision": digest(request.decided_reason),
    }


# Comparing


@dataclass(slots=True)
class SignedApproval:
    """What the entries of one call say of its approval. Edits and votes stand in the order in which
    they were written."""

    question: Mapping[str, Any] | None = None
    approval: Mapping[str, Any] | None = None
    edits: list[Mapping[str, Any]] = field(default_factory=list)
    votes: list[Mapping[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, entries: Iterable[AuditEntry]) -> SignedApproval:
        """These are all in one chain, so their numbers in it, which are signed, say their order.

        Raises:
            ValueError, KeyError, TypeError: An entry does not fit its signature.
        """
        signed = cls()
        for entry in sorted((each for each in entries if each.kind in KINDS), key=_seq):
            body = json.loads(entry.body)
            if entry.kind == QUESTION:
                signed.question = body
            elif entry.kind == APPROVAL:
                signed.approval = body
            elif entry.kind == EDIT:
                signed.edits.append({name: body[name] for name in ("binding", "arguments")})
            else:
                signed.votes.append(
                    {name: body[name] for name in ("vote", "voter", "approve", "arguments")}
                )
        return signed

    def cast(self) -> list[Mapping[str, Any]]:
        """The votes that stand: of each account the last one, and all of hosts whose agent has no
        owner."""
        last = {vote["voter"]: vote for vote in self.votes if vote["voter"] is not None}
        return [*last.values(), *(vote for vote in self.votes if vote["voter"] is None)]

    def latest(self, name: str) -> str:
        """The binding, or the digest of the arguments, after the last edit."""
        found = self.edits[-1] if self.edits else self.question or {}
        return str(found.get(name, ""))


def find_differences(
    request: ApprovalRequest,
    signed: SignedApproval,
    votes: Sequence[ApprovalVote],
    *,
    erased: bool = False,
) -> Iterator[str]:
    """One sentence for each thing in which the request, its votes or its call differ from the
    entries.

    ``erased``: retention may have emptied the arguments and the words of the agent.
    """
    if signed.question is None:
        yield "it has no audit entry about an approval request"
        return
    yield from _question(request, signed.question, erased=erased)
    arguments = request.edited or request.call.arguments
    gone = erased and not request.edited
    if digest(arguments) != signed.latest("arguments") and not gone:
        yield "the arguments that would run were changed"
    if request.call.binding != signed.latest("binding"):
        yield "its binding was changed"
    yield from _votes(signed.cast(), votes)
    yield from _approval(request, signed)


def _question(request: ApprovalRequest, asked: Mapping[str, Any], *, erased: bool) -> Iterator[str]:
    for name, value in of_question(request).items():
        if asked.get(name) == value or (name == "said" and erased and not request.said):
            continue
        if name == "group_id" and value is None and _is_deleted(Group, asked.get(name)):
            continue
        yield f"{_WORDS[name]} was changed after the approval was requested"


def _votes(cast: Iterable[Mapping[str, Any]], votes: Sequence[ApprovalVote]) -> Iterator[str]:
    left = [(vote["voter"], vote["vote"]) for vote in cast]
    for vote in votes:
        found = _entry_of(vote, left)
        if found is None:
            yield f"the vote of {vote.name} was changed"
            found = next((each for each in left if each[0] == vote.user_id), None)
        if found is not None:
            left.remove(found)
    if left:
        yield "one of its votes is missing"


def _entry_of(
    vote: ApprovalVote, left: Sequence[tuple[int | None, str]]
) -> tuple[int | None, str] | None:
    """The entry that this row is: of the same account, or of one that was deleted since."""
    word = of_vote({name: getattr(vote, name) for name in _VOTE}, None)["vote"]
    if (vote.user_id, word) in left:
        return (vote.user_id, word)
    if vote.user_id is not None:
        return None
    orphans = [each for each in left if each[1] == word]
    return next((each for each in orphans if _is_deleted(User, each[0])), None)


def _is_deleted(model: type[Group | User], key: int | None) -> bool:
    return key is not None and not model._default_manager.filter(pk=key).exists()


def _approval(request: ApprovalRequest, signed: SignedApproval) -> Iterator[str]:
    state = State(request.call.state)
    approval = signed.approval
    if state is State.PENDING and approval is not None:
        yield "it was approved, but its record is still waiting"
    if state not in APPROVED:
        return
    if approval is None:
        yield "it has no audit entry about an approval"
        return
    if approval["binding"] != signed.latest("binding"):
        yield "it was changed after it was approved"
    if any(approval.get(name) != value for name, value in of_approval(request).items()):
        yield "the time, the reason or the expiry of the decision was changed"
    agreeing = [
        vote
        for vote in signed.cast()
        if vote["approve"] and vote["arguments"] == signed.latest("arguments")
    ]
    if signed.question is not None and len(agreeing) < signed.question.get("quorum", 0):
        yield "it has fewer approvals than required"


def _seq(entry: AuditEntry) -> int:
    return entry.seq
