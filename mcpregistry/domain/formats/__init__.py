"""Configuration files of other programs, in and out: recognise, read, write.

``read`` turns bytes into a ``Document``; ``write`` turns a document into a file of any format.
Nothing here touches a disk, a database or the environment. Every value that cannot be used gives a
refused note; only a file that cannot be read at all raises ``FileInvalid``.
"""

from __future__ import annotations

from mcpregistry.domain.formats import text
from mcpregistry.domain.formats.ai_agent import AI_AGENT
from mcpregistry.domain.formats.dispatch import DISPATCH
from mcpregistry.domain.formats.document import Document, Json, JsonObject, Written
from mcpregistry.domain.formats.format import Format
from mcpregistry.domain.formats.hosts import HOSTS
from mcpregistry.domain.formats.hosts.shapes import has_servers
from mcpregistry.domain.formats.mcp_servers import MCP_SERVERS
from mcpregistry.domain.formats.mcpservers import (
    CLAUDE_CODE,
    CLAUDE_DESKTOP,
    COPILOT,
    CURSOR,
    MCPSERVERS,
)
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.formats.opencode import OPENCODE, OPENCODE2
from mcpregistry.domain.formats.secret_references import redact
from mcpregistry.domain.formats.slipsnisse import SLIPSNISSE, SLIPSNISSE_EXTENDED
from mcpregistry.domain.formats.vscode import VSCODE

# What can be written as well as read.
FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        SLIPSNISSE,
        SLIPSNISSE_EXTENDED,
        MCP_SERVERS,
        OPENCODE2,
        OPENCODE,
        AI_AGENT,
        CLAUDE_DESKTOP,
        CURSOR,
        MCPSERVERS,
        CLAUDE_CODE,
        COPILOT,
        VSCODE,
        DISPATCH,
    )
}
# All that can be read.
READABLE: dict[str, Format] = FORMATS | {item.name: item for item in HOSTS}
_LAST = ("claude-plugin",)  # its servers stand at the root
_FIRST = ("slipsnisse", "slipsnisse-extended", "mcp-servers")
# The order of recognition: the more specific formats come first.
_ORDER = (
    *_FIRST,
    *(item.name for item in HOSTS if item.name not in _LAST),
    *(name for name in FORMATS if name not in _FIRST),
    *_LAST,
)
_ROOTS = "mcpServers, servers, mcp, mcp_servers, context_servers, amp.mcpServers, extensions, projects or mcps"


def recognise(data: JsonObject, path: str) -> Format:
    """The format of a file by its root and its entries; ``path`` breaks ties. Raises
    ``FileInvalid`` for an unknown one."""
    if _is_vscode(data, path):
        return VSCODE
    for name in _ORDER:
        if READABLE[name].recognise(data, path):
            return READABLE[name]
    raise FileInvalid(
        path,
        f"The format of the file is not known: {_describe_root(data)}.",
        remedy=f"Put the servers under one of the keys {_ROOTS}. Or state the format (the field “Format”, the parameter `format` or the option --format): {', '.join(READABLE)}.",
    )


def _is_vscode(data: JsonObject, path: str) -> bool:
    """Whether it is VS Code's file that also has a root for other hosts."""
    return has_servers(data.get("servers")) and VSCODE.recognise(data, path)


def _describe_root(data: JsonObject) -> str:
    if not data:
        return "it is empty"
    kinds = [f"{key[:40]} ({_name_value_type(value)})" for key, value in [*data.items()][:8]]
    return f"its root contains {', '.join(kinds)}{', …' if len(data) > 8 else ''}"


def _name_value_type(value: Json) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def read(raw: bytes, path: str, name: str = "") -> tuple[Format, Document]:
    """Format and content of a file; ``name`` settles the format, else it is recognised.

    Raises ``FileInvalid`` for what cannot be read at all; all else is said in the document's notes.
    """
    data = text.load(raw, path)
    hint = (
        f"{path}.toml" if text.is_toml(raw, path) and not path.lower().endswith(".toml") else path
    )
    found = READABLE[name] if name else recognise(data, hint)
    return found, found.read(data, path)


def write(document: Document, name: str, *, include_secrets: bool = False) -> Written:
    """The document as data of a format. Without ``include_secrets`` no secret value is in it."""
    if include_secrets:
        return FORMATS[name].write(document)
    plain, report = redact(document, FORMATS[name].file)
    written = FORMATS[name].write(plain)
    return Written(written.data, (*report.notes, *written.notes))
