"""The ``mcpServers`` family: Claude Desktop, Claude Code, Cursor and Copilot.

They share the root and the entry; they differ in placeholders, sign-in keys, and in which entries
they accept. Any of them is read with all keys of the family; writing follows the host that was
asked for.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mcpregistry.domain.formats.document import Document, JsonObject, Written
from mcpregistry.domain.formats.entry_reader import read_servers
from mcpregistry.domain.formats.entry_writer import compose, write_servers
from mcpregistry.domain.formats.format import (
    Format,
    Recognise,
    park_root,
    read_object,
    report_left_out,
)
from mcpregistry.domain.formats.keys import (
    ALL_BY_NAME,
    NO_WEBSOCKET,
    ONLY_STDIO,
    FormatKeys,
    OauthKeys,
)
from mcpregistry.domain.formats.notes import FormatReport
from mcpregistry.domain.formats.placeholders import Dialect

FAMILY = "mcpservers"
ROOT = "mcpServers"

_CLAUDE_OAUTH = OauthKeys(
    "oauth",
    {
        "client_id": "clientId",
        "scopes": "scopes",
        "callback_port": "callbackPort",
        "metadata_url": "authServerMetadataUrl",
    },
    scopes_as_text=True,
)
_CURSOR_OAUTH = OauthKeys(
    "auth", {"client_id": "CLIENT_ID", "client_secret": "CLIENT_SECRET", "scopes": "scopes"}
)

_CLAUDE_CODE = FormatKeys(
    FAMILY,
    NO_WEBSOCKET,
    dialect=Dialect(),
    transport=("type", "transport"),
    env_file="envFile",
    cwd="cwd",
    enabled=("disabled", "enabled"),
    auto_approve=("autoApprove", "alwaysAllow"),
    tools="tools",
    oauth=_CLAUDE_OAUTH,
    unofficial=frozenset({"env_file", "cwd", "enabled", "auto_approve", "tools_allowed"}),
)
_CLAUDE_DESKTOP = replace(
    _CLAUDE_CODE, transports=ONLY_STDIO, dialect=Dialect(none=True), oauth=None
)
_CURSOR = replace(
    _CLAUDE_CODE,
    dialect=Dialect("env", defaults=False, folders=True),
    oauth=_CURSOR_OAUTH,
    unofficial=_CLAUDE_CODE.unofficial - {"env_file"},
)
_COPILOT = replace(_CLAUDE_CODE, unofficial=_CLAUDE_CODE.unofficial - {"tools_allowed"})


def recognise(data: JsonObject, path: str) -> bool:
    """A map under ``mcpServers``."""
    return isinstance(data.get(ROOT), dict)


def recognise_cursor(data: JsonObject, path: str) -> bool:
    """Cursor's file: by its path, or by an entry with ``auth`` or ``envFile``, which no other host
    has."""
    entries = data[ROOT].values() if recognise(data, path) else ()
    own = any(
        isinstance(entry, dict) and ("auth" in entry or "envFile" in entry) for entry in entries
    )
    return own or (recognise(data, path) and path.replace("\\", "/").endswith(".cursor/mcp.json"))


def recognise_desktop(data: JsonObject, path: str) -> bool:
    """Claude Desktop's file, by its name alone."""
    return recognise(data, path) and path.endswith("claude_desktop_config.json")


def read(data: JsonObject, path: str, *, keys: FormatKeys) -> Document:
    """The file as a document, read with the keys of the whole family."""
    report = FormatReport(path)
    parked = park_root(data, [ROOT], report)
    # Every host's file may come from another host of the family, so reading accepts what any of
    # them writes.
    servers = read_servers(
        replace(keys, transports=ALL_BY_NAME), read_object(data, ROOT, report), f"/{ROOT}", report
    )
    return Document(servers, parked={FAMILY: parked}, notes=tuple(report.notes))


def write(document: Document, *, keys: FormatKeys, file: str) -> Written:
    """The document as the file of one host of the family; what it has no place for is reported."""
    report = FormatReport(file)
    report_left_out(document, report)
    servers = write_servers(keys, document.servers, f"/{ROOT}", report)
    return Written(compose(document.get_parked(FAMILY), {ROOT: servers}, {}), tuple(report.notes))


def _define_format(
    name: str, title: str, file: str, keys: FormatKeys, found: Recognise = recognise
) -> Format:
    return Format(
        name,
        title,
        file,
        FAMILY,
        found,
        partial(read, keys=keys),
        partial(write, keys=keys, file=file),
    )


MCPSERVERS = _define_format("mcpservers", "mcpServers (any host)", ".mcp.json", _CLAUDE_CODE)
CLAUDE_CODE = _define_format("claude-code", "Claude Code", ".mcp.json", _CLAUDE_CODE)
CLAUDE_DESKTOP = _define_format(
    "claude-desktop",
    "Claude Desktop",
    "claude_desktop_config.json",
    _CLAUDE_DESKTOP,
    recognise_desktop,
)
CURSOR = _define_format("cursor", "Cursor", ".cursor/mcp.json", _CURSOR, recognise_cursor)
COPILOT = _define_format("copilot", "Copilot CLI", ".mcp.json", _COPILOT)
