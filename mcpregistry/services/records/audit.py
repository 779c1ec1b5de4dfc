"""The audit log's second kind of writer: configuration facts, in the caller's transaction.

Configuration changes of all processes share one chain, ``configuration``; they are rare, so a lock
is cheap. Calls are chained per process by the recorder (``calls.recording.recorder``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection, transaction
from django.utils import timezone

from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json
from mcpregistry.models.audit import GENESIS, AuditEntry, entry_hash
from mcpregistry.models.signing import newest_key
from mcpregistry.services.records.sql import adapt_moment, build_insert

CHAIN = "configuration"
_gathered: ContextVar[list[AuditFact] | None] = ContextVar("gathered", default=None)
_LOCK = 0x51155  # one number for pg_advisory_xact_lock, held until the transaction ends


class AuditFact(NamedTuple):
    """What an entry says. ``facts`` are JSON values and hold no secret."""

    kind: str
    actor: str
    subject: str
    facts: Mapping[str, object]

    def add_facts(self, more: Mapping[str, object]) -> AuditFact:
        """The same fact, which says this as well."""
        return self._replace(facts={**self.facts, **more})


class AuditRow(NamedTuple):
    """A row of the log: the columns of AuditEntry, in the order in which ``INSERT`` names them."""

    writer: str
    seq: int
    at: datetime
    kind: str
    actor: str
    subject: str
    body: str
    prev: str
    hash: str
    key_id: str


INSERT = build_insert(AuditEntry._meta.db_table, AuditRow._fields)


@dataclass(frozen=True, slots=True)
class Chain:
    """Where one writer's chain stands: the number and the hash of its last entry."""

    writer: str
    seq: int = 0
    head: str = GENESIS

    def extend_chain(
        self, facts: Iterable[AuditFact], at: datetime
    ) -> tuple[Chain, list[AuditRow]]:
        """The entries that say these facts, in order, and the chain after them; nothing is
        written."""
        chain = self
        entries = []
        key_id = newest_key()
        for fact in facts:
            entries.append(_make_entry(chain, at, fact, key_id))
            chain = Chain(self.writer, chain.seq + 1, entries[-1].hash)
        return chain, entries


def _make_entry(chain: Chain, at: datetime, fact: AuditFact, key_id: str) -> AuditRow:
    seq = chain.seq + 1
    prev = chain.head
    named = {"writer": chain.writer, "seq": seq, "at": at.isoformat(), "kind": fact.kind}
    body = encode_lossy_json(
        named | {"actor": fact.actor, "subject": fact.subject} | dict(fact.facts)
    )
    actor = clean_text(fact.actor, 150)
    subject = clean_text(fact.subject, 200)
    signed = entry_hash(prev, body, key_id)
    return AuditRow(chain.writer, seq, at, fact.kind, actor, subject, body, prev, signed, key_id)


def list_insert_values(entry: AuditRow) -> Sequence[Any]:
    """For ``INSERT``, which the recorder uses, as the database takes them."""
    # SQLite's moments are text
    return entry._replace(at=adapt_moment(entry.at))  # type: ignore[arg-type]


def record_entry(*, kind: str, actor: str, subject: str, **facts: object) -> None:
    """Add one entry to the shared chain, in the caller's transaction. ``facts`` as in Fact."""
    append_fact(AuditFact(kind, actor, subject, facts))


def append_fact(fact: AuditFact) -> None:
    """The same for a fact that was made before."""
    gathered = _gathered.get()
    if gathered is None:
        _write([fact])
    else:
        gathered.append(fact)


@contextmanager
def collect_entries() -> Iterator[None]:
    """What is recorded inside is added at its end, in order, by one look at the chain; for verbs
    that record much.

    Inside a transaction that holds or fails as a whole: what only an inner part took back would be
    told all the same.
    """
    if _gathered.get() is not None:
        yield
        return
    facts: list[AuditFact] = []
    token = _gathered.set(facts)
    try:
        yield
    finally:
        _gathered.reset(token)
    if facts and not transaction.get_rollback():
        _write(facts)


@transaction.atomic
def _write(facts: Sequence[AuditFact]) -> None:
    # One after another: two entries with the same predecessor would fork the chain. SQLite has one
    # writer anyway.
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    last = AuditEntry.objects.filter(writer=CHAIN).order_by("-seq").first()
    chain = Chain(CHAIN, last.seq, last.hash) if last else Chain(CHAIN)
    _, entries = chain.extend_chain(facts, timezone.now())
    AuditEntry.objects.bulk_create(AuditEntry(**entry._asdict()) for entry in entries)
