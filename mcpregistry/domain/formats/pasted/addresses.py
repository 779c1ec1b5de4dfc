"""Pasted addresses: of a server, with header lines below it, or of a badge that installs one into a
host."""

from __future__ import annotations

import base64
import json
import re
from binascii import Error
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from mcpregistry.domain.formats.document import Document
from mcpregistry.domain.formats.pasted.common_entries import (
    make_refusal,
    name_from_address,
    read_common_entries,
)

_PASTE_THE_ENTRY = "Paste the entry that the README lists for the host's file."
_SCHEMES = ("http://", "https://", "ws://", "wss://")
_INSTALLS = ("cursor:", "vscode:", "vscode-insiders:", "windsurf:", "kiro:")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*:\s*(.+)")
# Pages about a server, not the server: where people look for its README.
_PAGES = {
    "github.com",
    "www.github.com",
    "gitlab.com",
    "www.npmjs.com",
    "npmjs.com",
    "pypi.org",
    "hub.docker.com",
    "smithery.ai",
    "glama.ai",
    "mcp.so",
}


def is_address(text: str) -> bool:
    """Whether the first line is one address and nothing else."""
    first = text.split("\n", 1)[0].strip()
    return first.lower().startswith((*_SCHEMES, *_INSTALLS)) and not re.search(r"\s", first)


def read(text: str) -> tuple[str, Document]:
    """What it was taken for, and the entry. Raises FileInvalid."""
    first, *rest = [line.strip() for line in text.split("\n") if line.strip()]
    if (installed := _read_install_link(first)) is not None:
        return "a link that installs a server in a host", installed
    if _is_page(first):
        raise make_refusal(
            "This is the address of a page about a server, not of the server itself.",
            "Open the page, and paste the line or the block with which its README adds the server to a host.",
        )
    found = [_HEADER.fullmatch(line) for line in rest]
    if not all(found):
        raise make_refusal(
            "The lines below the address are not headers.", "Write each header as Name: value."
        )
    entry: dict[str, Any] = {"url": first}
    if headers := {match[1]: match[2].strip() for match in found if match}:
        entry["headers"] = headers
    return "an address", read_common_entries({name_from_address(first): entry})


def _is_page(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return (parts.hostname or "") in _PAGES


def _read_install_link(url: str) -> Document | None:
    """The entry that a link of a host holds; None for any other address. Raises FileInvalid for a
    broken one."""
    if "mcp/install" not in url and "install-mcp" not in url:
        if url.lower().startswith(_INSTALLS):
            raise make_refusal("This link does not install a server.", _PASTE_THE_ENTRY)
        return None
    try:
        query = parse_qs(urlsplit(url).query)
        if "config" in query:
            entry = _decode_link_config(query["config"][0])
            name = query.get("name", [""])[0]
        else:
            entry = json.loads(unquote(url.partition("?")[2]))
            name = ""
        if not isinstance(entry, dict):
            raise ValueError
        name = name or str(entry.pop("name", ""))
        return read_common_entries({name or name_from_address(str(entry.get("url", ""))): entry})
    except (ValueError, Error, AttributeError, RecursionError):
        raise make_refusal("The link cannot be read.", _PASTE_THE_ENTRY) from None


def _decode_link_config(text: str) -> dict[str, Any]:
    """JSON, plain or in base64; some hosts put the command line into one text."""
    plain = (
        text if text.lstrip().startswith("{") else base64.b64decode(text.replace(" ", "+")).decode()
    )
    found: dict[str, Any] = json.loads(plain)
    if not isinstance(found, dict):
        raise ValueError
    command = found.get("command")
    if isinstance(command, str) and " " in command and "args" not in found:
        found["command"], *found["args"] = command.split()
    return found
