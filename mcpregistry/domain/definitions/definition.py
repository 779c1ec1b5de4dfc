"""A definition: what of a tool or prompt a model can see, its hash, and what differs between two of
them."""

from __future__ import annotations

from typing import Any

from mcpregistry.domain.offer_kinds import PROMPT, RESOURCE, TEMPLATE, TOOL
from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts

# Every field of a tool that hosts may put before a model or go by (MCP 2026-07-28 and 2025-11-25,
# server/tools).
LISTED = (
    "name",
    "title",
    "description",
    "inputSchema",
    "outputSchema",
    "annotations",
    "icons",
    "execution",
    "_meta",
)
_ABOUT = ("name", "title", "description", "mimeType", "annotations", "icons", "_meta")
_LISTED = {
    TOOL: LISTED,
    PROMPT: ("name", "title", "description", "arguments", "icons", "_meta"),
    # Not the size, nor when it was last changed: these are of the content, which is nobody's to
    # approve.
    RESOURCE: ("uri", *_ABOUT),
    TEMPLATE: ("uriTemplate", *_ABOUT),
}
# A server's instructions belong to no tool and speak about each of them, so they count with every
# one.
INSTRUCTIONS = "instructions"
VISIBLE = ("uri", "uriTemplate", *LISTED[:3], "arguments", "mimeType", *LISTED[3:], INSTRUCTIONS)

# Kept with every tool of the server, so only so many characters; a hash stands for the rest.
MAX_INSTRUCTIONS = 16_000


def select_visible_fields(
    listed: dict[str, Any], instructions: str = "", kind: str = TOOL
) -> dict[str, Any]:
    """What a model sees of what is listed; absent and null fields are left out. Of a tool with its
    server's ``instructions``, which say how tools are used.
    """
    said = {INSTRUCTIONS: _cut_instructions(instructions)} if instructions and kind == TOOL else {}
    found = {key: listed[key] for key in _LISTED[kind] if listed.get(key) is not None} | said
    if kind in (RESOURCE, TEMPLATE) and isinstance(notes := found.get("annotations"), dict):
        found["annotations"] = {key: value for key, value in notes.items() if key != "lastModified"}
    return found


def hash_definition(listed: dict[str, Any], instructions: str = "", kind: str = TOOL) -> str:
    """SHA-256 (hex) over the visible part; the order of keys does not matter, everything else
    does."""
    return hash_stored_definition(
        encode_lossy_json(select_visible_fields(listed, instructions, kind)), kind
    )


def hash_stored_definition(text: str, kind: str = TOOL) -> str:
    """The same of the visible part as it is stored. A prompt's is never a tool's, whatever both
    say."""
    return hash_parts(text) if kind == TOOL else hash_parts(kind, text)


def strip_instructions(definition: dict[str, Any]) -> dict[str, Any]:
    """The definition as hosts are shown it: without the instructions, which are approved but never
    forwarded."""
    return {key: value for key, value in definition.items() if key != INSTRUCTIONS}


def list_changed_fields(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Names of the fields that differ between two definitions, in the order of ``VISIBLE``."""
    # As canonical text: to Python, true is 1 and 1 is 1.0, but a model reads them differently.
    return [key for key in VISIBLE if _read_text_field(old, key) != _read_text_field(new, key)]


def _read_text_field(definition: dict[str, Any], key: str) -> str:
    return encode_lossy_json(definition[key]) if definition.get(key) is not None else ""


def _cut_instructions(instructions: str) -> str:
    if len(instructions) <= MAX_INSTRUCTIONS:
        return instructions
    more = len(instructions) - MAX_INSTRUCTIONS
    return f"{instructions[:MAX_INSTRUCTIONS]}… ({more:,} more characters, SHA-256 {hash_parts(instructions)})"
