"""The one writer of a call's end: which columns an end sets, by which compare-and-set, with which
audit entry.

Calls end in four places: a plain call in the recorder (``calls/recording/ledger.py``, which commits
the values and statements made here in groups, for every call passes there), a held call that never
ran (``approvals/held_calls.py``), one that work of ours answers (``tasks/long_calls.py``), and one
that nobody will end any more (``reaping.py``). The latter three call ``write_end``. All say the
same of the same event.

The last only supposes: the process may hang, and come back with the server's answer. An end that is
known replaces a supposed one (``make_correcting_end``), once, under the same fence, and the log
says so (``call.corrected``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from django.db import connection

from mcpregistry.domain.lifecycle import MOVES, SUPPOSED, InvocationState
from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json
from mcpregistry.models.approval import ApprovalRequest
from mcpregistry.models.audit import AuditEntry
from mcpregistry.models.invocation import Invocation
from mcpregistry.services.records import audit, signed_calls
from mcpregistry.services.records.sql import adapt_moment

CORRECTED = signed_calls.CORRECTED  # the kind of the audit entry that replaces what was supposed
_CAME_LATE = "The outcome arrived after the site had stopped waiting for it."
MAX_RESULT = 64 * 1024  # characters of a result that stay with the call's record


class CallEndColumns(TypedDict):
    """The columns that an end sets. ``result`` is the JSON value that answered the call, None
    without one."""

    state: str
    reason: str  # "": the record keeps why the call was let through
    error_code: str
    result: object
    warning: str  # what is odd about a result that is passed on all the same
    finished_at: datetime
    duration_ms: float


class End(CallEndColumns):
    """An end and the row that it is for: only while that is in the state ``before`` and under this
    ``fence``.

    ``keep``: its approval keeps the whole result, for callers who come back for it.
    """

    id: str
    before: str
    fence: int
    keep: bool


def build_end_columns(
    state: InvocationState,
    *,
    received_at: datetime,
    now: datetime,
    reason: str = "",
    code: str = "",
    result: object = None,
    warning: str = "",
) -> CallEndColumns:
    """The columns of an end at ``now``."""
    return {
        "state": state.value,
        "reason": clean_text(reason),
        "error_code": code,
        "result": result,
        "warning": clean_text(warning),
        "finished_at": now,
        "duration_ms": compute_duration_ms(received_at, now),
    }


def compute_duration_ms(received_at: datetime, finished_at: datetime) -> float:
    """How long a call took, from receiving to its end. A clock that was set back makes no negative
    time."""
    return max(0.0, (finished_at - received_at).total_seconds() * 1000)


def encode_result(result: object) -> tuple[str, int]:
    """A result as its record holds it: its JSON text, cut, and the length of the whole. Takes a
    while for a long one."""
    text = encode_lossy_json(result) if result is not None else ""
    return (text if len(text) <= MAX_RESULT else text[:MAX_RESULT] + "…"), len(text)


# The statements; the approval's result goes first, for whoever sees the end looks for it. Both are
# compare-and-sets under the fence of whoever claimed the call: a process that was thought dead
# changes no end that another has written, but for one that was only supposed.
_NOT_KNOWN = f"({{0}}state <> '{InvocationState.UNKNOWN.value}' OR {{0}}error_code = '{SUPPOSED}')"
KEEP = (
    f"UPDATE {ApprovalRequest._meta.db_table} SET result = %s WHERE call_id = %s AND EXISTS (SELECT 1 FROM "  # noqa: S608
    f"{Invocation._meta.db_table} c WHERE c.id = %s AND c.fence = %s AND c.state = %s "
    f"AND {_NOT_KNOWN.format('c.')})"
)
FINISH = (
    f"UPDATE {Invocation._meta.db_table} SET lease_until = NULL, state = %s, "  # noqa: S608
    "reason = COALESCE(NULLIF(%s, ''), reason), error_code = %s, result = %s, result_bytes = %s, warning = %s, "
    f"finished_at = %s, duration_ms = %s WHERE id = %s AND fence = %s AND state = %s AND {_NOT_KNOWN.format('')}"
)


def list_keep_values(end: End) -> Sequence[Any]:
    """The parameters of ``KEEP`` for one row."""
    text = encode_lossy_json(end["result"]) if end["result"] is not None else ""
    return [text, end["id"], end["id"], end["fence"], end["before"]]


def list_finish_values(end: End, answer: tuple[str, int]) -> Sequence[Any]:
    """The parameters of ``FINISH`` for one row; ``answer`` is its result as ``encode_result`` has
    it."""
    text, length = answer
    return [
        end["state"],
        end["reason"],
        end["error_code"],
        text,
        length,
        end["warning"],
        adapt_moment(end["finished_at"]),
        end["duration_ms"],
        end["id"],
        end["fence"],
        end["before"],
    ]


def build_end_fact(
    call_id: str, end: CallEndColumns, *, actor: str, about: Mapping[str, object]
) -> audit.AuditFact:
    """The audit entry of an end. ``about``: what the log says of the call itself."""
    said = {**about, "state": end["state"], "error": end["error_code"]}
    if end["warning"]:
        said["warning"] = end["warning"]
    return audit.AuditFact(f"call.{end['state']}", actor, f"call:{call_id}", said)


def make_correcting_end(end: End) -> End:
    """The same end for a call of which the clock has supposed that nobody would end it."""
    return {**end, "before": InvocationState.UNKNOWN.value, "reason": end["reason"] or _CAME_LATE}


def make_corrected_fact(known: audit.AuditFact) -> audit.AuditFact:
    """The audit entry of such an end, from the one that it would have had."""
    return known._replace(
        kind=CORRECTED, facts={**known.facts, "was": InvocationState.UNKNOWN.value}
    )


def is_corrected(call: Invocation) -> bool:
    """Whether the call's end has replaced a supposed one, which somebody may have been told."""
    if call.state not in MOVES[InvocationState.DISPATCHED] or call.error_code == SUPPOSED:
        return False
    return AuditEntry.objects.filter(subject=f"call:{call.pk}", kind=CORRECTED).exists()


def write_end(call: Invocation, end: CallEndColumns, *, actor: str, keep: bool = False) -> bool:
    """End ``call``, with its audit entry, in the caller's transaction: unless it has moved since it
    was read.

    False when it has; nothing is written then. A call that was read as unknown is corrected, see
    ``make_correcting_end``.
    """
    row: End = {**end, "id": call.pk, "before": call.state, "fence": call.fence, "keep": keep}
    late = call.state == InvocationState.UNKNOWN
    row = make_correcting_end(row) if late else row
    answer = encode_result(row["result"])
    with connection.cursor() as cursor:
        if keep:
            cursor.execute(KEEP, list_keep_values(row))
        cursor.execute(FINISH, list_finish_values(row, answer))
        if cursor.rowcount != 1:
            return False
    tool = f"{call.server_slug}::{call.tool_name}" if call.server_slug else call.tool_name
    about = {"tool": tool, "binding": call.binding, "decision": call.outcome}
    said = build_end_fact(call.pk, end, actor=actor, about=about).add_facts(
        signed_calls.build_end_facts(row, *answer)
    )
    audit.append_fact(make_corrected_fact(said) if late else said)
    return True
