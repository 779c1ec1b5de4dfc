"""Anything that people paste to add a server, read into entries: command lines, addresses, files,
links, names.

What a README says is enough: ``npx -y …``, ``claude mcp add …``, the JSON or TOML of any host, an
address, a link of an "Add to Cursor" badge, the name of an entry of a registry. Nothing here runs
or looks anything up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcpregistry.domain.formats.document import Document
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.formats.pasted import addresses, commands, files
from mcpregistry.domain.formats.pasted.common_entries import NAME

MOST_CHARACTERS = 256 * 1024
_FENCE = re.compile(r"\A```[A-Za-z0-9_-]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_REGISTRY = re.compile(r"[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)+/[a-zA-Z0-9._-]+", re.ASCII)
_PACKAGE = re.compile(r"@[a-z0-9._-]+/[a-z0-9._-]+(?:@[A-Za-z0-9.^~-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pasted:
    """``what`` says in words what it was taken for. ``registry``: the entry that was named instead
    of a server."""

    what: str
    document: Document
    registry: str = ""


def read(text: str) -> Pasted:
    """What was pasted, as entries; what is wrong inside one is said in the document's notes.

    Raises FileInvalid, with the remedy, for what is nothing that starts or reaches a server.
    """
    text = _clean_paste(text)
    if files.is_data(text):
        what, document, registry = files.read(text)
        return Pasted(what, document, registry)
    if _REGISTRY.fullmatch(text):
        return Pasted("the name of a registry entry", Document(), text)
    if addresses.is_address(text):
        return Pasted(*addresses.read(text))
    if _PACKAGE.fullmatch(text):
        text = f"npx -y {text}"
    return Pasted(*commands.read(text))


def _clean_paste(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise FileInvalid(
            NAME,
            "The text is longer than 256 KiB.",
            remedy="Paste only the part about the server, or import the file on the page “Import servers”.",
        )
    if any(sign < " " and sign not in "\t\r\n" for sign in text):
        raise FileInvalid(
            NAME,
            "The text contains a control character.",
            remedy="Copy the text again as plain text, and paste it.",
        )
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip().removeprefix("\ufeff").strip()
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1].strip()
    if text.count("\n") == 0:
        text = text.strip("`").strip()
    if not text:
        raise FileInvalid(
            NAME,
            "The text is empty.",
            remedy="Paste the line or the block from the server's README.",
        )
    return text
