"""Whoever changes the audit log past its guards is found, wherever they change it."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta

import pytest
from django.db import DatabaseError, transaction
from django.db.models import F

from mcpregistry.models import AuditEntry
from mcpregistry.models.audit import GENESIS, entry_hash
from mcpregistry.models.signing import newest_key
from mcpregistry.services.records import audit
from mcpregistry.services.records.chains import export_log, find_missing_from_log, verify_chains
from tests.fakes.tampered import process_wrote, rewrite_without_key, unguarded

pytestmark = pytest.mark.django_db


@pytest.fixture
def _unguarded():
    """As somebody with the rights of the database's owner would."""
    with unguarded():
        yield


@pytest.fixture
def entries() -> list[AuditEntry]:
    for number in range(6):
        audit.record_entry(kind="test", actor="ann\x00", subject="x" * 300, number=number)
    return list(AuditEntry.objects.order_by("seq"))


def rewrite(entry: AuditEntry, **changes: object) -> None:
    AuditEntry.objects.filter(pk=entry.pk).update(**changes)


def test_an_untouched_log_is_whole(entries):
    assert list(verify_chains()) == []


@pytest.mark.usefixtures("_unguarded")
@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "other"},
        {"actor": "eve"},
        {"subject": "y"},
        {"at": F("at") - timedelta(seconds=1)},
        {"body": "{}"},
        {"body": "no json"},
        {"hash": "f" * 64},
        {"prev": "f" * 64},
    ],
)
def test_a_change_in_any_column_is_found(entries, changes):
    rewrite(entries[3], **changes)
    assert any("configuration #4" in problem for problem in verify_chains())


@pytest.mark.usefixtures("_unguarded")
def test_entry_with_another_number_in_the_table_is_found(entries):
    rewrite(entries[1], id=entries[5].pk + 1)
    assert list(verify_chains()) == [
        "configuration #3: its number in the table is lower than that of the entry before it"
    ]


@pytest.mark.usefixtures("_unguarded")
def test_a_removed_and_a_moved_entry_are_found(entries):
    AuditEntry.objects.filter(pk=entries[2].pk).delete()
    assert list(verify_chains()) == [
        "configuration #4: the entries before it are missing, from number 3 on"
    ]
    rewrite(entries[5], seq=3)
    assert len(list(verify_chains())) >= 2


@pytest.mark.usefixtures("_unguarded")
def test_a_rehashed_entry_breaks_its_successor(entries):
    body = json.dumps(
        json.loads(entries[1].body) | {"number": 99}, sort_keys=True, separators=(",", ":")
    )
    rewrite(
        entries[1], body=body, hash=hashlib.sha256((entries[1].prev + body).encode()).hexdigest()
    )
    assert "configuration #2: its text does not match its hash" in list(verify_chains())
    rewrite(entries[1], hash=entry_hash(entries[1].prev, body, newest_key()))
    assert list(verify_chains()) == ["configuration #3: it does not follow the entry before it"]


@pytest.mark.usefixtures("_unguarded")
def test_an_export_shows_a_tail_that_was_cut_off_and_a_log_written_anew(entries):
    lines = list(export_log())
    AuditEntry.objects.filter(pk=entries[5].pk).delete()
    assert list(verify_chains()) == []
    assert list(find_missing_from_log(lines)) == [
        "configuration #6: it was exported, and is missing"
    ]
    AuditEntry.objects.all().delete()
    for number in range(6):
        audit.record_entry(kind="test", actor="ann", subject="x", number=number)
    assert list(verify_chains()) == []
    assert len(list(find_missing_from_log(lines))) == 6


def test_chains_of_several_writers_are_told_apart(entries):
    body = json.dumps(
        {
            "writer": "web",
            "seq": 1,
            "at": entries[0].at.isoformat(),
            "kind": "k",
            "actor": "a",
            "subject": "s",
        }
    )
    AuditEntry.objects.create(
        writer="web",
        seq=1,
        at=entries[0].at,
        kind="k",
        actor="a",
        subject="s",
        body=body,
        prev=GENESIS,
        hash=entry_hash(GENESIS, body, newest_key()),
        key_id=newest_key(),
    )
    assert list(verify_chains()) == []
    assert len(list(find_missing_from_log(export_log()))) == 0


# Keys


def test_entry_without_a_key_is_reported():
    process_wrote("web:1", 1)
    with unguarded():
        rewrite_without_key([AuditEntry.objects.get(writer="web:1")])
    assert list(verify_chains()) == [
        "web:1 #1: it is not signed with a key, so anyone could have written it"
    ]


def test_every_key_of_the_ring_verifies_and_the_newest_signs(settings, entries):
    settings.SLIPSNISSE_AUDIT_KEYS = {"a2": b"2" * 32, **settings.SLIPSNISSE_AUDIT_KEYS}
    audit.record_entry(kind="test", actor="ann", subject="x")
    assert AuditEntry.objects.latest("id").key_id == "a2"
    assert list(verify_chains()) == []
    settings.SLIPSNISSE_AUDIT_KEYS = {"a2": b"2" * 32}
    [*told] = verify_chains()
    assert len(told) == 6
    assert 'the key "ring.k1", which this site does not have. Add that key' in told[0]


def test_with_another_key_of_the_same_name_nothing_fits(settings, entries):
    settings.SLIPSNISSE_AUDIT_KEYS = dict.fromkeys(settings.SLIPSNISSE_AUDIT_KEYS, b"x" * 32)
    assert len(list(verify_chains())) == 6


def test_the_guards_refuse_what_these_tests_had_to_lift(entries):
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        rewrite(entries[0], kind="other")
