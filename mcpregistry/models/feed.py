"""Which changes of which tables the change feed tells running processes of, besides the
configuration's.

Triggers tell (``models/guards.py`` installs them), so no way of editing can forget to: on
PostgreSQL they notify the topic's channel with the key, in the transaction of the change; on
SQLite, which has no such thing, they raise the topic's counter in the table ``Change``.
``calls/watch/changes.py`` listens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from django.db import models
from django.db.models import Model

from mcpregistry.extensions import list_extensions
from mcpregistry.models.host_session import HostMessage, HostSession, HostStream
from mcpregistry.models.host_task import HostTask
from mcpregistry.models.invocation import Invocation

CONFIGURATION = "configuration"
CALLS = "calls"
TASKS = "tasks"
SESSIONS = "sessions"
STREAMS = "streams"


class Change(models.Model):
    """SQLite: how often something of this topic has changed. PostgreSQL leaves it alone: a row that
    everybody raises would make all writers wait for each other."""

    topic = models.CharField(primary_key=True, max_length=40)
    number = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return f"{self.topic} {self.number}"


@dataclass(frozen=True, slots=True)
class Told:
    """``key``: the column by which those who wait know the row; ``columns``: an update counts where
    one of them differs; ``inserted``: new rows count as well; ``only``: a condition in SQL on the
    row as it is now."""

    topic: str
    key: str
    columns: tuple[str, ...] = ()
    inserted: bool = False
    only: str = ""


_OWN_TABLES: dict[type[Model], Told] = {
    # Calls that were held. Nobody waits by the feed for others, of which there are thousands a
    # second.
    Invocation: Told(CALLS, "id", ("state",), only="NEW.outcome = 'ask'"),
    HostTask: Told(TASKS, "id", ("version", "cancel_requested", "input_responses")),
    HostSession: Told(SESSIONS, "id", ("ended_at",)),
    HostMessage: Told(SESSIONS, "session_id", inserted=True),
    HostStream: Told(STREAMS, "id", ("answered_at",)),
}


def list_reported_tables() -> dict[type[Model], Told]:
    """The tables whose changes the feed reports."""
    found = dict(_OWN_TABLES)
    for extension in list_extensions():
        found |= extension.reported_tables
    return found


def topics() -> list[str]:
    """Every topic that changes are told of, sorted."""
    return sorted({CONFIGURATION, *(told.topic for told in list_reported_tables().values())})


def channel(topic: str) -> str:
    """The topic's channel on PostgreSQL."""
    return f"slipsnisse_{topic}"


def triggers() -> list[tuple[str, str]]:
    """(trigger, table) of every one that tells."""
    return [
        (name, model._meta.db_table)
        for model, told in list_reported_tables().items()
        for name, _ in _events(model, told)
    ]


def _events(model: type[Model], told: Told) -> list[tuple[str, str]]:
    """(name of the trigger, the event)"""
    events = ["insert"] * told.inserted + ["update"] * bool(told.columns)
    return [(f"tell_{model._meta.db_table}_{event}", event) for event in events]


def _when(told: Told, event: str, differs: str) -> str:
    changed = " OR ".join(f'OLD."{column}" {differs} NEW."{column}"' for column in told.columns)
    parts = [f"({part})" for part in (changed if event == "update" else "", told.only) if part]
    return f"WHEN ({' AND '.join(parts)})" if parts else ""


def _find_complete_tables(there: Mapping[str, Collection[str]]) -> list[tuple[type[Model], Told]]:
    """Of the tables that are there whole."""
    named = [
        (model, told, {told.key, *told.columns}) for model, told in list_reported_tables().items()
    ]
    return [
        (model, told)
        for model, told, names in named
        if names <= {*there.get(model._meta.db_table, ())}
    ]


def sqlite_statements(there: Mapping[str, Collection[str]]) -> list[str]:
    """One counter row for each topic that tables tell of, and the triggers that raise it."""
    counters = Change._meta.db_table
    statements = []
    for topic in topics():
        statements.append(f"INSERT OR IGNORE INTO {counters} (topic, number) VALUES ('{topic}', 0)")  # noqa: S608
    for model, told in _find_complete_tables(there):
        raised = (
            f"BEGIN UPDATE {counters} SET number = number + 1 WHERE topic = '{told.topic}'; END"  # noqa: S608
        )
        for name, event in _events(model, told):
            when = _when(told, event, "IS NOT")
            statements.append(
                f"CREATE TRIGGER {name} AFTER {event.upper()} ON {model._meta.db_table} {when} {raised}"
            )
    return statements


def build_postgres_statements(there: Mapping[str, Collection[str]]) -> list[str]:
    """For each table a function that notifies of its rows' keys, and the triggers that call it."""
    statements = []
    for model, told in _find_complete_tables(there):
        table = model._meta.db_table
        statements.append(
            f"""CREATE OR REPLACE FUNCTION slipsnisse_tell_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_notify('{channel(told.topic)}', NEW."{told.key}"::text); RETURN NULL; END $$"""
        )
        for name, event in _events(model, told):
            when = _when(told, event, "IS DISTINCT FROM")
            statements.append(
                f"CREATE TRIGGER {name} AFTER {event.upper()} ON {table} FOR EACH ROW {when} "
                f"EXECUTE FUNCTION slipsnisse_tell_{table}()"
            )
    return statements
