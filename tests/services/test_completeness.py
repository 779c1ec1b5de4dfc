"""A database without triggers or roles is noticed by whoever starts, and `migrate` makes what is
missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import signals
from django.contrib.auth.models import Group
from django.core.management import CommandError, call_command
from django.db import OperationalError, ProgrammingError, connection, connections

from controlplane import doctor
from mcpregistry.models import AuditEntry, AuditSeal, AuditVerification, Configuration
from mcpregistry.models.guards import drop_guards, find_missing_guards, install_guards
from mcpregistry.services.upkeep import completeness
from mcpregistry.tasks import seal_audit
from tests.fakes import elsewhere
from tests.fakes.tampered import sealed_anew, verify

pytestmark = pytest.mark.django_db


def take_roles_away() -> None:
    Group.objects.get(name="operator").delete()
    Group.objects.get(name="approver").permissions.clear()


def delete_checkpoints() -> None:
    drop_guards()
    AuditSeal.objects.all().delete()
    install_guards()


LOSSES: dict[str, tuple[Callable[[], object], str]] = {
    "triggers": (drop_guards, "triggers, such as "),
    "roles": (take_roles_away, "the roles approver, operator"),
    "checkpoints": (delete_checkpoints, "the first checkpoint of the audit log"),
}


def test_a_migrated_database_lacks_nothing() -> None:
    assert (
        completeness.explain_missing_parts() == completeness.explain_interrupted_migration() == ""
    )
    completeness.require_complete()


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_lost_is_named_and_migrate_makes_it_anew(loss: str) -> None:
    lose, words = LOSSES[loss]
    lose()
    assert words in completeness.explain_missing_parts()
    assert "manage.py migrate" in completeness.explain_missing_parts()
    with pytest.raises(completeness.IncompleteDatabaseError, match=words):
        completeness.require_complete()
    (finding,) = doctor._check_migrations()
    assert not finding.ok
    assert words in finding.what
    call_command("migrate", verbosity=0)
    assert completeness.explain_interrupted_migration() == ""


def test_the_log_tells_that_its_checkpoints_were_deleted() -> None:
    lost = AuditEntry.objects.filter(body__contains="audit.checkpoints_lost")
    call_command("migrate", verbosity=0)
    assert not lost.exists()
    delete_checkpoints()
    call_command("migrate", verbosity=0)
    assert lost.count() == 1


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.attack
@pytest.mark.parametrize(
    "renew", [lambda: call_command("migrate", verbosity=0), seal_audit], ids=["migrate", "clock"]
)
def test_deleted_checkpoints_are_found_though_new_ones_were_made(
    renew: Callable[[], object],
) -> None:
    sealed_anew()
    assert verify().problems == ()
    delete_checkpoints()
    AuditVerification.objects.all().delete()  # whoever deletes the one deletes the other
    renew()
    assert AuditSeal.objects.exists()
    for full in (False, True):
        in_file, problem = verify(full=full).problems[:2]
        assert in_file.startswith("Checkpoint 1 of ")
        assert problem.startswith("All checkpoints before ")


@pytest.mark.exhaustive
def test_processes_look_anew_after_triggers_were_missing() -> None:
    before = Configuration.load().revision
    call_command("migrate", verbosity=0)
    assert Configuration.load().revision == before
    drop_guards()
    call_command("migrate", verbosity=0)
    assert Configuration.load().revision == before + 1


def test_an_interrupted_migrate_is_known_though_nothing_is_missing() -> None:
    completeness.begin_migration()
    assert completeness.explain_missing_parts() == "", (
        "processes of the former version go on serving while `migrate` works"
    )
    assert "was interrupted" in completeness.explain_interrupted_migration()
    Configuration.objects.update(complete_for="0.0.1")
    assert "for version 0.0.1" in completeness.explain_interrupted_migration()
    call_command("migrate", verbosity=0)
    assert completeness.explain_interrupted_migration() == ""


@pytest.mark.parametrize("signal", ["worker_init", "beat_init"])
def test_worker_and_clock_end_at_once_without_triggers(
    signal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "controlplane.celery.connections.close_all", lambda: None
    )  # it would end the test's transaction
    from controlplane.celery import _require_a_whole_site

    assert _require_a_whole_site in [
        receiver() for _, receiver in getattr(signals, signal).receivers
    ]
    _require_a_whole_site()
    drop_guards()
    with pytest.raises(SystemExit, match=r"manage\.py migrate"):
        _require_a_whole_site()


def test_a_host_is_served_nothing_without_triggers(live_db: None) -> None:
    drop_guards()
    code, said = elsewhere.here().run("runmcp")
    assert code != 0
    assert "manage.py migrate" in said


def test_a_worker_that_starts_during_an_outage_is_checked_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from controlplane.celery import _require_a_whole_site

    drop_guards()
    looks = []

    def columns() -> set[str] | None:
        looks.append(1)
        if len(looks) < 3:
            raise OperationalError("no connection")
        return real()

    real = completeness._list_columns
    monkeypatch.setattr(completeness, "_list_columns", columns)
    monkeypatch.setattr(completeness, "PAUSE", 0)
    monkeypatch.setattr(connections, "close_all", lambda: None)  # the test's transaction
    with pytest.raises(SystemExit, match="triggers, such as"):
        _require_a_whole_site()
    assert len(looks) == 3


def test_a_bug_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def columns() -> set[str] | None:
        raise ProgrammingError("no such function")

    monkeypatch.setattr(completeness, "_list_columns", columns)
    with pytest.raises(ProgrammingError):
        completeness.wait_until_complete()


@pytest.mark.postgres_only
def test_a_disabled_trigger_is_missing() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE mcpregistry_server DISABLE TRIGGER watch_mcpregistry_server_update"
        )
    assert find_missing_guards() == ["watch_mcpregistry_server_update"]
    assert (
        "lacks the trigger watch_mcpregistry_server_update." in completeness.explain_missing_parts()
    )


@pytest.mark.exhaustive
def test_tables_of_an_unreleased_version_are_refused() -> None:
    note = 'ALTER TABLE mcpregistry_configuration RENAME COLUMN "{}" TO "{}"'
    with connection.cursor() as cursor:
        cursor.execute(note.format("complete_for", "something_else"))
    said = completeness.explain_missing_parts()
    with pytest.raises(CommandError, match="before the first release"):
        call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(note.format("something_else", "complete_for"))
    assert "before the first release" in said
    assert completeness.explain_missing_parts() == ""
