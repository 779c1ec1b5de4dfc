"""A tool's definition: what of it a model can see, its hash, and what differs between two of them."""

from __future__ import annotations

from typing import Any

from mcpregistry.domain.text.canonical import digest, stored

# Every field of a tool that hosts may put before a model or go by (MCP 2026-07-28 and 2025-11-25, server/tools).
LISTED = ("name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "execution", "_meta")
# A server's instructions belong to no tool and speak about each of them, so they count with every one.
INSTRUCTIONS = "instructions"
VISIBLE = (*LISTED, INSTRUCTIONS)

# Kept with every tool of the server, so only so many characters; a hash stands for the rest.
MAX_INSTRUCTIONS = 16_000


def visible(tool: dict[str, Any], instructions: str = "") -> dict[str, Any]:
    """What a model sees of a listed tool, with its server's instructions; absent and null fields are left out."""
    said = {INSTRUCTIONS: _kept(instructions)} if instructions else {}
    return {key: tool[key] for key in LISTED if tool.get(key) is not None} | said


def definition_hash(tool: dict[str, Any], instructions: str = "") -> str:
    """SHA-256 (hex) over the visible part; the order of keys does not matter, everything else does."""
    return digest(stored(visible(tool, instructions)))


def listing(definition: dict[str, Any]) -> dict[str, Any]:
    """The definition as hosts are shown it: without the instructions, which are approved but never forwarded."""
    return {key: value for key, value in definition.items() if key != INSTRUCTIONS}


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Names of the fields that differ between two definitions, in the order of ``VISIBLE``."""
    # As canonical text: to Python, true is 1 and 1 is 1.0, but a model reads them differently.
    return [key for key in VISIBLE if _text(old, key) != _text(new, key)]


def _text(definition: dict[str, Any], key: str) -> str:
    return stored(definition[key]) if definition.get(key) is not None else ""


def _kept(instructions: str) -> str:
    if len(instructions) <= MAX_INSTRUCTIONS:
        return instructions
    more = len(instructions) - MAX_INSTRUCTIONS
    return f"{instructions[:MAX_INSTRUCTIONS]}… ({more:,} more characters, SHA-256 {digest(instructions)})"
