"""Pasted blocks of configuration files: of any host we read, whole or in part, in JSON, YAML or
TOML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mcpregistry.domain import formats
from mcpregistry.domain.formats import text as texts
from mcpregistry.domain.formats import toml
from mcpregistry.domain.formats.document import Document, Json, JsonObject
from mcpregistry.domain.formats.hosts.claude import CLAUDE_PLUGIN
from mcpregistry.domain.formats.hosts.shapes import is_entry
from mcpregistry.domain.formats.pasted.common_entries import (
    NAME,
    make_refusal,
    name_from_address,
    name_from_command,
)

_FRAGMENT = re.compile(r'\s*"(?:[^"\\\n]|\\.)+"\s*:\s*\{', re.DOTALL)
_YAML = re.compile(r"[A-Za-z_][\w.-]*:\s*(?:\n|$)")
_REACHES = ("command", "url", "httpUrl", "serverUrl", "server_url")


def is_data(text: str) -> bool:
    """Whether it begins as a block of a file does."""
    starts = text.startswith(("{", "[{", "//", "/*", "- name:"))
    return starts or any(form.match(text) for form in (_FRAGMENT, _YAML)) or _is_toml(text)


def _is_toml(text: str) -> bool:
    """Whether it is TOML with a table. A single assignment may set a variable for a command."""
    return toml.is_toml(text) and (text.lstrip().startswith(("[", "#")) or "\n[" in text)


def read(text: str) -> tuple[str, Document, str]:
    """What it was taken for, its entries, and the entry of a registry that it names instead. Raises
    FileInvalid."""
    if _FRAGMENT.match(text):
        text = "{" + text.rstrip().rstrip(",") + "}"
    if text.startswith("- name:"):
        text = "mcpServers:\n" + text
    raw = text.encode("utf-8", "replace")
    data = texts.load(raw, NAME)
    if isinstance(data.get("name"), str) and ("packages" in data or "remotes" in data):
        return "the server.json of a registry entry", Document(), str(data["name"])
    what, document = _read_pasted_data(data, raw)
    if not document.servers and not document.refused:
        raise make_refusal(
            "The text contains no server.", "Paste the part with the command or the address."
        )
    return what, document, ""


def _read_pasted_data(data: JsonObject, raw: bytes) -> tuple[str, Document]:
    """One entry, or a file or a part of one as ``importconfig`` reads it."""
    if is_entry(data):
        name = _name_entry(data)
        entry = {key: value for key, value in data.items() if key != "name"}
        return "one entry of a host's file", CLAUDE_PLUGIN.read({name: entry}, NAME)
    found, document = formats.read(raw, NAME)
    return f"a configuration of {found.title}", replace(
        document, notes=found.spell_notes(document.notes)
    )


def _name_entry(entry: Mapping[str, Json]) -> str:
    """Of an entry that stands without its key."""
    if isinstance(entry.get("name"), str) and entry["name"].strip():
        return str(entry["name"])
    command = entry.get("command")
    args = entry.get("args")
    words = [command] if isinstance(command, str) else command
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        args = args if isinstance(args, list) else []
        return (
            name_from_command([*words, *(word for word in args if isinstance(word, str))])
            or "server"
        )
    return name_from_address(str(next((entry[key] for key in _REACHES if key in entry), "")))
