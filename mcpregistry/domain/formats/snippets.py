"""The entry that points a host at one of our endpoints, in that host's own format.

The token never stands in a snippet: over HTTP it is ``${SLIPSNISSE_TOKEN}``, which the host reads from its environment.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcpregistry.domain.formats.document import Document, JsonObject, ServerEntry
from mcpregistry.domain.formats.format import Format
from mcpregistry.domain.formats.mcpservers import CLAUDE_CODE, CLAUDE_DESKTOP, CURSOR
from mcpregistry.domain.formats.opencode import OPENCODE
from mcpregistry.domain.formats.vscode import VSCODE

CLIENTS: dict[str, Format] = {
    "claude-code": CLAUDE_CODE,
    "claude-desktop": CLAUDE_DESKTOP,
    "cursor": CURSOR,
    "vscode": VSCODE,
    "opencode": OPENCODE,
}
SERVER_KEY = "slipsnisse"


def over_stdio(client: str, launch: Sequence[str]) -> JsonObject:
    """The host's configuration for an endpoint over stdio; ``launch`` is the whole command line of ``runmcp``."""
    return _written(client, ServerEntry(SERVER_KEY, command=tuple(launch)))


def over_http(client: str, url: str) -> JsonObject:
    """The host's configuration for an endpoint at ``url``.

    Raises ``ValueError`` if its file knows no remote servers.
    """
    headers = {"Authorization": "Bearer ${SLIPSNISSE_TOKEN}"}
    return _written(client, ServerEntry(SERVER_KEY, transport="http", url=url, headers=headers))


def _written(client: str, server: ServerEntry) -> JsonObject:
    written = CLIENTS[client].write(Document((server,)))
    if written.refused:
        raise ValueError(written.refused[0].sentence)
    return written.data
