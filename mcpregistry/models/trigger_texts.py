"""Whether the triggers of the database do what the statements say that create them: a trigger's
name alone proves nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from django.db import connection, transaction

_TRIGGER = re.compile(r"CREATE TRIGGER (\w+) ")
_CALLED = re.compile(r"EXECUTE FUNCTION (\w+)\(")
_FUNCTION = re.compile(r"CREATE OR REPLACE FUNCTION (\w+)\(\).*?\$\$(.*)\$\$", re.DOTALL)
_SCHEMA = re.compile(r" ON [^ .]+\.")
_TEXTS = """
    SELECT t.tgname, pg_get_triggerdef(t.oid), p.proname, p.prosrc, l.lanname
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_language l ON l.oid = p.prolang
    JOIN pg_class c ON c.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND (c.relpersistence = 't') = %s AND t.tgname = ANY(%s)
    AND c.relnamespace IN (current_schema()::regnamespace, pg_my_temp_schema())
"""


def find_altered_on_sqlite(statements: Iterable[str]) -> list[str]:
    """Names of triggers whose text in the database is not that of the statement that creates
    them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        actual = {name: _words(text) for name, text in cursor.fetchall()}
    expected = {name: _words(statement) for name, statement in _triggers(statements).items()}
    return sorted(
        name for name in expected.keys() & actual.keys() if actual[name] != expected[name]
    )


def _words(text: str) -> str:
    return " ".join(text.split())


def _triggers(statements: Iterable[str]) -> dict[str, str]:
    found = ((_TRIGGER.match(statement), statement) for statement in statements)
    return {name[1]: statement for name, statement in found if name}


def find_altered_on_postgres(statements: Collection[str], tables: Collection[str]) -> list[str]:
    """The same. PostgreSQL keeps its own spelling of a trigger, so the statements create triggers
    of temporary tables, which are compared and rolled back.
    """
    triggers = _triggers(statements)
    bodies = {found[1]: found[2] for found in map(_FUNCTION.match, statements) if found}
    actual = _read_texts(triggers, temporary=False)
    expected = _read_expected_texts(triggers, tables)
    return sorted(name for name in actual if actual[name] != _with_body(expected.get(name), bodies))


Text = tuple[str, str, str, str]  # the trigger's definition; its function's name, body and language


def _with_body(text: Text | None, bodies: dict[str, str]) -> Text | None:
    if text is None:
        return None
    definition, function, _, _ = text
    return definition, function, bodies.get(function, ""), "plpgsql"


def _read_texts(triggers: Collection[str], *, temporary: bool) -> dict[str, Text]:
    with connection.cursor() as cursor:
        cursor.execute(_TEXTS, [temporary, [*triggers]])
        return {
            name: (_SCHEMA.sub(" ON ", definition, count=1), function, body, language)
            for name, definition, function, body, language in cursor.fetchall()
        }


def _read_expected_texts(triggers: dict[str, str], tables: Collection[str]) -> dict[str, Text]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT proname FROM pg_proc")
        functions = {name for (name,) in cursor.fetchall()}
        cursor.execute("SELECT current_schema()")
        (schema,) = cursor.fetchone()
        # A temporary table hides the real one of its name.
        copies = [
            f"CREATE TEMPORARY TABLE {table} (LIKE {schema}.{table})" for table in sorted(tables)
        ]
        called = {
            name: found[1] for name, text in triggers.items() if (found := _CALLED.search(text))
        }
        created = [text for name, text in triggers.items() if called.get(name) in functions]
        cursor.execute("; ".join([*copies, *created]))
        texts = _read_texts(triggers, temporary=True)
        transaction.set_rollback(True)
    return texts
