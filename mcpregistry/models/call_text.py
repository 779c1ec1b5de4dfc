"""What calls can be found by: their stored words, kept by triggers, and the database's own
full-text index of them.

A call that has ended has one ``CallText``: its names, its error, and the beginning of its arguments
and result as the record holds them, so redacted as they are. ``guards`` installs the triggers; when
retention empties or removes a call, its words go with it. SQLite indexes them with FTS5, PostgreSQL
with GIN over a column that it makes of them. FTS5 is told of new words by the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.contrib.auth.models import User
from django.db import models

from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.models.invocation import Invocation

# characters of each that are indexed
ARGUMENTS = 2_000
RESULT = 4_000
INDEX = "words_of_calls"
# PostgreSQL's parser would keep paths, addresses and words with hyphens whole.
_PARTS = "/.:-_@~+#=&?<>;,"
_MADE = f"to_tsvector('simple', translate(text, '{_PARTS}', '{' ' * len(_PARTS)}'))"
# PostgreSQL's own column: to parse the words of a call again for each search takes 0.2 ms
VECTOR = "vector"
_CALLS = Invocation._meta.db_table
_NAMES = (
    "exposed_name",
    "tool_name",
    "server_slug",
    "agent_slug",
    "endpoint_slug",
    "requester",
    "host_name",
    "request_id",
    "conversation_id",
    "error_code",
    "reason",
    "warning",
)
_WATCHED = ("state", "arguments", "result", "reason", "error_code")


class CallText(models.Model):
    """The words of one ended call. The key rises with time; it is the row of the full-text
    index."""

    call_id = models.CharField(max_length=32, unique=True)
    text = models.TextField()

    def __str__(self) -> str:
        return self.call_id


class SavedFilter(models.Model):
    """A person's name for a view of the list of calls: its query string. A shared one is offered to
    all who see calls."""

    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="call_filters")
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=1_000, blank=True)
    shared = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="one_filter_per_name")
        ]

    def __str__(self) -> str:
        return self.name


TABLE = CallText._meta.db_table
_ENDED = ", ".join(f"'{state.value}'" for state in sorted(TERMINAL))


def triggers(vendor: str) -> list[tuple[str, str]]:
    """(trigger, table) of every one that keeps the words."""
    kept = [(f"words_{event}", _CALLS) for event in ("insert", "update", "delete")]
    indexed = [(f"index_words_{event}", TABLE) for event in ("update", "delete")]
    return kept + indexed if vendor == "sqlite" else kept


def statements(vendor: str, there: Mapping[str, Collection[str]]) -> list[str]:
    """The index, its first filling and its triggers; after a migration to an earlier state,
    none."""
    if not {"id", "call_id", "text"} <= {*there.get(TABLE, ())}:
        return [f"DROP TABLE IF EXISTS {INDEX}"] if vendor == "sqlite" else []
    return _sqlite() if vendor == "sqlite" else _postgres()


def index_anew(vendor: str) -> list[str]:
    """Statements that make the index of the words that are there, for whoever has put rows in past
    the triggers."""
    if vendor != "sqlite":
        return []
    return [
        f"DELETE FROM {INDEX}",  # noqa: S608 -- names of ours
        f"INSERT INTO {INDEX} (rowid, text) SELECT id, text FROM {TABLE}",  # noqa: S608
    ]


def _text(row: str) -> str:
    """The words of a call in SQL. Line breaks within JSON texts part words, as they do for
    readers."""
    long = [f"substr({row}arguments, 1, {ARGUMENTS})", f"substr({row}result, 1, {RESULT})"]
    whole = " || ' ' || ".join([*(f"COALESCE({row}{name}, '')" for name in _NAMES), *long])
    for escaped in (r"\\n", r"\n", r"\r", r"\t"):
        whole = f"replace({whole}, '{escaped}', ' ')"
    return whole


def _upsert(row: str) -> str:
    return (
        f"INSERT INTO {TABLE} (call_id, text) VALUES ({row}id, {_text(row)}) "  # noqa: S608  all words are ours
        "ON CONFLICT (call_id) DO UPDATE SET text = excluded.text"
    )


def _fill() -> str:
    """For a site that had calls before they had words."""
    return (
        f"INSERT INTO {TABLE} (call_id, text) SELECT id, {_text('')} FROM {_CALLS} "  # noqa: S608
        f"WHERE state IN ({_ENDED}) AND NOT EXISTS (SELECT 1 FROM {TABLE}) ORDER BY received_at, id"
    )


def _when(differs: str) -> str:
    changed = " OR ".join(f"OLD.{column} {differs} NEW.{column}" for column in _WATCHED)
    return f"NEW.state IN ({_ENDED}) AND ({changed})"


def _sqlite() -> list[str]:
    # The index has a copy of the words: one that has none must be told them to forget them, and
    # breaks where they differ. New words wait for the clock (``services.records.search_index``): to
    # index each call as it ends costs more than to write it.
    end = f"(SELECT max(id) FROM {INDEX}_docsize)"  # noqa: S608
    begins = f"(SELECT min(id) FROM {TABLE}) IS (SELECT min(id) FROM {INDEX}_docsize)"  # noqa: S608
    again = f"INSERT INTO {INDEX} (rowid, text) SELECT NEW.id, NEW.text WHERE NEW.id < {end};"
    return [
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {INDEX} USING fts5(text, detail=none, tokenize='unicode61')",
        _fill(),
        # A restored site has the rows and not their index.
        f"DELETE FROM {INDEX} WHERE NOT ({begins})",  # noqa: S608
        f"INSERT INTO {INDEX} (rowid, text) SELECT id, text FROM {TABLE} WHERE NOT ({begins})",  # noqa: S608
        f"CREATE TRIGGER words_insert AFTER INSERT ON {_CALLS} WHEN NEW.state IN ({_ENDED}) BEGIN {_upsert('NEW.')}; END",
        f"CREATE TRIGGER words_update AFTER UPDATE OF {', '.join(_WATCHED)} ON {_CALLS} WHEN {_when('IS NOT')} "
        f"BEGIN {_upsert('NEW.')}; END",
        f"CREATE TRIGGER words_delete AFTER DELETE ON {_CALLS} BEGIN DELETE FROM {TABLE} WHERE call_id = OLD.id; END",  # noqa: S608
        f"CREATE TRIGGER index_words_update AFTER UPDATE ON {TABLE} BEGIN DELETE FROM {INDEX} WHERE rowid = OLD.id; "  # noqa: S608
        f"{again} END",
        f"CREATE TRIGGER index_words_delete AFTER DELETE ON {TABLE} BEGIN DELETE FROM {INDEX} WHERE rowid = OLD.id; END",  # noqa: S608
    ]


def _postgres() -> list[str]:
    each = "FOR EACH ROW"
    return [
        f"ALTER TABLE {TABLE} ADD COLUMN IF NOT EXISTS {VECTOR} tsvector GENERATED ALWAYS AS ({_MADE}) STORED",
        f"CREATE INDEX IF NOT EXISTS {INDEX} ON {TABLE} USING gin ({VECTOR})",
        _fill(),
        f"""CREATE OR REPLACE FUNCTION slipsnisse_words() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            {_upsert("NEW.")}; RETURN NULL; END $$""",
        f"""CREATE OR REPLACE FUNCTION slipsnisse_no_words() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            DELETE FROM {TABLE} WHERE call_id = OLD.id; RETURN NULL; END $$""",  # noqa: S608
        f"CREATE TRIGGER words_insert AFTER INSERT ON {_CALLS} {each} WHEN (NEW.state IN ({_ENDED})) "
        "EXECUTE FUNCTION slipsnisse_words()",
        f"CREATE TRIGGER words_update AFTER UPDATE ON {_CALLS} {each} WHEN ({_when('IS DISTINCT FROM')}) "
        "EXECUTE FUNCTION slipsnisse_words()",
        f"CREATE TRIGGER words_delete AFTER DELETE ON {_CALLS} {each} EXECUTE FUNCTION slipsnisse_no_words()",
    ]
