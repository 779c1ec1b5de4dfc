"""Where a project keeps the configuration of its MCP servers, relative to its directory. The first
one with servers counts."""

from __future__ import annotations

PROJECT_FILES = (
    ".dispatch/mcp.json",
    "opencode.json",
    ".mcp.json",
    ".cursor/mcp.json",
    ".vscode/mcp.json",
    ".gemini/settings.json",
    ".qwen/settings.json",
    ".codex/config.toml",
    ".ai-agent.json",
    "mcp-servers.json",
    "slipsnisse.yaml",
)
