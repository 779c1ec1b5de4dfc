"""YAML files of assistants: Goose, Continue and LibreChat."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcpregistry.domain.formats.document import Document, JsonObject
from mcpregistry.domain.formats.hosts.draft import (
    DOLLAR,
    EntryDraft,
    EntryPlace,
    define_host_format,
    find_map_entries,
    list_usual_keys,
    note_other_settings,
    read_places,
)
from mcpregistry.domain.formats.hosts.shapes import find_value, list_entry_objects
from mcpregistry.domain.formats.notes import make_pointer

_GOOSE_KINDS = {
    "stdio",
    "sse",
    "streamable_http",
    "builtin",
    "platform",
    "frontend",
    "inline_python",
}


def _translate_goose(draft: EntryDraft) -> None:
    kind = draft.entry.get("type")
    if kind in ("builtin", "platform", "frontend", "inline_python"):
        draft.leave("This extension is part of Goose; it is not a server.")
        return
    draft.rename("cmd", "command")
    draft.rename("uri", "url")
    draft.rename("envs", "env")
    draft.time("timeout", "request", 1000)
    values = draft.pairs("env")
    for name in draft.names("env_keys"):
        values.setdefault(
            name, draft.ask(name, f"{name}, which Goose stores in its keyring", "env_keys")
        )
    if "url" in draft.entry:
        # The values of a remote extension are not an environment: its headers and its address name
        # them.
        draft.texts(lambda text: _fill_variables(text, values), "headers", "url")
        draft.entry.pop("env", None)
    elif values:
        draft.entry["env"] = values
    _translate_goose_names(draft)


def _translate_goose_names(draft: EntryDraft) -> None:
    draft.entry.pop("name", None)
    draft.rename("display_name", "title")
    if draft.entry.get("available_tools"):
        draft.rename("available_tools", "includeTools")
    for key in ("bundled", "description", "available_tools"):
        draft.entry.pop(key, None)


def _fill_variables(text: str, values: dict[str, object]) -> str:
    def one(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return str(values.get(name, f"${{{name}}}"))

    return DOLLAR.sub(one, text)


def _is_goose(data: JsonObject, path: str) -> bool:
    kinds = [entry.get("type") for entry in list_entry_objects(data, "extensions")]
    return any(kind in _GOOSE_KINDS for kind in kinds if isinstance(kind, str))


def _read_goose(data: JsonObject, path: str) -> Document:
    rest = note_other_settings(data, path, "Goose", "extensions")
    return read_places(
        "Goose",
        list_usual_keys("goose"),
        find_map_entries(data, "extensions"),
        _translate_goose,
        path=path,
        extra=rest,
    )


_CONTINUE = re.compile(r"\$\{\{\s*(?:secrets|inputs)\.([A-Za-z_][\w.-]*)\s*\}\}")


def _translate_continue(draft: EntryDraft) -> None:
    transport = draft.entry.pop("transport", None)
    if isinstance(transport, dict):  # config.json of 2024
        draft.entry |= transport
        draft.own |= {key: f"transport/{key}" for key in transport}
    elif transport is not None:
        draft.entry.setdefault("type", transport)
    options = draft.entry.pop("requestOptions", None)
    if isinstance(options, dict) and "headers" in options:
        draft.entry.setdefault("headers", options["headers"])
        draft.own["headers"] = "requestOptions/headers"
    if "apiKey" in draft.entry:
        draft.entry["headers"] = {
            "Authorization": f"Bearer {draft.entry.pop('apiKey')}"
        } | draft.pairs("headers")
    draft.texts(
        lambda text: _CONTINUE.sub(
            lambda match: draft.ask(match[1], f"{match[1]} of Continue"), text
        )
    )
    draft.time("connectionTimeout", "startup", 1)
    draft.entry.pop("name", None)


def _find_continue_places(data: JsonObject) -> Iterator[EntryPlace]:
    for path in (("mcpServers",), ("experimental", "modelContextProtocolServers")):
        found = find_value(data, *path)
        for index, raw in enumerate(found if isinstance(found, list) else ()):
            name = raw.get("name") if isinstance(raw, dict) else None
            yield EntryPlace(
                name if isinstance(name, str) and name else f"server-{index + 1}",
                make_pointer(*path, index),
                raw,
            )


def _is_continue(data: JsonObject, path: str) -> bool:
    return isinstance(data.get("mcpServers"), list) or isinstance(
        find_value(data, "experimental", "modelContextProtocolServers"), list
    )


def _read_continue(data: JsonObject, path: str) -> Document:
    rest = note_other_settings(
        data, path, "Continue", "name", "version", "schema", "mcpServers", "experimental"
    )
    return read_places(
        "Continue",
        list_usual_keys("continue"),
        _find_continue_places(data),
        _translate_continue,
        path=path,
        extra=rest,
    )


_LIBRECHAT_ROOTS = {
    "version",
    "endpoints",
    "interface",
    "mcpSettings",
    "registration",
    "fileStrategy",
    "cache",
}
_LIBRECHAT_KEYS = {
    "customUserVars",
    "initTimeout",
    "serverInstructions",
    "chatMenu",
    "requiresOAuth",
    "iconPath",
    "startup",
}
_BRACES = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
_OF_THE_CHAT = "A placeholder for the user of the chat is kept as text, because this site does not know that user."


def _translate_librechat(draft: EntryDraft) -> None:
    draft.time("timeout", "request", 1)
    draft.time("initTimeout", "startup", 1)
    asked = draft.entry.pop("customUserVars", None)
    names = asked if isinstance(asked, dict) else {}

    def one(match: re.Match[str]) -> str:
        if match[1] not in names:
            return match[0]
        title = find_value(names, match[1], "title")
        return draft.ask(match[1], title if isinstance(title, str) else match[1])

    draft.texts(lambda text: _BRACES.sub(one, text))
    if "{{LIBRECHAT_" in str([draft.entry.get(key) for key in ("env", "headers", "url")]):
        draft.report.add(
            "kept",
            draft.at,
            _OF_THE_CHAT,
            "Replace the placeholder with the value or with ${cred:NAME}.",
        )
    for key in ("description", "iconPath", "chatMenu", "startup", "serverInstructions"):
        draft.remark(key, "Only LibreChat uses this key; this site does not.")


def _is_librechat(data: JsonObject, path: str) -> bool:
    entries = list_entry_objects(data, "mcpServers")
    own = any(_LIBRECHAT_KEYS & entry.keys() for entry in entries)
    return own or (
        isinstance(data.get("mcpServers"), dict) and len(_LIBRECHAT_ROOTS & data.keys()) > 1
    )


def _read_librechat(data: JsonObject, path: str) -> Document:
    rest = note_other_settings(data, path, "LibreChat", "mcpServers", "version")
    return read_places(
        "LibreChat",
        list_usual_keys("librechat"),
        find_map_entries(data, "mcpServers"),
        _translate_librechat,
        path=path,
        extra=rest,
    )


GOOSE = define_host_format("goose", "Goose", ".config/goose/config.yaml", _is_goose, _read_goose)
CONTINUE = define_host_format(
    "continue", "Continue", ".continue/config.yaml", _is_continue, _read_continue
)
LIBRECHAT = define_host_format(
    "librechat", "LibreChat", "librechat.yaml", _is_librechat, _read_librechat
)
