"""What waits in the recorder's queue, and what of it is still to be written where the database has
failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from mcpregistry.calls.recording import late_ends
from mcpregistry.calls.recording.errors import NotRecorded
from mcpregistry.calls.recording.late_ends import Late
from mcpregistry.database_errors import is_passing, unheard
from mcpregistry.services.records.audit import Fact
from mcpregistry.services.records.call_rows import Claim, Intent, Refused
from mcpregistry.services.records.ending import End


@dataclass(slots=True, eq=False)
class Item:
    """A fact for the audit log, and the one row that it is about, if any."""

    fact: Fact
    done: asyncio.Future[None] | None = None
    begin: Intent | Refused | None = None
    claim: Claim | None = None
    end: End | None = None


def note(kind: str, writer: str) -> Item:
    """An audit entry about the recorder itself."""
    return Item(Fact(kind, "recorder", f"writer:{writer}", {}))


def kept(item: Item, error: Exception | None) -> Late | None:
    """What is to be written of an item with which the database has failed, as soon as it takes
    it."""
    if error is None:
        return None
    is_in_doubt = passes(error) if item.end else unheard(error)
    return in_doubt(item) if is_in_doubt else None


def in_doubt(item: Item) -> Late | None:
    """What is to be written of an item where nobody knows whether it was."""
    if item.end:
        return Late(item.end, item.fact)
    if item.claim:
        return late_ends.not_sent(
            item.claim, item.claim["fence"] + 1, item.fact, code=NotRecorded.code
        )
    if item.begin and "lease_until" in item.begin:  # an intent, no refusal
        return late_ends.not_sent(cast(Intent, item.begin), 0, item.fact, code=NotRecorded.code)
    return None


def passes(error: Exception | None) -> bool:
    """Whether the database may take later what it refused so."""
    return error is not None and is_passing(error)
