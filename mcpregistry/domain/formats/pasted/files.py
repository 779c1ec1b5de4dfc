"""Pasted blocks of configuration files: of any host we read, whole or in part, in JSON, YAML or TOML."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcpregistry.domain import formats
from mcpregistry.domain.formats import other_hosts
from mcpregistry.domain.formats import text as texts
from mcpregistry.domain.formats.document import Document, Json, JsonObject
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.formats.pasted.known import NAME, named_by_address, named_by_command, of_entries, refused
from mcpregistry.domain.formats.vscode import VSCODE

_FRAGMENT = re.compile(r'\s*"(?:[^"\\\n]|\\.)+"\s*:\s*\{', re.DOTALL)
_YAML = re.compile(r"[A-Za-z_][\w.-]*:\s*(?:\n|$)")
_REACHES = ("command", "url", "httpUrl", "serverUrl", "server_url")
# Under what other hosts keep their servers.
_ROOTS = other_hosts.ROOTS | {"mcpServers": "", "servers": "VS Code"}


def is_data(text: str) -> bool:
    """Whether it begins as a block of a file does."""
    return (
        text.startswith(("{", "//", "/*"))
        or any(form.match(text) for form in (_FRAGMENT, _YAML))
        or other_hosts.is_toml(text)
    )


def read(text: str) -> tuple[str, Document, str]:
    """What it was taken for, its entries, and the entry of a registry that it names instead. Raises FileInvalid."""
    if other_hosts.is_toml(text):
        return (
            "a configuration of Codex",
            of_entries(_entries(other_hosts.load_toml(text, NAME).get("mcp_servers", {}))),
            "",
        )
    if _FRAGMENT.match(text):
        text = "{" + text.rstrip().rstrip(",") + "}"
    data = texts.load(text.encode("utf-8", "replace"), NAME)
    if isinstance(data.get("name"), str) and ("packages" in data or "remotes" in data):
        return "the server.json of a registry's entry", Document(), str(data["name"])
    what, document = _of(data)
    if not document.servers and not document.refused:
        raise refused("There is no server in it.", "Paste the part that names a command or an address.")
    return what, document, ""


def _of(data: JsonObject) -> tuple[str, Document]:
    """By its root: one entry, a map of entries, or the file of a host."""
    if any(isinstance(data.get(key), str | list) for key in _REACHES):
        return "one entry of a host's file", of_entries(_entries({_name_of(data): data}))
    for root, host in _ROOTS.items():
        if root == "servers" and not _is_map(data.get(root)):
            continue
        if isinstance(data.get(root), dict | list) and (root != "servers" or not _recognised(data)):
            entries = _entries(data[root])
            return _said(host), (
                VSCODE.read({**data, "servers": entries}, NAME) if host == "VS Code" else of_entries(entries)
            )
    if _is_map(data):
        return "entries of a host's file", of_entries(_entries(data))
    found = formats.recognise(data, NAME)
    return f"a file of {found.title}", found.read(data, NAME)


def _said(host: str) -> str:
    return f"a configuration of {host}" if host else "a configuration as most hosts have it"


def _recognised(data: JsonObject) -> bool:
    try:
        return formats.recognise(data, NAME) is not VSCODE
    except FileInvalid:
        return False


def _is_map(data: Json) -> bool:
    return isinstance(data, dict) and bool(data) and all(
        isinstance(entry, dict) and any(key in entry for key in _REACHES) for entry in data.values()
    )  # fmt: skip


def _name_of(entry: Mapping[str, Json]) -> str:
    """Of an entry that stands without its key."""
    if isinstance(entry.get("name"), str) and entry["name"].strip():
        return str(entry["name"])
    command, args = entry.get("command"), entry.get("args")
    words = [command] if isinstance(command, str) else command
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        args = args if isinstance(args, list) else []
        return named_by_command([*words, *(word for word in args if isinstance(word, str))]) or "server"
    return named_by_address(str(next((entry[key] for key in _REACHES if key in entry), "")))


def _entries(found: Json) -> dict[str, Json]:
    """Entries by name, each with the keys that most hosts have."""
    if isinstance(found, list):
        found = {_name_of(entry): entry for entry in found if isinstance(entry, dict)}
    if not isinstance(found, dict):
        return {}
    return {name: _usual(entry) if isinstance(entry, dict) else entry for name, entry in found.items()}


def _usual(entry: JsonObject) -> JsonObject:
    return other_hosts.usual_entry({key: value for key, value in entry.items() if key != "name"})
