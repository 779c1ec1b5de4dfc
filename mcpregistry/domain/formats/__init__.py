"""Configuration files of other programs, in and out: recognise, read, write.

``read`` turns bytes into a ``Document``; ``write`` turns a document into a file of any format. Nothing here touches a
disk, a database or the environment. What a file says that cannot be used is a refused note, and whoever imports must
write nothing then; only a file that cannot be read at all raises ``FileInvalid``.
"""

from __future__ import annotations

from mcpregistry.domain.formats import text
from mcpregistry.domain.formats.ai_agent import AI_AGENT
from mcpregistry.domain.formats.dispatch import DISPATCH
from mcpregistry.domain.formats.document import Document, JsonObject, Written
from mcpregistry.domain.formats.format import Format
from mcpregistry.domain.formats.mcp_servers import MCP_SERVERS
from mcpregistry.domain.formats.mcpservers import CLAUDE_CODE, CLAUDE_DESKTOP, COPILOT, CURSOR, FAMILY, MCPSERVERS
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.formats.opencode import OPENCODE, OPENCODE2
from mcpregistry.domain.formats.other_hosts import ROOTS, servers_root, usual_file, with_own_root
from mcpregistry.domain.formats.secret_references import redact
from mcpregistry.domain.formats.slipsnisse import SLIPSNISSE, SLIPSNISSE_EXTENDED
from mcpregistry.domain.formats.vscode import VSCODE

# The order is the order of recognition: what is more special comes first.
FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        SLIPSNISSE, SLIPSNISSE_EXTENDED, MCP_SERVERS, OPENCODE2, OPENCODE, AI_AGENT,
        CLAUDE_DESKTOP, CURSOR, MCPSERVERS, CLAUDE_CODE, COPILOT, VSCODE, DISPATCH,
    )
}  # fmt: skip


def recognise(data: JsonObject, path: str) -> Format:
    """The format of a file by its root; ``path`` breaks ties. Raises ``FileInvalid`` for an unknown one.

    Codex, Zed and Amp have other roots: their files are read as those of the ``mcpServers`` family.
    """
    if any(isinstance(data.get(root), dict) for root in ROOTS):
        return MCPSERVERS
    for item in FORMATS.values():
        if item.recognise(data, path):
            return item
    raise FileInvalid(
        path, "The file is of no known format.", remedy=f"Name its format with --format: {', '.join(FORMATS)}."
    )


def read(raw: bytes, path: str, name: str = "") -> tuple[Format, Document]:
    """Format and content of a file; ``name`` settles the format, else it is recognised.

    Raises ``FileInvalid`` for what cannot be read at all; all else is said in the document's notes.
    """
    data = text.load(raw, path)
    found = FORMATS[name] if name else recognise(data, path)
    if found.family != FAMILY:
        return found, found.read(data, path)
    return found, with_own_root(found.read(usual_file(data), path), servers_root(data))


def write(document: Document, name: str, *, include_secrets: bool = False) -> Written:
    """The document as data of a format. Without ``include_secrets`` no secret value is in it."""
    if include_secrets:
        return FORMATS[name].write(document)
    plain, report = redact(document, FORMATS[name].file)
    written = FORMATS[name].write(plain)
    return Written(written.data, (*report.notes, *written.notes))
