"""One document as HTML: headings that can be linked, links and pictures that lead to addresses of
this site."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from markdown_it import MarkdownIt
from markdown_it.token import Token

CONTENTS = "README"  # the file that lists the documents of a directory
_ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True)
class DocumentSection:
    """A heading and what stands beneath it up to the next: ``level`` 1 to 6, ``anchor`` of its
    address, plain ``text``."""

    level: int
    title: str
    anchor: str
    text: str


@dataclass(frozen=True)
class Rendered:
    """A document's title (its first heading), its HTML without that heading, and its sections in
    order."""

    title: str
    html: str
    sections: tuple[DocumentSection, ...]


def slug_of(name: str) -> str:
    """Return the address of a document by the name of its file: ``rotate-keys`` for
    ``rotate-keys.md``, ``threat-model`` for ``THREAT_MODEL.md``.

    The contents of a directory have the name of the directory: ``decisions`` for
    ``decisions/README.md``. Those of all documents have the address "".
    """
    path = PurePosixPath(name)
    slug = path.parent.name.strip(".") if path.stem == CONTENTS else path.stem
    return slug.lower().replace("_", "-")


def render(text: str, *, base: str) -> Rendered:
    """``text`` is the document in CommonMark with tables; ``base`` the address under which all
    documents stand, ``/docs/``."""
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    tokens = reader.parse(text)
    sections = _sections(tokens)
    for token in tokens:
        _rewrite_links(token, base)
    body = tokens[3:] if tokens and tokens[0].tag == "h1" else tokens
    return Rendered(
        sections[0].title, reader.renderer.render(body, reader.options, {}), tuple(sections)
    )


def _sections(tokens: Sequence[Token]) -> list[DocumentSection]:
    """The sections; each heading's token gets its anchor as ``id``."""
    seen: Counter[str] = Counter()
    starts = [at for at, token in enumerate(tokens) if token.type == "heading_open"]
    found = []
    for at, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        title = _plain(tokens[at + 1])
        anchor = _anchor(title, seen)
        tokens[at].attrSet("id", anchor)
        text = " ".join(_plain(token) for token in tokens[at + 3 : end] if token.content)
        found.append(DocumentSection(int(tokens[at].tag[1]), title, anchor, text))
    return found


def _plain(token: Token) -> str:
    """What a reader sees of a token, without marks."""
    if not token.children:
        return token.content
    return "".join(" " if part.type == "softbreak" else part.content for part in token.children)


def _anchor(title: str, seen: Counter[str]) -> str:
    """As code hosts make them of headings, so that a link in a file works there and here."""
    made = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    seen[made] += 1
    return made if seen[made] == 1 else f"{made}-{seen[made] - 1}"


def _rewrite_links(token: Token, base: str) -> None:
    """Links and pictures of one token and its parts, changed to addresses of this site."""
    for part in (token, *(token.children or ())):
        if part.type == "link_open":
            part.attrSet("href", address(str(part.attrGet("href") or ""), base))
        elif part.type == "image":
            part.attrSet("src", _picture(str(part.attrGet("src") or ""), base))
            part.attrSet("loading", "lazy")
        elif part.type in ("html_block", "html_inline"):
            part.content = re.sub(
                r'src="((?:docs/)?images/[^"]+)"',
                lambda found: f'src="{_picture(found[1], base)}"',
                part.content,
            )


def _picture(source: str, base: str) -> str:
    return f"{base}images/{PurePosixPath(source).name}"


def address(target: str, base: str) -> str:
    """Where a link of a document leads here: ``audit.md#archive`` to ``/docs/audit/#archive``;
    others are kept.

    >>> address("../THREAT_MODEL.md", "/docs/")
    '/docs/threat-model/'
    """
    path, mark, anchor = target.partition("#")
    if _ELSEWHERE.match(target) or not path.endswith(".md"):
        return target
    slug = slug_of(path)
    return f"{base}{slug}/{mark}{anchor}" if slug else f"{base}{mark}{anchor}"
