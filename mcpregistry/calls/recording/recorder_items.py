"""What waits in the recorder's queue, and what of it is still to be written where the database has
failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from mcpregistry.calls.recording import late_ends
from mcpregistry.calls.recording.errors import NotRecordedError
from mcpregistry.calls.recording.late_ends import LateEnd
from mcpregistry.database_errors import is_outcome_unknown, is_passing
from mcpregistry.services.records.audit import AuditFact
from mcpregistry.services.records.call_rows import Claim, Intent, RefusedCallColumns
from mcpregistry.services.records.ending import End


@dataclass(slots=True, eq=False)
class RecorderItem:
    """A fact for the audit log, and the one row that it is about, if any."""

    fact: AuditFact
    done: asyncio.Future[None] | None = None
    begin: Intent | RefusedCallColumns | None = None
    claim: Claim | None = None
    end: End | None = None


def make_note(kind: str, writer: str) -> RecorderItem:
    """An audit entry about the recorder itself."""
    return RecorderItem(AuditFact(kind, "recorder", f"writer:{writer}", {}))


def build_late_end(item: RecorderItem, error: Exception | None) -> LateEnd | None:
    """What is to be written of an item with which the database has failed, as soon as it takes
    it."""
    if error is None:
        return None
    is_in_doubt = is_passing_failure(error) if item.end else is_outcome_unknown(error)
    return build_doubtful_end(item) if is_in_doubt else None


def build_doubtful_end(item: RecorderItem) -> LateEnd | None:
    """What is to be written of an item where nobody knows whether it was."""
    if item.end:
        return LateEnd(item.end, item.fact)
    if item.claim:
        return late_ends.make_not_sent_end(
            item.claim, item.claim["fence"] + 1, item.fact, code=NotRecordedError.code
        )
    if item.begin and "lease_until" in item.begin:  # an intent, no refusal
        return late_ends.make_not_sent_end(
            cast(Intent, item.begin), 0, item.fact, code=NotRecordedError.code
        )
    return None


def is_passing_failure(error: Exception | None) -> bool:
    """Whether the database may take later what it refused so."""
    return error is not None and is_passing(error)
