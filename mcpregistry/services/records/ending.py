"""The one writer of a call's end: which columns an end sets, by which compare-and-set, with which
audit entry.

Calls end in four places: a plain call in the recorder (``calls/recording/ledger.py``, which commits
the values and statements made here in groups, for every call passes there), a held call that never
ran (``approvals/held_calls.py``), one that work of ours answers (``tasks/long_calls.py``), and one
that nobody will end any more (``reaping.py``). The latter three call ``write``. All say the same of
the same event.

The last only supposes: the process may hang, and come back with the server's answer. An end that is
known replaces a supposed one (``correcting``), once, under the same fence, and the log says so
(``call.corrected``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from django.db import connection

from mcpregistry.domain.lifecycle import MOVES, SUPPOSED, State
from mcpregistry.domain.text.canonical import plain, stored
from mcpregistry.models.approval import ApprovalRequest
from mcpregistry.models.audit import AuditEntry
from mcpregistry.models.invocation import Invocation
from mcpregistry.services.records import audit, bound
from mcpregistry.services.records.sql import moment

CORRECTED = bound.CORRECTED  # the kind of the audit entry that replaces what was supposed
_CAME_LATE = "The outcome arrived after the call had been given up."
MAX_RESULT = 64 * 1024  # characters of a result that stay with the call's record


class Ended(TypedDict):
    """The columns that an end sets. ``result`` is the JSON value that answered the call, None
    without one."""

    state: str
    reason: str  # "": the record keeps why the call was let through
    error_code: str
    result: object
    warning: str  # what is odd about a result that is passed on all the same
    finished_at: datetime
    duration_ms: float


class End(Ended):
    """An end and the row that it is for: only while that is in the state ``before`` and under this
    ``fence``.

    ``keep``: its approval keeps the whole result, for callers who come back for it.
    """

    id: str
    before: str
    fence: int
    keep: bool


def ended(
    state: State,
    *,
    received_at: datetime,
    now: datetime,
    reason: str = "",
    code: str = "",
    result: object = None,
    warning: str = "",
) -> Ended:
    """The columns of an end at ``now``."""
    return {
        "state": state.value,
        "reason": plain(reason),
        "error_code": code,
        "result": result,
        "warning": plain(warning),
        "finished_at": now,
        "duration_ms": duration_ms(received_at, now),
    }


def duration_ms(received_at: datetime, finished_at: datetime) -> float:
    """How long a call took, from receiving to its end. A clock that was set back makes no negative
    time."""
    return max(0.0, (finished_at - received_at).total_seconds() * 1000)


def recorded(result: object) -> tuple[str, int]:
    """A result as its record holds it: its JSON text, cut, and the length of the whole. Takes a
    while for a long one."""
    text = stored(result) if result is not None else ""
    return (text if len(text) <= MAX_RESULT else text[:MAX_RESULT] + "…"), len(text)


# The statements; the approval's result goes first, for whoever sees the end looks for it. Both are
# compare-and-sets under the fence of whoever claimed the call: a process that was thought dead
# changes no end that another has written, but for one that was only supposed.
_NOT_KNOWN = f"({{0}}state <> '{State.UNKNOWN.value}' OR {{0}}error_code = '{SUPPOSED}')"
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


def keep_values(end: End) -> Sequence[Any]:
    """The parameters of ``KEEP`` for one row."""
    text = stored(end["result"]) if end["result"] is not None else ""
    return [text, end["id"], end["id"], end["fence"], end["before"]]


def finish_values(end: End, answer: tuple[str, int]) -> Sequence[Any]:
    """The parameters of ``FINISH`` for one row; ``answer`` is its result as ``recorded`` has it."""
    text, length = answer
    return [
        end["state"],
        end["reason"],
        end["error_code"],
        text,
        length,
        end["warning"],
        moment(end["finished_at"]),
        end["duration_ms"],
        end["id"],
        end["fence"],
        end["before"],
    ]


def fact(call_id: str, end: Ended, *, actor: str, about: Mapping[str, object]) -> audit.Fact:
    """The audit entry of an end. ``about``: what the log says of the call itself."""
    said = {**about, "state": end["state"], "error": end["error_code"]}
    if end["warning"]:
        said["warning"] = end["warning"]
    return audit.Fact(f"call.{end['state']}", actor, f"call:{call_id}", said)


def correcting(end: End) -> End:
    """The same end for a call of which the clock has supposed that nobody would end it."""
    return {**end, "before": State.UNKNOWN.value, "reason": end["reason"] or _CAME_LATE}


def corrected(known: audit.Fact) -> audit.Fact:
    """The audit entry of such an end, from the one that it would have had."""
    return known._replace(kind=CORRECTED, facts={**known.facts, "was": State.UNKNOWN.value})


def was_corrected(call: Invocation) -> bool:
    """Whether the call's end has replaced a supposed one, which somebody may have been told."""
    if call.state not in MOVES[State.DISPATCHED] or call.error_code == SUPPOSED:
        return False
    return AuditEntry.objects.filter(subject=f"call:{call.pk}", kind=CORRECTED).exists()


def write(call: Invocation, end: Ended, *, actor: str, keep: bool = False) -> bool:
    """End ``call``, with its audit entry, in the caller's transaction: unless it has moved since it
    was read.

    False when it has; nothing is written then. A call that was read as unknown is corrected, see
    ``correcting``.
    """
    row: End = {**end, "id": call.pk, "before": call.state, "fence": call.fence, "keep": keep}
    late = call.state == State.UNKNOWN
    row = correcting(row) if late else row
    answer = recorded(row["result"])
    with connection.cursor() as cursor:
        if keep:
            cursor.execute(KEEP, keep_values(row))
        cursor.execute(FINISH, finish_values(row, answer))
        if cursor.rowcount != 1:
            return False
    tool = f"{call.server_slug}::{call.tool_name}" if call.server_slug else call.tool_name
    about = {"tool": tool, "binding": call.binding, "decision": call.outcome}
    said = fact(call.pk, end, actor=actor, about=about).adding(bound.of_end(row, *answer))
    audit.append(corrected(said) if late else said)
    return True
