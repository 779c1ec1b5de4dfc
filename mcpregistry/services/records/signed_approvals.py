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

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.text.canonical import hash_parts
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
        InvocationState.READY,
        InvocationState.DISPATCHED,
        InvocationState.SUCCEEDED,
        InvocationState.TOOL_ERROR,
        InvocationState.NOT_SENT,
        InvocationState.UNKNOWN,
    }
)
_VOTE = ("name", "approve", "reason", "arguments_hash", "via", "at")
# The columns of a request that never change, each with the words for it.
_TERMS = {
    "rule_name": "the name of its rule",
    "rule_fingerprint": "its rule",
    "group_id": "the group that can decide",
    "quorum": "the number of required approvals",
    "requester_may_confirm": "the setting 'requester may confirm'",
    "run_if_caller_left": "the setting 'run if caller left'",
    "execute_seconds": "the time for which an approval is valid",
    "risk": "the risk",
    "risk_rank": "the risk (as a number)",
    "expert": "its expert tool",
    "host": "its host",
}
_WORDS = _TERMS | {
    "request": "the request's id",
    "said": "the message of the agent",
    "asked_at": "the time of the request",
    "decide_by": "the deadline for the decision",
}


def format_moment(value: datetime | None) -> str:
    """A moment as digests and entries have it; empty for none."""
    return value.astimezone(UTC).isoformat() if value else ""


# What entries say


def build_approval_question_facts(request: ApprovalRequest) -> dict[str, object]:
    """Facts of the entry that says that people are asked."""
    terms = {name: getattr(request, name) for name in _TERMS}
    times = {
        "asked_at": format_moment(request.asked_at),
        "decide_by": format_moment(request.decide_by),
    }
    return terms | times | {"request": request.pk, "said": hash_parts(request.said)}


def build_vote_facts(vote: Mapping[str, Any], voter: int | None) -> dict[str, Any]:
    """Facts of the entry of a vote. The account is not part of the digest, because a vote outlives
    it."""
    words = (
        vote["name"],
        str(vote["approve"]),
        vote["reason"],
        vote["arguments_hash"],
        vote["via"],
    )
    return {"vote": hash_parts(*words, format_moment(vote["at"])), "voter": voter}


def build_approval_facts(request: ApprovalRequest) -> dict[str, object]:
    """Facts of the entry that says that a held call was approved."""
    return {
        "execute_by": format_moment(request.execute_by),
        "decided_at": format_moment(request.decided_at),
        "decision": hash_parts(request.decided_reason),
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
        for entry in sorted((each for each in entries if each.kind in KINDS), key=_get_seq):
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

    def list_standing_votes(self) -> list[Mapping[str, Any]]:
        """The votes that stand: of each account the last one, and all of hosts whose agent has no
        owner."""
        last = {vote["voter"]: vote for vote in self.votes if vote["voter"] is not None}
        return [*last.values(), *(vote for vote in self.votes if vote["voter"] is None)]

    def get_latest(self, name: str) -> str:
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
    yield from _compare_question(request, signed.question, erased=erased)
    arguments = request.edited or request.call.arguments
    gone = erased and not request.edited
    if hash_parts(arguments) != signed.get_latest("arguments") and not gone:
        yield "the arguments with which the call would run were changed"
    if request.call.binding != signed.get_latest("binding"):
        yield "the hash of its agent, tool, arguments and rule was changed"
    yield from _compare_votes(signed.list_standing_votes(), votes)
    yield from _compare_approval(request, signed)


def _compare_question(
    request: ApprovalRequest, asked: Mapping[str, Any], *, erased: bool
) -> Iterator[str]:
    for name, value in build_approval_question_facts(request).items():
        if asked.get(name) == value or (name == "said" and erased and not request.said):
            continue
        if name == "group_id" and value is None and _is_deleted(Group, asked.get(name)):
            continue
        yield f"{_WORDS[name]} was changed after the approval was requested"


def _compare_votes(
    cast: Iterable[Mapping[str, Any]], votes: Sequence[ApprovalVote]
) -> Iterator[str]:
    left = [(vote["voter"], vote["vote"]) for vote in cast]
    for vote in votes:
        found = _find_vote_entry(vote, left)
        if found is None:
            yield f"the vote of {vote.name} was changed"
            found = next((each for each in left if each[0] == vote.user_id), None)
        if found is not None:
            left.remove(found)
    if left:
        yield "one of its votes is missing"


def _find_vote_entry(
    vote: ApprovalVote, left: Sequence[tuple[int | None, str]]
) -> tuple[int | None, str] | None:
    """The entry that this row is: of the same account, or of one that was deleted since."""
    word = build_vote_facts({name: getattr(vote, name) for name in _VOTE}, None)["vote"]
    if (vote.user_id, word) in left:
        return (vote.user_id, word)
    if vote.user_id is not None:
        return None
    orphans = [each for each in left if each[1] == word]
    return next((each for each in orphans if _is_deleted(User, each[0])), None)


def _is_deleted(model: type[Group | User], key: int | None) -> bool:
    return key is not None and not model._default_manager.filter(pk=key).exists()


def _compare_approval(request: ApprovalRequest, signed: SignedApproval) -> Iterator[str]:
    state = InvocationState(request.call.state)
    approval = signed.approval
    if state is InvocationState.PENDING and approval is not None:
        yield "it was approved, but its record still shows that it waits for an approval"
    if state not in APPROVED:
        return
    if approval is None:
        yield "it has no audit entry about an approval"
        return
    if approval["binding"] != signed.get_latest("binding"):
        yield "it was changed after it was approved"
    if any(approval.get(name) != value for name, value in build_approval_facts(request).items()):
        yield "the time, the reason or the expiry of the decision was changed"
    agreeing = [
        vote
        for vote in signed.list_standing_votes()
        if vote["approve"] and vote["arguments"] == signed.get_latest("arguments")
    ]
    if signed.question is not None and len(agreeing) < signed.question.get("quorum", 0):
        yield "it has fewer approvals than required"


def _get_seq(entry: AuditEntry) -> int:
    return entry.seq
