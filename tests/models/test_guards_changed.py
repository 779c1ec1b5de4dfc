"""Somebody changes the triggers of the database, which is noticed whatever they are called; on both
databases."""

from __future__ import annotations

import pytest
from django.db import connection
from django.utils import timezone

from mcpregistry.models import AuditEntry, Invocation
from mcpregistry.models.guards import (
    find_altered_guards,
    find_missing_guards,
    find_unknown_guards,
    install_guards,
)
from mcpregistry.services.upkeep.invariants.calls import check_invariants

pytestmark = pytest.mark.django_db
AUDIT = AuditEntry._meta.db_table
CALLS = Invocation._meta.db_table


def sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def hollow(name: str, table: str, event: str) -> None:
    """A trigger of the same name that does nothing, as somebody makes it who wants to change the
    table unnoticed."""
    if connection.vendor == "postgresql":
        sql(f"DROP TRIGGER {name} ON {table}")
        sql(
            "CREATE OR REPLACE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN OLD; END $$"
        )
        sql(
            f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH STATEMENT EXECUTE FUNCTION nothing()"
        )
    else:
        sql(f"DROP TRIGGER {name}")
        sql(f"CREATE TRIGGER {name} BEFORE {event} ON {table} BEGIN SELECT 1; END")


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "event"), [("audit_no_update", "UPDATE"), ("audit_no_delete", "DELETE")]
)
def test_trigger_that_does_nothing_is_named(name: str, event: str):
    assert find_altered_guards() == []
    hollow(name, AUDIT, event)
    assert find_missing_guards() == []
    assert find_altered_guards() == [name]
    install_guards()
    assert find_altered_guards() == []


@pytest.mark.attack
def test_trigger_that_the_site_has_not_made_is_named():
    """It drops what is written, and nobody hears of it."""
    assert find_unknown_guards() == []
    if connection.vendor == "postgresql":
        sql(
            "CREATE OR REPLACE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
        )
        sql(
            f"CREATE TRIGGER drops BEFORE INSERT ON {AUDIT} FOR EACH ROW EXECUTE FUNCTION nothing()"
        )
        sql(f"CREATE RULE keeps AS ON DELETE TO {AUDIT} DO INSTEAD NOTHING")
    else:
        sql(f"CREATE TRIGGER drops BEFORE INSERT ON {AUDIT} BEGIN SELECT RAISE(IGNORE); END")
    found = (
        {f"drops on {AUDIT}", f"keeps on {AUDIT}"}
        if connection.vendor == "postgresql"
        else {f"drops on {AUDIT}"}
    )
    assert {*find_unknown_guards()} == found
    assert {each for each in _guard_findings() if each.endswith("does not belong to the site")} == {
        f"{name} does not belong to the site" for name in found
    }


def _guard_findings() -> tuple[str, ...]:
    return next(
        each.examples
        for each in check_invariants(timezone.now())
        if each.rule.startswith("The triggers of the database")
    )


@pytest.mark.attack
@pytest.mark.postgres_only
def test_trigger_of_a_table_in_another_schema_does_not_count():
    """Table, trigger and function have the right names and texts, and nothing is written there."""
    sql("CREATE SCHEMA elsewhere")
    sql(f"CREATE TABLE elsewhere.{AUDIT} (LIKE {AUDIT})")
    sql(
        f"CREATE TRIGGER audit_no_update BEFORE UPDATE ON elsewhere.{AUDIT} FOR EACH STATEMENT "
        "EXECUTE FUNCTION slipsnisse_refuse('the audit log is append-only')"
    )
    assert (find_missing_guards(), find_altered_guards()) == ([], [])
    sql(f"DROP TRIGGER audit_no_update ON {AUDIT}")
    assert find_missing_guards() == ["audit_no_update"]


@pytest.mark.attack
def test_trigger_with_a_condition_that_never_holds_is_named():
    if connection.vendor == "postgresql":
        sql(f"DROP TRIGGER call_stays_ended ON {CALLS}")
        sql(
            f"CREATE TRIGGER call_stays_ended BEFORE UPDATE OF state ON {CALLS} FOR EACH ROW WHEN (false) "
            "EXECUTE FUNCTION slipsnisse_refuse('an ended call keeps its state')"
        )
    else:
        sql("DROP TRIGGER call_stays_ended")
        sql(
            f"CREATE TRIGGER call_stays_ended BEFORE UPDATE OF state ON {CALLS} WHEN 0 "
            "BEGIN SELECT RAISE(ABORT, 'an ended call keeps its state'); END"
        )
    assert find_altered_guards() == ["call_stays_ended"]


@pytest.mark.attack
@pytest.mark.postgres_only
def test_function_of_triggers_that_does_nothing_is_named():
    sql(
        "CREATE OR REPLACE FUNCTION slipsnisse_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$"
    )
    assert {"audit_no_update", "seal_no_delete", "call_stays_ended"} <= {*find_altered_guards()}


@pytest.mark.attack
@pytest.mark.postgres_only
def test_trigger_that_fires_for_replicas_only_is_missing():
    sql(f"ALTER TABLE {AUDIT} ENABLE REPLICA TRIGGER audit_no_update")
    assert find_missing_guards() == ["audit_no_update"]
    sql(f"ALTER TABLE {AUDIT} ENABLE ALWAYS TRIGGER audit_no_update")
    assert find_missing_guards() == []
