"""Sections of the documents that hold all words of a question, the best first: SQLite's full-text
index, kept in memory.

It is the same whichever database the site itself uses: the documents are files of the release.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

from mcpregistry.web.docs.document_list import entries, render_document

LIMIT = 30
_SOURCE = "\x02", "\x03"  # stand around a found word; they are in no document
_FOUND = (
    "SELECT slug, page, anchor, title, snippet(sections, 4, ?, ?, '…', 24) FROM sections WHERE sections MATCH ? "
    "ORDER BY bm25(sections, 0, 6, 0, 8, 1) LIMIT ?"
)
_lock = Lock()


@dataclass(frozen=True)
class DocumentHit:
    """A section: its document's slug and title, its anchor and title, and a piece of its text in
    parts, each with whether it is a word that was sought."""

    slug: str
    page: str
    anchor: str
    title: str
    parts: tuple[tuple[str, bool], ...]


def search(question: str) -> list[DocumentHit]:
    """At most ``LIMIT`` sections, for up to ten words of ``question``; the last one may be only
    begun."""
    words = re.findall(r"\w+", question)[:10]
    if not words:
        return []
    match = " AND ".join(f'"{word}"*' for word in words)
    with _lock:
        rows = _index().execute(_FOUND, (*_SOURCE, match, LIMIT)).fetchall()
    return [
        DocumentHit(slug, page, anchor, title, _parts(text))
        for slug, page, anchor, title, text in rows
    ]


@lru_cache(maxsize=1)
def _index() -> sqlite3.Connection:
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.execute(
        "CREATE VIRTUAL TABLE sections USING fts5(slug UNINDEXED, page, anchor UNINDEXED, title, text, tokenize='porter unicode61')"
    )
    index.executemany(
        "INSERT INTO sections VALUES (?, ?, ?, ?, ?)",
        [
            (
                entry.slug,
                entry.title,
                "" if section.level == 1 else section.anchor,
                section.title,
                section.text,
            )
            for entry in entries()
            for section in render_document(entry).sections
        ],
    )
    return index


def _parts(text: str) -> tuple[tuple[str, bool], ...]:
    found = re.split(f"({_SOURCE[0]}[^{_SOURCE[1]}]*{_SOURCE[1]})", text)
    return tuple(
        (part.strip("".join(_SOURCE)), part.startswith(_SOURCE[0])) for part in found if part
    )
