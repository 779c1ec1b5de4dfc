"""What somebody with the rights of the database's owner does to the audit log: past the guards,
which are back afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.apps import apps
from django.db import transaction
from django.utils import timezone

from mcpregistry.models import AuditEntry, AuditSeal, AuditVerification
from mcpregistry.models.audit import GENESIS
from mcpregistry.services.records import seals, verification
from mcpregistry.services.records.audit import AuditFact, Chain
from tests import origin


@contextmanager
def unguarded() -> Iterator[None]:
    """No trigger fires on this thread's connection: a hundredth of what it costs to take all away
    and make them anew."""
    with (
        transaction.atomic(),
        origin.unguarded({model._meta.db_table for model in apps.get_models()}),
    ):
        yield


def sealed_anew() -> None:
    """The log of a new site. A test's database was migrated by another process, with another
    key."""
    with unguarded():
        AuditSeal.objects.all().delete()
    AuditVerification.objects.all().delete()
    assert seals.seal_new_entries(timezone.now() - timedelta(hours=2)) is not None


def seal(minutes_ago: float = 0) -> AuditSeal | None:
    return seals.seal_new_entries(timezone.now() - timedelta(minutes=minutes_ago))


def verify(*, full: bool = False) -> verification.VerificationReport:
    return verification.verify_log(timezone.now(), full=full)


def process_wrote(writer: str, numbers: int, *, minutes_ago: float = 0) -> Chain:
    """Write entries of a process's own chain."""
    chain = Chain(writer)
    at = timezone.now() - timedelta(minutes=minutes_ago)
    for number in range(numbers):
        chain, made = chain.extend_chain([AuditFact("test", "ann", "x", {"number": number})], at)
        AuditEntry.objects.create(**made[0]._asdict())
    return chain


def rewrite_without_key(entries: list[AuditEntry]) -> None:
    """A chain from its first entry on, in one piece, as whoever has no key can write it."""
    head = GENESIS
    for entry in entries:
        prev = head
        head = hashlib.sha256((head + entry.body).encode()).hexdigest()
        AuditEntry.objects.filter(pk=entry.pk).update(
            prev=prev, hash=head, key_id="", body=entry.body
        )
