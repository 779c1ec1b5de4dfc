"""What the audit log says of the records beside it: digests, so that a finished call or a vote
cannot be changed unnoticed.

An entry that begins a call has the digest of who asked what, of the arguments and of the reason;
one that ends it those of the end and of the answer. A call that has begun fits if its entries have
said so. Of several ends, those that correct a supposed one replace it. For what else entries say of
held calls see ``bound_approvals``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models.approval import ApprovalRequest, ApprovalVote
from mcpregistry.models.audit import AuditArchive, AuditEntry
from mcpregistry.models.invocation import Invocation
from mcpregistry.services.records import signed_approvals
from mcpregistry.services.records.chains import explain_entry_problem
from mcpregistry.services.records.signed_approvals import SignedApproval, format_moment

CORRECTED = "call.corrected"  # the kind of the entry with an end that replaces a supposed one
FORGOTTEN = "retention"  # the subject of the entries that say what retention has taken away
SLACK = timedelta(hours=1)  # what an entry is about may be that much older than the entry, at most
_ASKED = (
    "id",
    "agent_slug",
    "endpoint_slug",
    "server_slug",
    "server_revision",
    "tool_name",
    "exposed_name",
    "definition_hash",
    "outcome",
    "origin",
    "host_name",
    "requester",
    "requester_id",
    "request_id",
)
_READ = (
    *_ASKED,
    "received_at",
    "binding",
    "arguments",
    "reason",
    "state",
    "error_code",
    "result",
    "result_bytes",
    "finished_at",
    "duration_ms",
    "warning",
    "conversation_id",
    "writer",
    "dispatched_at",
)
_TRIES = 10  # while a call moves on as it is looked at


# Saying


def build_begin_facts(row: Mapping[str, Any]) -> dict[str, str]:
    """Facts of a call's columns as they are inserted, when it is sent or refused."""
    return {
        "row": hash_parts(*_list_request_values(row), *_list_dispatch_values(row))
    } | _hash_payload(row)


def build_question_facts(request: ApprovalRequest) -> dict[str, object]:
    """Facts of a held call and its request. Which process sends the call, and when, is not known
    yet."""
    row = vars(request.call)
    begun = {
        "question": hash_parts(*_list_request_values(row)),
        "sent": hash_parts(*_list_dispatch_values(row)),
    } | _hash_payload(row)
    return begun | signed_approvals.build_approval_question_facts(request)


def build_claim_facts(dispatched_at: datetime, writer: str) -> dict[str, str]:
    """Facts of a held call that is about to be sent."""
    return {
        "sent": hash_parts(
            *_list_dispatch_values({"writer": writer, "dispatched_at": dispatched_at})
        )
    }


def build_end_facts(end: Mapping[str, Any], text: str, length: int) -> dict[str, str]:
    """Facts of the columns that an end sets, with its answer as it is stored. Without a new reason
    the old one stays."""
    signed = {"end": _hash_end(end, length), "result": hash_parts(text)}
    return signed | {"reason": hash_parts(end["reason"])} if end["reason"] else signed


def _hash_payload(row: Mapping[str, Any]) -> dict[str, str]:
    signed = {"arguments": hash_parts(row["arguments"]), "reason": hash_parts(row["reason"])}
    return signed | ({"conversation": row["conversation_id"]} if row["conversation_id"] else {})


