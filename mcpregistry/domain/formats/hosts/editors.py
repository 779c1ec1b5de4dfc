"""Files of editors: Zed, Amp, Windsurf, and VS Code's settings, workspaces and dev containers."""

from __future__ import annotations

import re

from mcpregistry.domain.formats import vscode
from mcpregistry.domain.formats.document import Document, JsonObject
from mcpregistry.domain.formats.hosts.draft import (
    EntryDraft,
    define_host_format,
    find_map_entries,
    list_usual_keys,
    note_other_settings,
    read_places,
)
from mcpregistry.domain.formats.hosts.shapes import find_value, has_path_ending, list_entry_objects
from mcpregistry.domain.formats.notes import Note, make_pointer


def _translate_zed(draft: EntryDraft) -> None:
    command = draft.entry.get("command")
    if isinstance(command, dict):  # as Zed wrote it before 2025
        draft.entry |= {"args": [], **command, "command": command.get("path")}
        draft.entry.pop("path", None)
        draft.own |= {key: f"command/{key}" for key in ("args", "env")} | {
            "command": "command/path"
        }
    elif "command" not in draft.entry and "url" not in draft.entry:
        draft.leave(
            "An extension of Zed provides this server, so the file does not contain its command."
        )
    draft.entry.pop("source", None)


def _read_zed(data: JsonObject, path: str) -> Document:
    rest = note_other_settings(data, path, "Zed", "context_servers")
    return read_places(
        "Zed",
        list_usual_keys("zed"),
        find_map_entries(data, "context_servers"),
        _translate_zed,
        path=path,
        extra=rest,
    )


def _read_amp(data: JsonObject, path: str) -> Document:
    rest = note_other_settings(data, path, "Amp", "amp.mcpServers")
    return read_places(
        "Amp",
        list_usual_keys("amp"),
        find_map_entries(data, "amp.mcpServers"),
        lambda draft: None,
        path=path,
        extra=rest,
    )


_FILE = re.compile(r"\$\{file:([^}]+)\}")


def _translate_windsurf(draft: EntryDraft) -> None:
    for theirs in ("serverUrl", "server_url"):
        draft.rename(theirs, "url")
    draft.texts(
        lambda text: _FILE.sub(
            lambda match: draft.ask(match[1], f"Content of the file {match[1]}"), text
        )
    )
    draft.remark("disabledTools", "This key is not used: grants decide which tools are offered.")


def _is_windsurf(data: JsonObject, path: str) -> bool:
    entries = list_entry_objects(data, "mcpServers")
    own = any("serverUrl" in entry or "server_url" in entry for entry in entries)
    return own or (
        isinstance(data.get("mcpServers"), dict) and has_path_ending(path, "mcp_config.json")
    )


def _read_windsurf(data: JsonObject, path: str) -> Document:
    rest = note_other_settings(data, path, "Windsurf", "mcpServers")
    return read_places(
        "Windsurf",
        list_usual_keys("windsurf"),
        find_map_entries(data, "mcpServers"),
        _translate_windsurf,
        path=path,
        extra=rest,
    )


# Paths of the block with servers and inputs in files of VS Code other than mcp.json.
_BLOCKS = (
    ("mcp",),
    ("settings", "mcp"),
    ("customizations", "vscode", "mcp"),
    ("customizations", "vscode", "settings", "mcp"),
)


def _is_vscode_settings(data: JsonObject, path: str) -> bool:
    return bool(_find_server_blocks(data))


def _find_server_blocks(data: JsonObject) -> list[tuple[str, ...]]:
    return [
        place
        for place in _BLOCKS
        if _is_block(data, find_value(data, *place), nested=len(place) > 1)
    ]


def _is_block(data: JsonObject, block: object, *, nested: bool) -> bool:
    """A map under ``servers``. The entries of opencode, which has the same root, are ``local`` or
    ``remote``."""
    if not isinstance(block, dict) or not isinstance(block.get("servers"), dict):
        return False
    entries = list_entry_objects(block, "servers")
    if (
        nested
        or isinstance(block.get("inputs"), list)
        or any("." in key for key in data if not key.startswith("$"))
    ):
        return True
    is_opencode = any(
        entry.get("type") in ("local", "remote") or isinstance(entry.get("command"), list)
        for entry in entries
    )
    return not is_opencode and any("command" in entry or "url" in entry for entry in entries)


def _read_vscode_settings(data: JsonObject, path: str) -> Document:
    document = Document(
        notes=(
            Note("parked", path, "", "Only the servers are read. The other settings are ignored."),
        )
    )
    for place in _find_server_blocks(data):
        found = vscode.read_block(find_value(data, *place), path, make_pointer(*place))
        document = document.merge_document(found)
    return document


ZED = define_host_format(
    "zed",
    "Zed",
    ".zed/settings.json",
    lambda data, path: isinstance(data.get("context_servers"), dict),
    _read_zed,
)
AMP = define_host_format(
    "amp",
    "Amp",
    ".amp/settings.json",
    lambda data, path: isinstance(data.get("amp.mcpServers"), dict),
    _read_amp,
)
WINDSURF = define_host_format(
    "windsurf", "Windsurf", "mcp_config.json", _is_windsurf, _read_windsurf
)
VSCODE_SETTINGS = define_host_format(
    "vscode-settings",
    "VS Code (settings, workspace or dev container)",
    "settings.json",
    _is_vscode_settings,
    _read_vscode_settings,
)
