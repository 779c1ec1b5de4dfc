"""Pasted blocks of configuration files: of any host we read, whole or in part, in JSON, YAML or TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from mcpregistry.domain import formats
from mcpregistry.domain.formats import text as texts
from mcpregistry.domain.formats.document import Document, Json, JsonObject
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.formats.pasted.known import NAME, named_by_address, named_by_command, of_entries, refused
from mcpregistry.domain.formats.vscode import VSCODE

_TOML = re.compile(r"(?m)^\s*\[\s*\"?mcp_servers\"?\s*[.\]]")
_FRAGMENT = re.compile(r'\s*"(?:[^"\\\n]|\\.)+"\s*:\s*\{', re.DOTALL)
_YAML = re.compile(r"[A-Za-z_][\w.-]*:\s*(?:\n|$)")
_REACHES = ("command", "url", "httpUrl", "serverUrl", "server_url")
_SIGNING = ("http_headers", "env_http_headers", "bearer_token_env_var", "headers")
# Under what other hosts keep their servers.
_ROOTS = {
    "context_servers": "Zed",
    "mcp_servers": "Codex",
    "amp.mcpServers": "Amp",
    "mcpServers": "",
    "servers": "VS Code",
}


def is_data(text: str) -> bool:
    """Whether it begins as a block of a file does."""
    return (
        text.startswith(("{", "//", "/*"))
        or any(form.match(text) for form in (_FRAGMENT, _YAML))
        or bool(_TOML.search(text))
    )


def read(text: str) -> tuple[str, Document, str]:
    """What it was taken for, its entries, and the entry of a registry that it names instead. Raises FileInvalid."""
    if _TOML.search(text):
        return "a configuration of Codex", of_entries(_entries(_toml(text).get("mcp_servers", {}))), ""
    if _FRAGMENT.match(text):
        text = "{" + text.rstrip().rstrip(",") + "}"
    data = texts.load(text.encode("utf-8", "replace"), NAME)
    if isinstance(data.get("name"), str) and ("packages" in data or "remotes" in data):
        return "the server.json of a registry's entry", Document(), str(data["name"])
    what, document = _of(data)
    if not document.servers and not document.refused:
        raise refused("There is no server in it.", "Paste the part that names a command or an address.")
    return what, document, ""


def _toml(text: str) -> JsonObject:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at [^)]*\)", str(error))  # the rest may quote a value
        raise refused(f"It is no TOML {place[0] if place else ''}".rstrip() + ".", "Correct it there.") from None


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


def _usual(raw: Mapping[str, Any]) -> dict[str, Any]:
    """One entry with the spellings of Gemini, Windsurf, Codex and Zed replaced by the usual ones."""
    entry = {key: value for key, value in raw.items() if key != "name"}
    for theirs, kind in (("httpUrl", "http"), ("serverUrl", ""), ("server_url", "")):
        if theirs in entry and "url" not in entry:
            entry["url"] = entry.pop(theirs)
            entry |= {"type": kind} if kind else {}
    if isinstance(entry.get("command"), dict):  # Zed's, before 2025
        entry |= {"args": [], **entry["command"], "command": entry["command"].get("path")}
        entry.pop("path", None)
    return _signed(entry)


def _signed(entry: dict[str, Any]) -> dict[str, Any]:
    """With Codex's three ways to write headers as one; one of a wrong type stands for all, and is refused where entries are read."""
    theirs = [entry.get(name) or {} for name in ("http_headers", "env_http_headers", "headers")]
    rest = {key: value for key, value in entry.items() if key not in _SIGNING}
    if wrong := [each for each in theirs if not isinstance(each, dict)]:
        return rest | {"headers": wrong[0]}
    plain, variables, usual = theirs
    headers = plain | {name: f"${{{variable}}}" for name, variable in variables.items()}
    if variable := entry.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{variable}}}"
    return rest | ({"headers": headers | usual} if headers or "headers" in entry else {})
