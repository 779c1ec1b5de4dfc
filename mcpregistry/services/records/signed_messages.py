"""Compares messages of conversations with the digests that the audit log has of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import Conversation, Message
from mcpregistry.models.audit import AuditEntry
from mcpregistry.services.records.chains import explain_entry_problem
from mcpregistry.services.records.signed_calls import SLACK, Forgotten

WRITTEN = "conversation.message"  # kind of the entry of each message
# kind of the entry of a conversation that the site deletes, with its messages
DELETED = "conversation.deleted"
_ACTOR = 150  # letters of an author that an entry keeps


def find_message_misfits(entries: Sequence[AuditEntry], forgotten: Forgotten) -> Iterator[str]:
    """One sentence for each message that these entries are about and that says something else, or
    is gone.

    A conversation that is gone took its messages along. If the site deleted it, an entry says so.
    """
    written = [
        (entry, body) for entry in entries if entry.kind == WRITTEN and (body := _read_body(entry))
    ]
    rows = Message.objects.in_bulk([body["message"] for _, body in written])
    there = set(
        Conversation.objects.filter(
            pk__in={_get_conversation_key(entry) for entry, _ in written}
        ).values_list("pk", flat=True)
    )
    deleted = _find_deleted_conversations(
        {_get_conversation_key(entry) for entry, _ in written} - there
    )
    yield from (
        f"conversation {key}: it is missing with its messages, and the site did not delete it"
        for key in dict.fromkeys(_get_conversation_key(entry) for entry, _ in written)
        if key not in there | deleted
    )
    for entry, body in written:
        row = rows.get(body["message"])
        if row is not None:
            problem = _explain_misfit(entry, body, row, forgotten)
        else:
            problem = "is missing" if _get_conversation_key(entry) in there else ""
        if problem:
            yield f"message {body['message']} of conversation {_get_conversation_key(entry)} {problem}"


def _find_deleted_conversations(conversations: set[str]) -> set[str]:
    """Those of which an entry says that the site deleted them."""
    subjects = [f"conversation:{key}" for key in conversations]
    entries = AuditEntry.objects.filter(kind=DELETED, subject__in=subjects) if subjects else []
    return {_get_conversation_key(entry) for entry in entries if not explain_entry_problem(entry)}


def _read_body(entry: AuditEntry) -> dict[str, Any] | None:
    """None for one that does not fit its signature, which is reported elsewhere."""
    try:
        body = json.loads(entry.body)
    except ValueError:
        return None
    whole = (
        isinstance(body, dict)
        and isinstance(body.get("message"), int)
        and {"said", "text"} <= body.keys()
    )
    return body if whole else None


def _get_conversation_key(entry: AuditEntry) -> str:
    return entry.subject.removeprefix("conversation:")


def _explain_misfit(
    entry: AuditEntry, body: dict[str, Any], row: Message, forgotten: Forgotten
) -> str:
    erased = not row.text and entry.at < forgotten.payloads + SLACK
    if not erased and hash_parts(row.text) != body["text"]:
        return "was changed"
    if (row.author[:_ACTOR], row.kind, row.conversation_id) != (
        entry.actor[:_ACTOR],
        body["said"],
        _get_conversation_key(entry),
    ):
        return "has another author, direction or conversation than its audit entry"
    return ""
