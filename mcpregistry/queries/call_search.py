"""Finding calls by the words in them: names, arguments, errors and results, as far as the record
holds them.

Every search is bounded: the newest ``MOST`` calls that hold all words, whatever other filters say
afterwards.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import and_, or_
from typing import Any
from unicodedata import combining, normalize

from django.db import connection
from django.db.models import Q

from mcpregistry.models import Invocation
from mcpregistry.models.call_text import INDEX, TABLE, VECTOR

MOST = 1_000
MOST_WORDS = 10
_NEAR = (2 * MOST, 40 * MOST)  # of the newest calls: where PostgreSQL looks first, and then
_FTS5 = (
    f"SELECT call_id FROM {TABLE} WHERE id IN (SELECT rowid FROM {INDEX} WHERE {INDEX} MATCH %s "  # noqa: S608
    "ORDER BY rowid DESC LIMIT %s)"
)
_GIN = f"SELECT id, call_id FROM {TABLE} WHERE {VECTOR} @@ to_tsquery('simple', %s)"  # noqa: S608
_GIN_NEAR = f"{_GIN} AND id > %s ORDER BY id DESC LIMIT %s"
_GIN_ALL = (
    f"WITH found AS MATERIALIZED ({_GIN}) SELECT id, call_id FROM found ORDER BY id DESC LIMIT %s"  # noqa: S608
)
_NEW = (
    f"SELECT call_id, text FROM {TABLE} WHERE id > COALESCE((SELECT max(id) FROM {INDEX}_docsize), 0) "  # noqa: S608
    "ORDER BY id DESC LIMIT %s"
)
# of calls without an end, which are few
_OPEN = ("arguments", "exposed_name", "agent_slug", "requester", "request_id")


def words_of(question: str) -> list[str]:
    """The words that a call must hold. Each may be only the beginning of one, except for a single
    character: too many words begin with it."""
    return [
        word.lower()
        for word in re.findall(r"[^\W_]+", normalize("NFC", question[:500]))[:MOST_WORDS]
    ]


def search_calls(question: str) -> list[str]:
    """Ids of the newest calls that hold all of these words, or of the call with this very id."""
    whole = question.strip()
    if re.fullmatch(r"[0-9a-f]{32}", whole) and Invocation.objects.filter(pk=whole).exists():
        return [whole]
    words = words_of(question)
    if not words:
        return []
    return [*_search_unindexed(words), *_search_index(_match(words)), *_open(words)][:MOST]


def _search_index(match: str) -> list[str]:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(_FTS5, [match, MOST])
            return [call for (call,) in cursor.fetchall()]
        return _search_gin(cursor, match)


def _search_gin(cursor: Any, match: str) -> list[str]:
    """GIN has no order: to sort all calls that hold a frequent word takes seconds. So PostgreSQL
    first looks among the newest calls, which is enough for frequent words, and takes only rare ones
    from the whole index.
    """
    cursor.execute(f"SELECT max(id) FROM {TABLE}")  # noqa: S608
    newest = cursor.fetchone()[0] or 0
    for near in _NEAR:
        cursor.execute(_GIN_NEAR, [match, newest - near, MOST])
        found = cursor.fetchall()
        if len(found) == MOST or newest <= near:
            return [call for _, call in found]
    cursor.execute(_GIN_ALL, [match, MOST])
    return [call for _, call in cursor.fetchall()]


def _search_unindexed(words: list[str]) -> list[str]:
    """Of the newest calls, whose words SQLite's index is still to be told of within a minute: the
    newest ``MOST`` of them, by the measure of the index, the beginnings of words without their case
    and accents.
    """
    if connection.vendor != "sqlite":
        return []
    begun = [re.compile(_pattern(_normalize_text(word))) for word in words]
    with connection.cursor() as cursor:
        cursor.execute(_NEW, [MOST])
        return [call for call, text in cursor.fetchall() if _holds(_normalize_text(text), begun)]


def _pattern(word: str) -> str:
    """The regular expression of a word. Words are letters and digits, so nothing needs to be
    escaped."""
    return rf"(?<![^\W_]){word}" if _may_go_on(word) else rf"(?<![^\W_]){word}(?![^\W_])"


def _may_go_on(word: str) -> bool:
    return len(word) > 1


def _holds(text: str, begun: list[re.Pattern[str]]) -> bool:
    return all(word.search(text) for word in begun)


def _normalize_text(text: str) -> str:
    if text.isascii():
        return text.lower()
    return "".join(sign for sign in normalize("NFD", text.casefold()) if not combining(sign))


def _match(words: list[str]) -> str:
    """In the database's own language; the words have nothing in them that it would read
    otherwise."""
    if connection.vendor == "sqlite":
        return " AND ".join(f'"{word}" *' if _may_go_on(word) else f'"{word}"' for word in words)
    return " & ".join(_either(word) for word in words)


def _either(word: str) -> str:
    """PostgreSQL knows small and capital letters beyond ASCII by its locale alone, and of that "C"
    has none."""
    ways = {word, word.upper(), word.capitalize()} if not word.isascii() else {word}
    ending = ":*" if _may_go_on(word) else ""
    return f"({' | '.join(f'{way}{ending}' for way in sorted(ways))})"


def _open(words: list[str]) -> list[str]:
    holds = [
        reduce(or_, (Q(**{f"{column}__icontains": word}) for column in _OPEN)) for word in words
    ]
    # Without an order, for SQLite would go through all calls in that of time instead of through the
    # few that are open.
    return list(
        Invocation.objects.open()
        .order_by()
        .filter(reduce(and_, holds))
        .values_list("pk", flat=True)[:MOST]
    )
