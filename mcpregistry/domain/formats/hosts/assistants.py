"""YAML files of assistants: Goose, Continue and LibreChat."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcpregistry.domain.formats.document import Document, JsonObject
from mcpregistry.domain.formats.hosts.draft import (
    DOLLAR,
    Draft,
    Place,
    host,
    in_map,
    keys_of,
    not_servers,
    read_places,
)
from mcpregistry.domain.formats.hosts.shapes import at, entries_of
from mcpregistry.domain.formats.notes import pointer

_GOOSE_KINDS = {
    "stdio",
    "sse",
    "streamable_http",
    "builtin",
    "platform",
    "frontend",
    "inline_python",
}


def _goose(draft: Draft) -> None:
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
        draft.texts(lambda text: _filled(text, values), "headers", "url")
        draft.entry.pop("env", None)
    elif values:
        draft.entry["env"] = values
    _goose_names(draft)


def _goose_names(draft: Draft) -> None:
    draft.entry.pop("name", None)
    draft.rename("display_name", "title")
    if draft.entry.get("available_tools"):
        draft.rename("available_tools", "includeTools")
    for key in ("bundled", "description", "available_tools"):
        draft.entry.pop(key, None)


def _filled(text: str, values: dict[str, object]) -> str:
    def one(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return str(values.get(name, f"${{{name}}}"))

    return DOLLAR.sub(one, text)


def _is_goose(data: JsonObject, path: str) -> bool:
    kinds = [entry.get("type") for entry in entries_of(data, "extensions")]
    return any(kind in _GOOSE_KINDS for kind in kinds if isinstance(kind, str))


def _read_goose(data: JsonObject, path: str) -> Document:
    rest = not_servers(data, path, "Goose", "extensions")
    return read_places(
        "Goose", keys_of("goose"), in_map(data, "extensions"), _goose, path=path, extra=rest
    )


_CONTINUE = re.compile(r"\$\{\{\s*(?:secrets|inputs)\.([A-Za-z_][\w.-]*)\s*\}\}")


def _continue(draft: Draft) -> None:
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


def _continue_places(data: JsonObject) -> Iterator[Place]:
    for path in (("mcpServers",), ("experimental", "modelContextProtocolServers")):
        found = at(data, *path)
        for index, raw in enumerate(found if isinstance(found, list) else ()):
            name = raw.get("name") if isinstance(raw, dict) else None
            yield Place(
                name if isinstance(name, str) and name else f"server-{index + 1}",
                pointer(*path, index),
                raw,
            )


def _is_continue(data: JsonObject, path: str) -> bool:
    return isinstance(data.get("mcpServers"), list) or isinstance(
        at(data, "experimental", "modelContextProtocolServers"), list
    )


def _read_continue(data: JsonObject, path: str) -> Document:
    rest = not_servers(
        data, path, "Continue", "name", "version", "schema", "mcpServers", "experimental"
    )
    return read_places(
        "Continue", keys_of("continue"), _continue_places(data), _continue, path=path, extra=rest
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


def _librechat(draft: Draft) -> None:
    draft.time("timeout", "request", 1)
    draft.time("initTimeout", "startup", 1)
    asked = draft.entry.pop("customUserVars", None)
    names = asked if isinstance(asked, dict) else {}

    def one(match: re.Match[str]) -> str:
        if match[1] not in names:
            return match[0]
        title = at(names, match[1], "title")
        return draft.ask(match[1], title if isinstance(title, str) else match[1])

    draft.texts(lambda text: _BRACES.sub(one, text))
    if "{{LIBRECHAT_" in str([draft.entry.get(key) for key in ("env", "headers", "url")]):
        draft.report.add(
            "kept", draft.at, _OF_THE_CHAT, "Replace it with the value or with ${cred:NAME}."
        )
    for key in ("description", "iconPath", "chatMenu", "startup", "serverInstructions"):
        draft.remark(key, "Only LibreChat uses this key; this site does not.")


def _is_librechat(data: JsonObject, path: str) -> bool:
    entries = entries_of(data, "mcpServers")
    own = any(_LIBRECHAT_KEYS & entry.keys() for entry in entries)
    return own or (
        isinstance(data.get("mcpServers"), dict) and len(_LIBRECHAT_ROOTS & data.keys()) > 1
    )


def _read_librechat(data: JsonObject, path: str) -> Document:
    rest = not_servers(data, path, "LibreChat", "mcpServers", "version")
    return read_places(
        "LibreChat",
        keys_of("librechat"),
        in_map(data, "mcpServers"),
        _librechat,
        path=path,
        extra=rest,
    )


GOOSE = host("goose", "Goose", ".config/goose/config.yaml", _is_goose, _read_goose)
CONTINUE = host("continue", "Continue", ".continue/config.yaml", _is_continue, _read_continue)
LIBRECHAT = host("librechat", "LibreChat", "librechat.yaml", _is_librechat, _read_librechat)
