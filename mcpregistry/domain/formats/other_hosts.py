"""Files of hosts with names of their own for the usual things (Codex, Gemini CLI, Windsurf, Zed, Amp), as ``mcpServers`` has them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, time
from typing import Any

from mcpregistry.domain.formats.document import Document, Json, JsonObject
from mcpregistry.domain.formats.notes import FileInvalid, pointer

USUAL = "mcpServers"
ROOTS = {
    "context_servers": "Zed",
    "mcp_servers": "Codex",
    "amp.mcpServers": "Amp",
}  # under what they keep their servers
_CODEX = re.compile(r"(?m)^\s*\[\s*\"?mcp_servers\"?\s*[.\]]")
_ADDRESSES = (("httpUrl", "http"), ("serverUrl", ""), ("server_url", ""))
_SIGNING = ("http_headers", "env_http_headers", "bearer_token_env_var", "headers")
_OWN = {*(name for name, _ in _ADDRESSES), *_SIGNING[:3]}


def is_toml(text: str) -> bool:
    """Whether it holds a table of servers as Codex writes them."""
    return bool(_CODEX.search(text))


def load_toml(text: str, file: str) -> JsonObject:
    """The root of a TOML file; its dates and times become text. Raises FileInvalid, which quotes no value."""
    try:
        return {key: _plain(value) for key, value in tomllib.loads(text).items()}
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at [^)]*\)", str(error))  # the rest may quote a value
        sentence = f"This is not valid TOML {place[0] if place else ''}".rstrip() + "."
        raise FileInvalid(file, sentence, remedy="Correct it there.") from None
    except RecursionError:
        raise FileInvalid(file, "The file is nested too deeply.", remedy="Make it flatter.") from None


def _plain(value: Any) -> Json:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, date | time) else value


def servers_root(data: JsonObject) -> str:
    """The key under which the file keeps its servers; empty if there is none of the known ones."""
    return next((root for root in (USUAL, *ROOTS) if isinstance(data.get(root), dict)), "")


def with_own_root(document: Document, root: str) -> Document:
    """The document, whose notes name the places of the file itself and not those of its usual form."""
    if root in ("", USUAL):
        return document
    usual, own = pointer(USUAL), pointer(root)

    def moved(at: str) -> str:
        return own + at.removeprefix(usual) if at == usual or at.startswith(f"{usual}/") else at

    return replace(document, notes=tuple(replace(note, pointer=moved(note.pointer)) for note in document.notes))


def usual_file(data: JsonObject) -> JsonObject:
    """The file with its servers under ``mcpServers`` and with the usual keys. A file that has them so stays as it is."""
    root = servers_root(data)
    if not root or (root == USUAL and not any(map(_is_odd, data[root].values()))):
        return data
    servers = {name: usual_entry(each) if _is_odd(each) else each for name, each in data[root].items()}
    return {USUAL if key == root else key: servers if key == root else value for key, value in data.items()}


def _is_odd(entry: Json) -> bool:
    return isinstance(entry, dict) and (bool(_OWN & entry.keys()) or isinstance(entry.get("command"), dict))


def usual_entry(raw: Mapping[str, Any]) -> dict[str, Any]:
    """One entry with the spellings of Gemini, Windsurf, Codex and Zed replaced by the usual ones."""
    entry = dict(raw)
    for theirs, kind in _ADDRESSES:
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
