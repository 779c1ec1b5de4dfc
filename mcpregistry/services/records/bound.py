"""What the audit log says of the records beside it: digests, so that a finished call or a vote cannot be changed unnoticed.

An entry that begins a call has the digest of who asked what, of the arguments and of the reason; one that ends it those
of the end and of the answer; one of a vote that of the vote. A record fits if entries of its call have said so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from mcpregistry.domain.lifecycle import TERMINAL, State
from mcpregistry.domain.text.canonical import digest
from mcpregistry.models.approval import ApprovalVote
from mcpregistry.models.audit import AuditArchive, AuditEntry
from mcpregistry.models.invocation import Invocation
from mcpregistry.services.records.chains import entry_problem

FORGOTTEN = "retention"  # the subject of the entries that say what retention has taken away
SLACK = timedelta(hours=1)  # what an entry is about may be that much older than the entry, at most
_ASKED = (
    "id", "agent_slug", "endpoint_slug", "server_slug", "server_revision", "tool_name", "exposed_name",
    "definition_hash", "outcome", "origin", "host_name", "requester", "requester_id", "request_id",
)  # fmt: skip
_READ = (
    *_ASKED, "received_at", "binding", "arguments", "reason", "state", "error_code", "result", "result_bytes",
    "finished_at", "duration_ms", "warning", "conversation_id",
)  # fmt: skip


# Saying


def of_begin(row: Mapping[str, Any]) -> dict[str, str]:
    """Of a call's columns as they are inserted."""
    begun = {"row": _row(row), "arguments": digest(row["arguments"]), "reason": digest(row["reason"])}
    return begun | ({"conversation": row["conversation_id"]} if row["conversation_id"] else {})


def of_end(end: Mapping[str, Any], text: str, length: int) -> dict[str, str]:
    """Of the columns that an end sets, with its answer as it is stored. The reason of before stays without a new one."""
    said = {"end": _end(end, length), "result": digest(text)}
    return said | {"reason": digest(end["reason"])} if end["reason"] else said


def of_vote(vote: Mapping[str, Any], voter: int | None) -> dict[str, Any]:
    """Of a vote's columns; the account stands apart, for a vote outlives it."""
    return {"vote": _vote(vote), "voter": voter}


def _row(row: Mapping[str, Any]) -> str:
    return digest(*(str(row[name]) for name in _ASKED), _moment(row["received_at"]))


def _end(end: Mapping[str, Any], length: int) -> str:
    took = end["duration_ms"]
    words = (end["state"], end["error_code"], end["warning"], str(length), _moment(end["finished_at"]))
    return digest(*words, "" if took is None else repr(float(took)))


def _vote(vote: Mapping[str, Any]) -> str:
    words = (vote["name"], str(vote["approve"]), vote["reason"], vote["arguments_hash"], vote["via"])
    return digest(*words, _moment(vote["at"]))


def _moment(value: datetime) -> str:
    return value.astimezone(UTC).isoformat()


# Comparing


@dataclass(slots=True)
class _Said:
    """What entries have said of one call."""

    first: datetime
    told: dict[str, set[str]] = field(default_factory=dict)  # of each kind of digest
    votes: dict[object, str] = field(default_factory=dict)  # of each voter the last

    def hear(self, entry: AuditEntry, body: Mapping[str, Any]) -> None:
        if entry.kind == "approval.vote":
            self.votes[body["voter"] or body["vote"]] = body["vote"]
        elif entry.kind.startswith("call.") or entry.kind == "approval.edited":
            for name in ("row", "arguments", "reason", "end", "result", "binding", "conversation"):
                if name in body and not (name == "arguments" and "row" not in body):
                    self.told.setdefault(name, set()).add(body[name])

    @property
    def binds(self) -> bool:
        return bool(self.votes or self.told.get("row") or self.told.get("end"))


