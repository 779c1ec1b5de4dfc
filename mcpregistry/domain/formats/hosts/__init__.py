"""Files of hosts that are read, not written: each is translated entry by entry into the keys that
most hosts have.

A host is recognised by the shape of its file: the place of the servers, and the keys of an entry.
The placeholders of that host (``$VAR``, ``{{VAR}}``, names of variables) become ours; placeholders
of other hosts stay text.
"""

from __future__ import annotations

from mcpregistry.domain.formats.format import Format
from mcpregistry.domain.formats.hosts.assistants import CONTINUE, GOOSE, LIBRECHAT
from mcpregistry.domain.formats.hosts.claude import CLAUDE_PLUGIN, CLAUDE_USER
from mcpregistry.domain.formats.hosts.editors import AMP, VSCODE_SETTINGS, WINDSURF, ZED
from mcpregistry.domain.formats.hosts.terminals import CODEX, CRUSH, GEMINI, HERMES

HOSTS: tuple[Format, ...] = (
    ZED,
    CODEX,
    HERMES,
    AMP,
    GOOSE,
    CONTINUE,
    VSCODE_SETTINGS,
    CLAUDE_USER,
    GEMINI,
    LIBRECHAT,
    WINDSURF,
    CLAUDE_PLUGIN,
    CRUSH,
)
