"""Between a file's ``ServerEntry`` and a ``Server`` row.

What the row has no field for is kept in ``Server.extra`` (sealed): columns that later features will
use, and what only the file's format knows, so that an export gives it back.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from mcpregistry.domain.formats.document import Oauth, Parked, ServerEntry
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.models import Server
from mcpregistry.models.server import Lifecycle

_DEFAULT_MS = {
    name: round(getattr(Server(), name) * 1000) for name in ("connect_timeout", "request_timeout")
}


def fill_row(server: Server, entry: ServerEntry, *, source: str, position: int) -> None:
    """Give an unsaved change of ``server`` everything that the entry says; silence leaves limits as
    they are."""
    server.name = entry.name or server.name
    server.transport = entry.transport
    server.command = list(entry.command)
    server.description = entry.description or server.description
    server.cwd = entry.cwd
    server.url = entry.url
    server.source = source
    server.env = dict(entry.env)
    server.headers = dict(entry.headers)
    if entry.connect_timeout_ms is not None:
        server.connect_timeout = entry.connect_timeout_ms / 1000
    if entry.request_timeout_ms is not None:
        server.request_timeout = entry.request_timeout_ms / 1000
    extra = _build_extra(server.extra, entry, position)
    if server.extra != extra:  # sealing is never the same twice, and equal values are no change
        server.extra = extra


def _build_extra(old: dict[str, Any], entry: ServerEntry, position: int) -> dict[str, Any]:
    times = [
        name
        for name in ("connect_timeout", "request_timeout")
        if getattr(entry, f"{name}_ms") is not None
    ]
    waiting = {
        "env_file": entry.env_file,
        "auto_approve": entry.auto_approve
        if isinstance(entry.auto_approve, bool)
        else list(entry.auto_approve),
        "tools_allowed": None if entry.tools_allowed is None else list(entry.tools_allowed),
        "oauth": _convert_oauth(entry.oauth),
    }
    families = {
        family: parked.to_json() | {"position": position} for family, parked in entry.parked.items()
    }
    kept = {name: old[name] for name in ("file", "in_file") if name in old}
    return {
        "columns": waiting,
        "times": times,
        "parked": {**old.get("parked", {}), **families},
    } | kept


def find_free_slug(key: str, taken: Container[str]) -> str:
    """The first of ``key``, ``key-2``, ``key-3`` that is free."""
    name = key
    number = 2
    while name in taken:
        name = f"{key[:59]}-{number}"
        number = number + 1
    return name


def find_source_file(server: Server) -> str:
    """The path of the file that has last made or changed it; empty when none has."""
    return str(server.extra.get("file", ""))


def _convert_oauth(oauth: Oauth | None) -> dict[str, Any] | None:
    if oauth is None:
        return None
    names = ("off", "client_id", "client_secret", "redirect_uri", "callback_port", "metadata_url")
    return {name: getattr(oauth, name) for name in names} | {"scopes": list(oauth.scopes)}


def build_server_entry(server: Server) -> ServerEntry:
    """The row as a file may say it. Limits that nobody changed and no file stated are left out."""
    extra = server.extra
    columns = extra.get("columns", {})
    approve = columns.get("auto_approve", False)
    allowed = columns.get("tools_allowed")
    oauth = columns.get("oauth")
    return ServerEntry(
        key=server.slug,
        name=server.name,
        description=server.description,
        transport=server.transport,  # type: ignore[arg-type]  # the choices are the literals
        command=tuple(server.command),
        env=server.env,
        env_file=columns.get("env_file", ""),
        cwd=server.cwd,
        url=server.url,
        headers=server.headers,
        enabled=server.lifecycle != Lifecycle.DISABLED,
        connect_timeout_ms=_to_milliseconds(server, "connect_timeout"),
        request_timeout_ms=_to_milliseconds(server, "request_timeout"),
        auto_approve=approve if isinstance(approve, bool) else tuple(approve),
        tools_allowed=None if allowed is None else tuple(allowed),
        oauth=Oauth(**{**oauth, "scopes": tuple(oauth["scopes"])}) if oauth else None,
        parked={family: Parked.from_json(item) for family, item in extra.get("parked", {}).items()},
    )


def _to_milliseconds(server: Server, name: str) -> int | None:
    ms = round(getattr(server, name) * 1000)
    stated = name in server.extra.get("times", ())
    return ms if ms and (stated or ms != _DEFAULT_MS[name]) else None


def order_servers(servers: Iterable[Server], family: str) -> list[Server]:
    """Servers as the last file of this family listed them, then the others by name."""

    def rank_server(server: Server) -> tuple[float, str]:
        return server.extra.get("parked", {}).get(family, {}).get(
            "position", float("inf")
        ), server.slug

    return sorted(servers, key=rank_server)


def redact_entry_for_diff(entry: ServerEntry) -> dict[str, Any]:
    """The entry for a diff on a screen: every column that is set, with literal secrets hidden."""
    columns = {
        name: value
        for name, value in entry.columns().items()
        if value not in ("", (), {}, None, False)
    }
    columns["enabled"] = entry.enabled
    for name in ("env", "headers"):
        if pairs := columns.get(name):
            columns[name] = {
                key: value if is_reference(value) else "(hidden)" for key, value in pairs.items()
            }
    if entry.oauth:
        columns["oauth"] = {
            key: value
            for key, value in (_convert_oauth(entry.oauth) or {}).items()
            if key != "client_secret"
        }
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in columns.items()
        if name != "key"
    }