class Forgotten:
    """Until when retention has taken records and payloads away, as the log says."""

    def __init__(self) -> None:
        self.calls = self.payloads = datetime.min.replace(tzinfo=UTC)
        self.archived = AuditArchive.objects.exists()
        for entry in AuditEntry.objects.filter(subject=FORGOTTEN).order_by("-id")[:50]:
            if not entry_problem(entry):
                body = json.loads(entry.body)
                self.calls = max(self.calls, datetime.fromisoformat(body["calls_before"]))
                self.payloads = max(self.payloads, datetime.fromisoformat(body["payloads_before"]))


def misfits(entries: Sequence[AuditEntry], forgotten: Forgotten) -> Iterator[str]:
    """One sentence for each record that these entries are about and that says something else."""
    heard = {call: said for call, said in _heard(entries).items() if said.binds}
    if not heard:
        return
    for call, found in _with_rows(heard).items():
        if any(_misfits(*found, forgotten)):
            # These are not all entries of the call: later ones may have put it right.
            whole = _heard(AuditEntry.objects.filter(subject=f"call:{call}").order_by("id"))
            yield from (f"call {call}: {problem}" for problem in _misfits(*_with_rows(whole)[call], forgotten))


_Found = tuple[_Said, Invocation | None, list[ApprovalVote]]


def _heard(entries: Iterable[AuditEntry]) -> dict[str, _Said]:
    heard: dict[str, _Said] = {}
    for entry in entries:
        if entry.subject.startswith("call:"):
            try:
                body = json.loads(entry.body)
                heard.setdefault(entry.subject[5:], _Said(entry.at)).hear(entry, body)
            except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
                continue  # it does not fit its signature, which is said
    return heard


def _with_rows(heard: Mapping[str, _Said]) -> dict[str, _Found]:
    rows = Invocation.objects.only(*_READ).in_bulk([*heard])
    votes: dict[str, list[ApprovalVote]] = {}
    for vote in ApprovalVote.objects.filter(request__call__in=[*rows]).select_related("request"):
        votes.setdefault(vote.request.call_id, []).append(vote)
    return {call: (said, rows.get(call), votes.get(call, [])) for call, said in heard.items()}


def _misfits(said: _Said, row: Invocation | None, votes: list[ApprovalVote], forgotten: Forgotten) -> Iterator[str]:
    if row is None:
        # Entries are archived after their call is gone, in some chains sooner than in others: what is left of it does
        # not say when it began. Whether it may be gone was looked at when its beginning was archived.
        if said.first >= forgotten.calls + SLACK and ("row" in said.told or not forgotten.archived):
            yield "its record is gone, and retention has not taken it away"
        return
    columns = {name: getattr(row, name) for name in _READ}
    if _differs(said, "row", _row(columns)):
        yield "who asked what is not what was written when it was asked"
    if _differs(said, "binding", row.binding):
        yield "its binding is none that was written"
    if "row" in said.told and (row.conversation_id or "") not in said.told.get("conversation", {""}):
        yield "the conversation that it belongs to is none that was written"
    if _differs(said, "reason", digest(row.reason)):
        yield "its reason is none that was written"
    yield from _payloads(said, row, forgotten)
    if State(row.state) in TERMINAL and row.finished_at and _differs(said, "end", _end(columns, row.result_bytes)):
        yield "its end is not what was written when it ended"
    yield from _votes(said, votes)


def _differs(said: _Said, name: str, found: str) -> bool:
    return name in said.told and found not in said.told[name]


def _payloads(said: _Said, row: Invocation, forgotten: Forgotten) -> Iterator[str]:
    for name, text, words in (("arguments", row.arguments, "arguments are"), ("result", row.result, "result is")):
        if _differs(said, name, digest(text)) and (text or row.received_at >= forgotten.payloads):
            yield f"its {words} not what was written" if text else f"its {words} gone"


def _votes(said: _Said, votes: list[ApprovalVote]) -> Iterator[str]:
    if not said.votes:
        return
    for vote in votes:
        word = _vote(
            {name: getattr(vote, name) for name in ("name", "approve", "reason", "arguments_hash", "via", "at")}
        )
        voter = vote.user_id or next((who for who, told in said.votes.items() if told == word), None)
        if said.votes.get(voter) != word:
            yield f"the vote of {vote.name} is not what was written when it was cast"
    if len(votes) < len(said.votes):
        yield "a vote on it is gone"
