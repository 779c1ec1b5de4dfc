"""Rules that the database itself keeps, whoever writes to it.

* every change of a configuration table raises ``Configuration.revision`` (and notifies, on
  PostgreSQL);
* changes of calls, tasks and what other apps have named are told to those who wait
  (``models/feed.py``);
* the audit log, its seals and the records of its archives refuse UPDATE, DELETE and TRUNCATE; but
  an entry that such a record says to be in a file may be removed;
* the words of ended calls are kept, indexed and forgotten with them (``models/call_text.py``);
* a call in a terminal state keeps it; but what was only supposed of one may give way to what is
  known.

They are triggers, installed after every migrate: SQLite drops a table's triggers when a migration
rebuilds it, so a one-off migration would lose them silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db import connection
from django.db.models import Model

from mcpregistry.domain.lifecycle import CORRECTIONS, SUPPOSED, TERMINAL, InvocationState
from mcpregistry.extensions import list_extensions
from mcpregistry.models import call_text, feed, trigger_texts
from mcpregistry.models.access import Agent, Configuration, Endpoint, Grant, Token, Workspace
from mcpregistry.models.approval import Permit
from mcpregistry.models.audit import AuditArchive, AuditEntry, AuditSeal
from mcpregistry.models.budget import Budget
from mcpregistry.models.credential import Credential
from mcpregistry.models.invocation import Invocation
from mcpregistry.models.policy import PolicyRule
from mcpregistry.models.project_file import ProjectFile
from mcpregistry.models.server import Server
from mcpregistry.models.signed_books import HEAD_COLUMNS
from mcpregistry.models.tool import Tool

# Configuration tables, with the columns whose changes mean nothing to running processes.
_OWN_TABLES: dict[type[Model], frozenset[str]] = {
    Server: frozenset(
        {
            "last_ok_at",
            "last_error",
            "last_error_code",
            "last_error_at",
            "consecutive_failures",
            "next_check_at",
            "check_until",
            "check_by",
            "protocol_era",
            "server_info",
            "refreshed_at",
            "updated_at",
            "sealed_extra",
            "source",
            "left_out",
            "last_connected_at",
        }
    ),
    Tool: frozenset({"first_seen_at", "last_seen_at"}),
    Agent: frozenset({"description"}),
    Budget: frozenset({"description", "created_at", *HEAD_COLUMNS}),
    Token: frozenset({"last_used_at", "name"}),
    Endpoint: frozenset(),
    Grant: frozenset({"note"}),
    Workspace: frozenset(),
    ProjectFile: frozenset(
        {
            "seen_at",
            "confirmed_at",
            "confirmed_by",
            "confirmed_as",
            "sealed_entries",
            "sealed_confirmed_entries",
            "variables",
        }
    ),
    Credential: frozenset({"description", "updated_at"}),
    PolicyRule: frozenset({"note"}),
    Permit: frozenset({"uses_left"}),
    Configuration: frozenset(
        {
            "revision",
            "complete_for",
            "keep_payloads_days",
            "keep_calls_days",
            "keep_history_days",
            "sub_agent_enabled",
        }
    ),
}


def list_watched_tables() -> dict[type[Model], frozenset[str]]:
    """The tables whose changes raise the revision of the configuration, with the columns whose
    changes do not."""
    found = dict(_OWN_TABLES)
    for extension in list_extensions():
        found |= extension.watched_tables
    return found


There = dict[str, set[str]]  # the columns of each table that a trigger is for

_SITE = Configuration._meta.db_table
_APPENDED = {  # only ever added to
    "audit": AuditEntry._meta.db_table,
    "seal": AuditSeal._meta.db_table,
    "archive": AuditArchive._meta.db_table,
}
# The one exception. Whoever writes such a record by hand cannot sign it, and ``audit verify`` finds
# it.
_ARCHIVED = f"SELECT 1 FROM {_APPENDED['archive']} WHERE writer = OLD.writer AND OLD.seq BETWEEN from_seq AND to_seq"  # noqa: S608
# in one query: Django's introspection of SQLite parses how each table was made, for a second
_COLUMNS = {
    "sqlite": "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'",
    "postgresql": "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()",
}
_ON_TABLES = {
    "sqlite": "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname, relname FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid WHERE NOT tgisinternal "
    "AND relnamespace = current_schema()::regnamespace "
    "UNION ALL SELECT rulename, tablename FROM pg_rules WHERE schemaname = current_schema()",
}
_EXTRA = {"sqlite": ("replace",), "postgresql": ("truncate",)}  # ways round UPDATE and DELETE


def install_guards() -> None:
    """Create all triggers anew; idempotent. Also makes sure that the one Configuration row exists.

    After a migration to an earlier state there is not all that they name: then those for what is
    there.
    """
    there = _read_columns()
    if not {field.column for field in Configuration._meta.local_concrete_fields} - there.get(
        _SITE, set()
    ):
        Configuration.load()
    statements = (
        _build_postgres_statements(there) if connection.vendor == "postgresql" else _sqlite(there)
    )
    drop_guards()
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def drop_guards() -> None:
    """Remove all triggers, before they are made anew or rows of a closed record are repaired on
    purpose."""
    with connection.cursor() as cursor:
        for statement in _drops():
            cursor.execute(statement)


def find_missing_guards() -> list[str]:
    """Names of triggers that should be there and are not, or do not fire for usual sessions."""
    if connection.vendor == "postgresql":
        source = "SELECT tgname, relname FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid"
        source += " WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') AND relnamespace = current_schema()::regnamespace"
    else:
        source = "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'"
    with connection.cursor() as cursor:
        cursor.execute(source)
        present = {*cursor.fetchall()}
    return sorted(name for name, _ in {*_names()} - present)


def find_unknown_guards() -> list[str]:
    """Triggers and rules of the site's tables that are not the site's own, for example ``evil on
    mcpregistry_grant``.

    They could change or drop what the site writes.
    """
    own = {*_names()}
    with connection.cursor() as cursor:
        cursor.execute(_ON_TABLES[connection.vendor])
        found = {*cursor.fetchall()} - own
        tables = {*connection.introspection.django_table_names()}
    return sorted(f"{name} on {table}" for name, table in found if table in tables)


def find_altered_guards() -> list[str]:
    """Names of triggers that are there and do something else than those that ``install_guards``
    creates.

    It takes some milliseconds on SQLite and a tenth of a second on PostgreSQL.
    """
    there = _read_columns()
    if connection.vendor == "postgresql":
        return trigger_texts.find_altered_on_postgres(
            _build_postgres_statements(there), {table for _, table in _names()} & there.keys()
        )
    return trigger_texts.find_altered_on_sqlite(_sqlite(there))


def _read_columns() -> There:
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS[connection.vendor])
        found: There = {}
        for table, column in cursor.fetchall():
            found.setdefault(table, set()).add(column)
    named = {call_text.TABLE, *(table for _, table in _names())}
    return {table: columns for table, columns in found.items() if table in named}


def _list_watched_columns(there: There) -> Iterator[tuple[str, list[str]]]:
    """(table, columns) of each configuration table that is there."""
    for model, ignored in list_watched_tables().items():
        table = model._meta.db_table
        columns = {
            f.name: f.column
            for f in model._meta.local_concrete_fields
            if f.column in there.get(table, ())
        }
        if columns:
            yield (
                table,
                [column for name, column in columns.items() if column and name not in ignored],
            )


def _build_difference(columns: Iterable[str], differs: str) -> str:
    return " OR ".join(f'OLD."{column}" {differs} NEW."{column}"' for column in columns)


def _names() -> list[tuple[str, str]]:
    """(trigger, table) of every guard."""
    events = ("insert", "update", "delete")
    watched = [
        (f"watch_{model._meta.db_table}_{event}", model._meta.db_table)
        for model in list_watched_tables()
        for event in events
    ]
    kept = [
        (f"{name}_no_{event}", table)
        for name, table in _APPENDED.items()
        for event in ("update", "delete", *_EXTRA[connection.vendor])
    ]
    words = call_text.triggers(connection.vendor)
    return [
        *watched,
        *kept,
        *feed.triggers(),
        *words,
        ("call_stays_ended", Invocation._meta.db_table),
    ]


def _drops() -> list[str]:
    if connection.vendor == "postgresql":
        return [f"DROP TRIGGER IF EXISTS {name} ON {table}" for name, table in _names()]
    return [f"DROP TRIGGER IF EXISTS {name}" for name, _ in _names()]


def _quote_states(states: Iterable[InvocationState]) -> str:
    return ", ".join(f"'{state.value}'" for state in sorted(states))


def _stays_ended() -> str:
    """When a change of a call's state is refused, but for the words with which a database says that
    it is one."""
    supposed = f"OLD.state = '{InvocationState.UNKNOWN.value}' AND OLD.error_code = '{SUPPOSED}'"
    return f"OLD.state IN ({_quote_states(TERMINAL)}) AND NOT ({supposed} AND NEW.state IN ({_quote_states(CORRECTIONS)}))"


def _sqlite(there: There) -> list[str]:
    # In the database, so that the admin, REST, raw SQL and a history revert all raise the revision.
    bump = f"BEGIN UPDATE {_SITE} SET revision = revision + 1 WHERE id = 1; END"  # noqa: S608
    calls = Invocation._meta.db_table
    statements = [
        *_sqlite_append_only("audit", "id = NEW.id OR (writer = NEW.writer AND seq = NEW.seq)"),
        *_sqlite_append_only("seal", "number = NEW.number"),
        *_sqlite_append_only(
            "archive", "number = NEW.number OR (writer = NEW.writer AND to_seq = NEW.to_seq)"
        ),
        # The last line of defence: whatever code is wrong, an ended call keeps its end.
        f"CREATE TRIGGER call_stays_ended BEFORE UPDATE OF state ON {calls} WHEN {_stays_ended()} "
        "AND OLD.state IS NOT NEW.state BEGIN SELECT RAISE(ABORT, 'an ended call keeps its state'); END",
    ]
    for table, columns in _list_watched_columns(there):
        changed = _build_difference(columns, "IS NOT")
        statements += [
            f"CREATE TRIGGER watch_{table}_insert AFTER INSERT ON {table} {bump}",
            f"CREATE TRIGGER watch_{table}_update AFTER UPDATE ON {table} WHEN {changed} {bump}",
            f"CREATE TRIGGER watch_{table}_delete AFTER DELETE ON {table} {bump}",
        ]
    return [*statements, *feed.sqlite_statements(there), *call_text.statements("sqlite", there)]


def _sqlite_append_only(name: str, same: str) -> list[str]:
    table = _APPENDED[name]
    refuse = "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
    unless = f"WHEN NOT EXISTS ({_ARCHIVED})" if name == "audit" else ""
    return [
        f"CREATE TRIGGER {name}_no_update BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {name}_no_delete BEFORE DELETE ON {table} {unless} {refuse}",
        # REPLACE takes the old row away without asking any DELETE trigger.
        f"CREATE TRIGGER {name}_no_replace BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) "  # noqa: S608
        f"{refuse}",
    ]


def _build_postgres_statements(there: There) -> list[str]:
    calls = Invocation._meta.db_table
    statements = [
        f"""CREATE OR REPLACE FUNCTION slipsnisse_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            UPDATE {_SITE} SET revision = revision + 1 WHERE id = 1;
            PERFORM pg_notify('{feed.channel(feed.CONFIGURATION)}', ''); RETURN NULL; END $$""",  # noqa: S608
        """CREATE OR REPLACE FUNCTION slipsnisse_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION '%', TG_ARGV[0]; END $$""",
        f"""CREATE OR REPLACE FUNCTION slipsnisse_archived() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NOT EXISTS ({_ARCHIVED}) THEN RAISE EXCEPTION 'the audit log is append-only'; END IF;
            RETURN OLD; END $$""",
        f"CREATE TRIGGER audit_no_delete BEFORE DELETE ON {_APPENDED['audit']} FOR EACH ROW "
        "EXECUTE FUNCTION slipsnisse_archived()",
        f"CREATE TRIGGER call_stays_ended BEFORE UPDATE OF state ON {calls} FOR EACH ROW WHEN ({_stays_ended()} "
        "AND OLD.state IS DISTINCT FROM NEW.state) "
        "EXECUTE FUNCTION slipsnisse_refuse('an ended call keeps its state')",
    ]
    refused = [(name, event) for name in _APPENDED for event in ("update", "delete", "truncate")]
    refused.remove(("audit", "delete"))
    statements += [
        f"CREATE TRIGGER {name}_no_{event} BEFORE {event.upper()} ON {_APPENDED[name]} FOR EACH STATEMENT "
        "EXECUTE FUNCTION slipsnisse_refuse('the audit log is append-only')"
        for name, event in refused
    ]
    for table, columns in _list_watched_columns(there):
        changed = _build_difference(columns, "IS DISTINCT FROM")
        for event, when in (("insert", ""), ("delete", ""), ("update", f"WHEN ({changed})")):
            statements.append(
                f"CREATE TRIGGER watch_{table}_{event} AFTER {event.upper()} ON {table} FOR EACH ROW {when} "
                "EXECUTE FUNCTION slipsnisse_changed()"
            )
    return [
        *statements,
        *feed.build_postgres_statements(there),
        *call_text.statements("postgresql", there),
    ]
