"""A tool's definition: what of it a model can see, its hash, and what differs between two of them."""

from __future__ import annotations

from typing import Any

from mcpregistry.domain.canonical import digest, stored

# Every field of a tool that hosts may put before a model (MCP 2026-07-28, server/tools).
VISIBLE = ("name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "_meta")


def visible(tool: dict[str, Any]) -> dict[str, Any]:
    """The model-visible part of a listed tool, absent and null fields left out."""
    return {key: tool[key] for key in VISIBLE if tool.get(key) is not None}


def definition_hash(tool: dict[str, Any]) -> str:
    """SHA-256 (hex) over the visible part; the order of keys does not matter, everything else does."""
    return digest(stored(visible(tool)))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Names of the visible fields that differ, in the order of ``VISIBLE``."""
    before, after = visible(old), visible(new)
    # As canonical text: to Python, true is 1 and 1 is 1.0, but a model reads them differently.
    return [key for key in VISIBLE if _text(before, key) != _text(after, key)]


def _text(tool: dict[str, Any], key: str) -> str:
    return stored(tool[key]) if key in tool else ""
