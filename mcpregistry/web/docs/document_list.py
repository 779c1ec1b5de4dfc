"""Which documents there are: those that ``docs/README.md`` lists, under its headings and in its
order.

If it lists the ``README.md`` of a directory, the documents that this file lists belong to its
entry."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.urls import reverse

from mcpregistry.domain.errors import NotFound
from mcpregistry.web.docs import error_codes
from mcpregistry.web.docs.rendering import CONTENTS, Rendered, render, slug_of

_GROUP = re.compile(r"^## (?P<title>.+)$")
_ENTRY = re.compile(r"^- \[(?P<title>[^]]+)\]\((?P<file>[^)]+\.md)\): (?P<summary>.+)$")


@dataclass(frozen=True)
class DocumentEntry:
    """One document as the list of contents names it: ``slug`` of its address, title, a sentence,
    its file. ``parts`` are the documents that it lists, if it is the contents of a directory."""

    slug: str
    title: str
    summary: str
    path: Path
    parts: tuple[DocumentEntry, ...] = ()


@dataclass(frozen=True)
class DocumentGroup:
    """Documents of one kind (learn, do, look up, understand), with what people come to them for."""

    title: str
    about: str
    entries: tuple[DocumentEntry, ...]


@lru_cache(maxsize=1)
def contents() -> tuple[DocumentGroup, ...]:
    """The groups of documents, read once: they are part of the release."""
    folder = settings.BASE_DIR / "docs"
    groups: list[tuple[str, list[str], list[DocumentEntry]]] = []
    for line in (folder / "README.md").read_text(encoding="utf-8").splitlines():
        if heading := _GROUP.match(line):
            groups.append((heading["title"], [], []))
        elif groups and (found := _ENTRY.match(line)):
            groups[-1][2].append(_make_entry(folder, found))
        elif groups and line.strip():
            groups[-1][1].append(line.strip())
    return tuple(
        DocumentGroup(title, " ".join(about), tuple(entries)) for title, about, entries in groups
    )


def _make_entry(folder: Path, found: re.Match[str]) -> DocumentEntry:
    path = (folder / found["file"]).resolve()
    parts = _list_parts(path) if path.stem == CONTENTS else ()
    title = found["title"].replace("`", "")
    return DocumentEntry(slug_of(found["file"]), title, found["summary"], path, parts)


def _list_parts(path: Path) -> tuple[DocumentEntry, ...]:
    """Return the documents that the contents of a directory list."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(_make_entry(path.parent, found) for line in lines if (found := _ENTRY.match(line)))


def entries() -> tuple[DocumentEntry, ...]:
    """All documents, in the order of their groups. The parts of a document follow it."""
    listed = [entry for group in contents() for entry in group.entries]
    return tuple(document for entry in listed for document in (entry, *entry.parts))


def find_parent(part: DocumentEntry) -> DocumentEntry | None:
    """Return the contents of a directory that list this document, if there are any."""
    return next((entry for entry in entries() if part in entry.parts), None)


def entry_of(slug: str) -> DocumentEntry:
    """The document at this address. Raises ``NotFound``."""
    for entry in entries():
        if entry.slug == slug:
            return entry
    raise NotFound(
        "This page of the docs does not exist.",
        remedy="Search the docs, or start at their first page.",
    )


@lru_cache(maxsize=100)
def render_document(entry: DocumentEntry) -> Rendered:
    """A document's HTML and sections, made once per process."""
    made = render(entry.path.read_text(encoding="utf-8"), base=reverse("docs:index"))
    return (
        replace(made, html=error_codes.link_codes(made.html))
        if entry.slug == error_codes.SLUG
        else made
    )


def picture(name: str) -> bytes:
    """The bytes of ``docs/images/NAME``, a PNG. Raises ``NotFound``."""
    path = settings.BASE_DIR / "docs" / "images" / name
    if path.suffix != ".png" or not path.is_file():
        raise NotFound(
            "This picture does not exist.", remedy="Open the page of the docs that shows it."
        )
    return path.read_bytes()
