"""After a rotation every secret is sealed with the newest key, whatever happened on the way, and
opens as before."""

from __future__ import annotations

import os
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import QuerySet
from django.utils import timezone

from controlplane import doctor
from mcpregistry.models import AuditEntry, Channel, Credential, ImportedFile, Server
from mcpregistry.services.records import audit, seals
from mcpregistry.services.upkeep import resealing
from subagents.models import Provider
from tests.fakes.tampered import unguarded

OLD = os.urandom(32)
NEW = os.urandom(32)
ACTOR = "user:ann"
pytestmark = pytest.mark.django_db


@pytest.fixture
def rotated(settings):
    """A site with a secret in every place, sealed with a key before which there is a newer one by
    now."""
    settings.SLIPSNISSE_KEYS = {"old": OLD}
    server = Server.objects.create(slug="s", env={"A": "1"}, headers={"H": "2"}, extra={"x": 3})
    server.env = {"A": "changed"}
    server.save()
    Credential.objects.create(name="c", value="4")
    Channel.objects.create(name="n", access={"url": "https://example.org/5"})
    ImportedFile.objects.create(family="f", rest={"r": 6})
    Provider.objects.create(slug="p", kind="scripted", key="7", headers={"X": "8"})
    settings.SLIPSNISSE_KEYS = {"new": NEW, "old": OLD}
    return settings


def everything() -> list[Any]:
    server = Server.objects.get()
    before = Server.history.earliest()
    return [
        server.env,
        server.headers,
        server.extra,
        before.instance.env,
        Credential.objects.get().value,
        Channel.objects.get().access,
        ImportedFile.objects.get().rest,
        Provider.objects.get().key,
        Provider.objects.get().headers,
    ]


def said(_: str) -> None: ...


def test_all_of_it_opens_with_the_newest_key_alone(rotated):
    before = everything()
    assert {*resealing.count_key_uses()} == {"old"}
    done, closed = resealing.reseal_all(actor=ACTOR, say=said)
    rotated.SLIPSNISSE_KEYS = {"new": NEW}
    assert everything() == before
    assert before[3] == {"A": "1"}
    assert closed == []
    assert resealing.count_key_uses() == {"new": done}
    assert (AuditEntry.objects.get(kind="secrets.resealed").subject) == "key:new"
    assert resealing.reseal_all(actor=ACTOR, say=said) == (0, [])


def test_broken_off_it_goes_on_where_it_was(rotated, monkeypatch):
    monkeypatch.setattr(resealing, "_PAGE", 1)

    def breaks(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resealing.reseal_all(actor=ACTOR, say=breaks)
    used = resealing.count_key_uses()
    assert used["new"] == 1
    assert resealing.reseal_all(actor=ACTOR, say=said)[0] == used["old"]
    assert {*resealing.count_key_uses()} == {"new"}


def test_what_somebody_saves_meanwhile_stays(rotated, monkeypatch):
    """Between the look at a row and its change another secret is saved."""
    update = QuerySet.update

    def meanwhile(rows: Any, **values: Any) -> int:
        if rows.model is Credential:
            credential = Credential.objects.get()
            credential.value = "newer"
            monkeypatch.setattr(QuerySet, "update", update)
            credential.save()
        return update(rows, **values)

    monkeypatch.setattr(QuerySet, "update", meanwhile)
    resealing.reseal_all(actor=ACTOR, say=said)
    assert Credential.objects.get().value == "newer"
    assert {*resealing.count_key_uses()} == {"new"}


def test_what_does_not_open_is_named_and_stays(rotated, capsys):
    rotated.SLIPSNISSE_KEYS = {"new": NEW}
    with pytest.raises(SystemExit) as ended:
        call_command("rekey")
    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert "which this site does not have" in err
    assert "old: " in out
    assert {*resealing.count_key_uses()} == {"old"}


def test_the_doctor_says_which_keys_are_missing_or_still_needed(rotated):
    def found() -> list[doctor.DoctorFinding]:
        return list(doctor._check_keys())

    assert [(each.ok, "rekey" in each.remedy) for each in found()] == [(False, True)]
    resealing.reseal_all(actor=ACTOR, say=said)
    assert [each.ok for each in found()] == [True]
    rotated.SLIPSNISSE_KEYS = {"third": os.urandom(32)}
    assert "does not have" in found()[0].what


def test_the_doctor_names_the_missing_key_of_a_checkpoint(rotated):
    kept = dict(rotated.SLIPSNISSE_AUDIT_KEYS)
    rotated.SLIPSNISSE_AUDIT_KEYS = {"ring.old": OLD} | kept
    audit.record_entry(kind="test", actor=ACTOR, subject="test")
    seals.seal_new_entries(timezone.now())
    assert list(doctor._check_audit_keys()) == []
    rotated.SLIPSNISSE_AUDIT_KEYS = {"ring.new": NEW} | kept
    [finding] = doctor._check_audit_keys()
    assert not finding.ok
    assert "'ring.old'" in finding.what
    assert "encryption key 'old' to SLIPSNISSE_KEYS" in finding.remedy


def test_the_doctor_names_the_setting_of_a_missing_audit_key(rotated):
    kept = dict(rotated.SLIPSNISSE_AUDIT_KEYS)
    rotated.SLIPSNISSE_AUDIT_KEYS = {"a1": OLD} | kept
    audit.record_entry(kind="test", actor=ACTOR, subject="test")
    seals.seal_new_entries(timezone.now())
    rotated.SLIPSNISSE_AUDIT_KEYS = kept
    [finding] = doctor._check_audit_keys()
    assert finding.remedy == "Add the key 'a1' to SLIPSNISSE_AUDIT_KEYS again."


def test_verification_names_a_missing_key_once_beside_other_problems(rotated, capsys):
    kept = dict(rotated.SLIPSNISSE_AUDIT_KEYS)
    rotated.SLIPSNISSE_AUDIT_KEYS = {"a1": OLD} | kept
    for number in range(3):
        audit.record_entry(kind="test", actor=ACTOR, subject=f"test {number}")
    seals.seal_new_entries(timezone.now())
    rotated.SLIPSNISSE_AUDIT_KEYS = kept
    audit.record_entry(kind="test", actor=ACTOR, subject="last")
    with unguarded():
        AuditEntry.objects.filter(subject="last").update(subject="changed")
    with pytest.raises(SystemExit):
        call_command("audit", "verify")
    told = capsys.readouterr().out
    assert told.count('the key "a1"') == 1
    assert "a column does not match its text" in told
