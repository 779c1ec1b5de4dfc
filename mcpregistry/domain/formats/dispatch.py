"""``.dispatch/mcp.json``: a map of servers under ``servers``."""

from __future__ import annotations

from mcpregistry.domain.formats.document import Document, JsonObject, Written
from mcpregistry.domain.formats.entry_reader import read_servers
from mcpregistry.domain.formats.entry_writer import compose, write_servers
from mcpregistry.domain.formats.format import Format, park_root, read_object, report_left_out
from mcpregistry.domain.formats.keys import ALL_BY_NAME, FormatKeys
from mcpregistry.domain.formats.notes import FormatReport

FILE = ".dispatch/mcp.json"
ROOT = "servers"
KEYS = FormatKeys(
    "dispatch", ALL_BY_NAME, transport=("transport", "type"), enabled=("disabled", "enabled")
)


def recognise(data: JsonObject, path: str) -> bool:
    """A map under ``servers`` that is not VS Code's."""
    return isinstance(data.get(ROOT), dict)


def read(data: JsonObject, path: str) -> Document:
    """The file as a document."""
    report = FormatReport(path)
    parked = park_root(data, [ROOT], report)
    servers = read_servers(KEYS, read_object(data, ROOT, report), f"/{ROOT}", report)
    return Document(servers, parked={KEYS.family: parked}, notes=tuple(report.notes))


def write(document: Document) -> Written:
    """The document as such a file; what it has no place for is reported."""
    report = FormatReport(FILE)
    report_left_out(document, report)
    servers = write_servers(KEYS, document.servers, f"/{ROOT}", report)
    return Written(
        compose(document.get_parked(KEYS.family), {ROOT: servers}, {}), tuple(report.notes)
    )


DISPATCH = Format("dispatch", "Dispatch", FILE, KEYS.family, recognise, read, write)
