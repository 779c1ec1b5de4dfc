"""``mcp-servers.json``: a list of servers and three switches.

``autoApprove`` and the keys for remote servers are our extension; other readers ignore them.
"""

from __future__ import annotations

from mcpregistry.domain.formats.document import Document, Json, JsonObject, ServerEntry, Written
from mcpregistry.domain.formats.entry_reader import read_entries
from mcpregistry.domain.formats.entry_writer import compose, restore_file_key, write_entry
from mcpregistry.domain.formats.format import Format, park_root, report_left_out
from mcpregistry.domain.formats.keys import ALL_BY_NAME, FormatKeys
from mcpregistry.domain.formats.notes import FormatReport, make_pointer

FILE = "mcp-servers.json"
ROOT = "servers"
FLAGS = ("subAgentEnabled", "autoDiscoveryEnabled", "toolApprovalRequired")
REQUIRED = ("id", "name", "command", "args", "enabled")
KEYS = FormatKeys(
    "mcp-servers",
    ALL_BY_NAME,
    transport=("transport",),
    name="name",
    args_required=True,
    enabled=("enabled",),
    enabled_required=True,
    auto_approve=("autoApprove",),
)


def recognise(data: JsonObject, path: str) -> bool:
    """A list under ``servers``."""
    return isinstance(data.get(ROOT), list)


def read(data: JsonObject, path: str) -> Document:
    """The file as a document."""
    report = FormatReport(path)
    parked = park_root(data, [ROOT, *FLAGS], report)
    flags = {name: data[name] for name in FLAGS if name in data}
    for name, value in flags.items():
        if not isinstance(value, bool):
            report.refuse(
                make_pointer(name), "The value must be true or false.", "Write true or false."
            )
    servers = _read_server_list(data.get(ROOT), report)
    return Document(servers, flags=flags, parked={KEYS.family: parked}, notes=tuple(report.notes))


def _read_server_list(entries: Json, report: FormatReport) -> tuple[ServerEntry, ...]:
    if not isinstance(entries, list):
        report.refuse(make_pointer(ROOT), "The value is not a list.", "Write it as [ … ].")
        return ()
    named = []
    for index, raw in enumerate(entries):
        at = make_pointer(ROOT, index)
        if not isinstance(raw, dict) or not isinstance(raw.get("id"), str):
            report.refuse(at, "The server needs an id.", 'Add an "id" whose value is text.')
            continue
        for key in _list_missing_keys(raw):
            report.refuse(at, f"The server needs the key {key}.", f'Add "{key}".')
        named.append((raw["id"], {key: value for key, value in raw.items() if key != "id"}, at))
    return read_entries(KEYS, named, report)


def _list_missing_keys(raw: JsonObject) -> list[str]:
    """A server reached by URL, which is our extension, needs no command and no arguments."""
    return [
        key
        for key in REQUIRED
        if key not in raw and not (key in ("command", "args") and "url" in raw)
    ]


def write(document: Document) -> Written:
    """The document as such a file; what it has no place for is reported."""
    report = FormatReport(FILE)
    report_left_out(document, report, written=["flags"])
    entries: list[JsonObject] = []
    for server in document.servers:
        raw = write_entry(KEYS, server, make_pointer(ROOT, len(entries)), report)
        if raw is not None:
            entries.append({"id": restore_file_key(server, KEYS.family), **raw})
    must = {ROOT: entries, **document.flags}
    return Written(compose(document.get_parked(KEYS.family), must, {}), tuple(report.notes))


MCP_SERVERS = Format("mcp-servers", "mcp-servers.json", FILE, KEYS.family, recognise, read, write)