def _list_request_values(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (*(str(row[name]) for name in _ASKED), format_moment(row["received_at"]))


def _list_dispatch_values(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["writer"], format_moment(row["dispatched_at"])


def _hash_end(end: Mapping[str, Any], length: int) -> str:
    took = end["duration_ms"]
    words = (
        end["state"],
        end["error_code"],
        end["warning"],
        str(length),
        format_moment(end["finished_at"]),
    )
    return hash_parts(*words, "" if took is None else repr(float(took)))


# Comparing


@dataclass(slots=True)
class _CallEntries:
    """What the entries of one call say."""

    first: datetime
    digests: dict[str, set[str]] = field(default_factory=dict)  # of each kind of digest
    # the digest of the time of sending; the claim of a held call replaces that of the question
    sent: str = ""
    ends: list[Mapping[str, str]] = field(default_factory=list)
    corrections: list[Mapping[str, str]] = field(default_factory=list)
    is_held: bool = False

    def add(self, entry: AuditEntry, body: Mapping[str, Any]) -> None:
        self.is_held |= entry.kind in signed_approvals.KINDS
        if not entry.kind.startswith("call.") and entry.kind != signed_approvals.EDIT:
            return
        begins = "row" in body or "question" in body
        for name in ("row", "question", "binding", "conversation"):
            self._keep(name, body)
        for name in ("arguments", "reason") if begins else ():
            self._keep(name, body)
        if "sent" in body and (not begins or not self.sent):
            self.sent = body["sent"]
        if "end" in body:
            end = {name: body[name] for name in ("end", "result", "reason") if name in body}
            (self.corrections if entry.kind == CORRECTED else self.ends).append(end)

    def _keep(self, name: str, body: Mapping[str, Any]) -> None:
        if name in body:
            self.digests.setdefault(name, set()).add(body[name])

    @property
    def begun(self) -> bool:
        """Whether the entry that began the call is among them."""
        return "row" in self.digests or "question" in self.digests

    @property
    def binds(self) -> bool:
        return self.is_held or self.begun or bool(self.ends or self.corrections)


class Forgotten:
    """Until when retention has taken records and payloads away, as the log says; ``nothing``:
    without a look at it."""

    def __init__(self, *, nothing: bool = False) -> None:
        self.calls = datetime.min.replace(tzinfo=UTC)
        self.payloads = self.calls
        self.archived = False
        if not nothing:
            self._read()

    def _read(self) -> None:
        self.archived = AuditArchive.objects.exists()
        for entry in AuditEntry.objects.filter(subject=FORGOTTEN).order_by("-id")[:50]:
            if not explain_entry_problem(entry):
                body = json.loads(entry.body)
                self.calls = max(self.calls, datetime.fromisoformat(body["calls_before"]))
                self.payloads = max(self.payloads, datetime.fromisoformat(body["payloads_before"]))


def find_misfits(entries: Sequence[AuditEntry], forgotten: Forgotten) -> Iterator[str]:
    """One sentence for each record that these entries are about and that says something else."""
    found_entries = {
        call: signed for call, signed in _group_by_call(entries).items() if signed.binds
    }
    if not found_entries:
        return
    rows = Invocation.objects.only(*_READ).in_bulk([*found_entries])
    for call, signed in found_entries.items():
        # These are not all entries of the call: later ones may have put it right.
        row = rows.get(call)
        if (signed.is_held and row is not None) or any(_find_row_misfits(signed, row, forgotten)):
            yield from (f"call {call}: {problem}" for problem in find_call_misfits(call, forgotten))


def _group_by_call(entries: Iterable[AuditEntry]) -> dict[str, _CallEntries]:
    found_entries: dict[str, _CallEntries] = {}
    for entry in entries:
        if entry.subject.startswith("call:"):
            try:
                body = json.loads(entry.body)
                found_entries.setdefault(entry.subject[5:], _CallEntries(entry.at)).add(entry, body)
            except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
                continue  # it does not fit its signature, which the chain reports
    return found_entries


def find_call_misfits(call: str, forgotten: Forgotten) -> list[str]:
    """Return what is wrong with one call. Its entries are read before and after its rows, so that
    neither is older."""
    entries = _load_call_entries(call)
    found = list[str]()
    for _ in range(_TRIES):
        signed = _group_by_call(entries).get(call)
        row = Invocation.objects.only(*_READ).filter(pk=call).first()
        found = list(_find_row_misfits(signed, row, forgotten)) if signed else []
        if row is not None:
            found += _find_held_misfits(call, entries, forgotten)
        if not found:
            break
        before = entries
        entries = _load_call_entries(call)
        if [each.pk for each in before] == [each.pk for each in entries]:
            break
    return found


def _load_call_entries(call: str) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(subject=f"call:{call}").order_by("id"))


def _find_held_misfits(call: str, entries: Sequence[AuditEntry], forgotten: Forgotten) -> list[str]:
    request = ApprovalRequest.objects.select_related("call").filter(call_id=call).first()
    if request is None:
        is_held = any(each.kind in signed_approvals.KINDS for each in entries)
        return ["its approval request is missing"] if is_held else []
    try:
        signed = SignedApproval.read(entries)
    except (KeyError, ValueError, TypeError, RecursionError):
        return []  # an entry does not fit its signature, which the chain reports
    erased = request.call.received_at < forgotten.payloads
    found = signed_approvals.find_differences(
        request, signed, list(request.votes.all()), erased=erased
    )
    return [*found, *_check_kept_answer(request)]


def _check_kept_answer(request: ApprovalRequest) -> Iterator[str]:
    """The answer that is kept for its caller begins as the one in the record, which is cut if it is
    long."""
    kept = request.result
    recorded = request.call.result
    if (
        kept
        and recorded
        and (
            len(kept) != request.call.result_bytes
            or not kept.startswith(recorded.removesuffix("…"))
        )
    ):
        yield "the answer that is stored for its caller was changed"


def _find_row_misfits(
    signed: _CallEntries, row: Invocation | None, forgotten: Forgotten
) -> Iterator[str]:
    if row is None:
        # Entries are archived after their call is gone, in some chains sooner than in others: what
        # is left of it does not say when it began. Whether it may be gone was looked at when its
        # beginning was archived.
        if signed.first >= forgotten.calls + SLACK and (signed.begun or not forgotten.archived):
            yield "its record is missing, and retention has not deleted it"
        return
    columns = {name: getattr(row, name) for name in _READ}
    asked = _list_request_values(columns)
    sent = _list_dispatch_values(columns)
    if _is_different(signed, "row", hash_parts(*asked, *sent)) or _is_different(
        signed, "question", hash_parts(*asked)
    ):
        yield "its requester or its request was changed"
    if signed.sent and hash_parts(*sent) != signed.sent:
        yield "the time or the process of its sending was changed"
    if _is_different(signed, "binding", row.binding):
        yield "the hash of its agent, tool, arguments and rule was changed"
    if signed.begun and (row.conversation_id or "") not in signed.digests.get("conversation", {""}):
        yield "its conversation was changed"
    if _is_different(signed, "arguments", hash_parts(row.arguments)) and (
        row.arguments or row.received_at >= forgotten.payloads
    ):
        yield "its arguments were changed" if row.arguments else "its arguments are missing"
    yield from _find_end_misfits(signed, row, columns, forgotten)


def _is_different(signed: _CallEntries, name: str, found: str) -> bool:
    return name in signed.digests and found not in signed.digests[name]


def _find_end_misfits(
    signed: _CallEntries, row: Invocation, columns: Mapping[str, Any], forgotten: Forgotten
) -> Iterator[str]:
    """What is wrong with the end, and with the reason, which an end may have replaced."""
    ends = signed.corrections or signed.ends
    if InvocationState(row.state) not in TERMINAL:
        if ends:
            yield "it has ended, but its record is still open"
        ends = []
    fitting = [end for end in ends if end["end"] == _hash_end(columns, row.result_bytes)]
    if ends and not fitting:
        yield "its outcome was changed"
        fitting = ends
    begun = signed.digests.get("reason", set())
    reasons = {end["reason"] for end in fitting if "reason" in end}
    if not fitting or any("reason" not in end for end in fitting):
        reasons = reasons | begun if begun else set()
    if reasons and hash_parts(row.reason) not in reasons:
        yield "its reason was changed"
    results = {end["result"] for end in fitting}
    if (
        results
        and hash_parts(row.result) not in results
        and (row.result or row.received_at >= forgotten.payloads)
    ):
        yield "its result was changed" if row.result else "its result is missing"


# Before it is sent


def find_contradictions(request: ApprovalRequest, votes: Sequence[ApprovalVote]) -> list[str]:
    """Why the log does not prove that this held call, as it was read, was asked about and approved;
    one query.

    Whoever can write to the database, and has no key, can invent votes and terms, but no entries.
    An entry of a call that was sent, or has ended, is a contradiction too: an approval is for one
    call.
    """
    entries = _load_call_entries(request.call_id)
    wrong = [
        f"entry {each.seq} of {each.writer}: {problem}"
        for each in entries
        if (problem := explain_entry_problem(each))
    ]
    if wrong:
        return wrong
    signed = _group_by_call(entries).get(request.call_id)
    if signed is None:
        return ["it has no audit entry about an approval request"]
    is_over = (
        signed.ends or signed.corrections or any(each.kind == "call.dispatched" for each in entries)
    )
    found = ["it was already sent, or has ended"] if is_over else []
    found += _find_row_misfits(signed, request.call, Forgotten(nothing=True))
    return [
        *found,
        *signed_approvals.find_differences(request, SignedApproval.read(entries), votes),
    ]
