"""``.ai-agent.json``: providers with models, servers, and defaults.

Providers and defaults wait for the expert tools; they are kept as they stand. ``defaults.toolTimeout`` already holds:
it is the request timeout of every server of the file.
"""

from __future__ import annotations

from dataclasses import replace

from mcpregistry.domain.formats.document import Document, Json, JsonObject, ServerEntry, Written
from mcpregistry.domain.formats.entry_reader import MAX_TIMEOUT_MS, read_servers
from mcpregistry.domain.formats.entry_writer import compose, write_servers
from mcpregistry.domain.formats.format import Format, object_at, park_root, report_left_out
from mcpregistry.domain.formats.keys import ALL_BY_NAME, Keys
from mcpregistry.domain.formats.notes import Report, pointer

FILE = ".ai-agent.json"
ROOT = "mcpServers"
TOOL_TIMEOUT = "toolTimeout"
KEYS = Keys("ai-agent", ALL_BY_NAME, transport=("type",), says_stdio=True, enabled=("enabled", "disabled"))


def recognise(data: JsonObject, path: str) -> bool:
    return isinstance(data.get(ROOT), dict) and ("providers" in data or "defaults" in data)


def read(data: JsonObject, path: str) -> Document:
    report = Report(path)
    parked = park_root(data, ["providers", ROOT, "defaults"], report)
    providers, defaults = (object_at(data, key, report, required=False) for key in ("providers", "defaults"))
    for name in providers:
        report.add("kept", pointer("providers", name), "Kept for the expert tools, not yet served.")
    for name in defaults:
        sentence = (
            "The request timeout of every server."
            if name == TOOL_TIMEOUT
            else "Kept for the expert tools, not yet served."
        )
        report.add("kept", pointer("defaults", name), sentence)
    timeout = _tool_timeout(defaults, report)
    servers = read_servers(KEYS, object_at(data, ROOT, report, required=False), f"/{ROOT}", report)
    if timeout is not None:
        servers = tuple(replace(server, request_timeout_ms=timeout) for server in servers)
    return Document(
        servers, providers=providers, defaults=defaults, parked={KEYS.family: parked}, notes=tuple(report.notes)
    )


def _tool_timeout(defaults: JsonObject, report: Report) -> int | None:
    value: Json = defaults.get(TOOL_TIMEOUT)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TIMEOUT_MS:
        return value
    report.refuse(
        pointer("defaults", TOOL_TIMEOUT), "The time is not a whole number of milliseconds.", "Write 1 to 86400000."
    )
    return None


def write(document: Document) -> Written:
    report = Report(FILE)
    report_left_out(document, report, written=["providers", "defaults"])
    shared, servers = _shared_timeout(document, report)
    must: JsonObject = {"providers": dict(document.providers)} if document.providers else {}
    written = write_servers(KEYS, servers, f"/{ROOT}", report)
    must |= {ROOT: written} if written or KEYS.family not in document.parked else {}
    defaults = {**document.defaults, **({} if shared is None else {TOOL_TIMEOUT: shared})}
    must |= {"defaults": defaults} if defaults else {}
    optional: JsonObject = {"providers": {}, ROOT: {}, "defaults": {}}
    return Written(compose(document.parked_for(KEYS.family), must, optional), tuple(report.notes))


def _shared_timeout(document: Document, report: Report) -> tuple[int | None, list[ServerEntry]]:
    """The one tool timeout that the file can state, and the servers without it; others are reported."""
    times = [server.request_timeout_ms for server in document.servers]
    stated = document.defaults.get(TOOL_TIMEOUT)
    shared = times[0] if times and len(set(times)) == 1 else stated
    for server in document.servers:
        if server.request_timeout_ms != shared:
            sentence = "This format has one timeout for all servers; this server's own stays here only."
            report.add("parked", pointer(ROOT, server.key), sentence, column="request_timeout_ms")
    return shared, [replace(server, request_timeout_ms=None) for server in document.servers]


AI_AGENT = Format("ai-agent", ".ai-agent.json", FILE, KEYS.family, recognise, read, write)
