"""What servers offer besides tools, and how each kind is spelled: in MCP, in references and in records.

A prompt is offered, described, approved, granted, decided on and recorded as a tool is. So it is a row, a definition and a
call like a tool's, and this module is where the kinds differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOOL, PROMPT = "tool", "prompt"


@dataclass(frozen=True, slots=True)
class Kind:
    """``listed`` names the list in MCP (``prompts/list`` holds ``prompts``); ``call`` is the method that uses one."""

    name: str
    listed: str
    call: str

    @property
    def changed(self) -> str:
        """The notification that the list has changed."""
        return f"notifications/{self.listed}/list_changed"


KINDS: Mapping[str, Kind] = {
    TOOL: Kind(TOOL, "tools", "tools/call"),
    PROMPT: Kind(PROMPT, "prompts", "prompts/get"),
}
OTHERS = tuple(kind for kind in KINDS if kind != TOOL)
CHANGED = frozenset(kind.changed for kind in KINDS.values())


def spelled(kind: str, name: str) -> str:
    """The name with its kind, as records and references have it: ``prompt:review``. A tool's is its name alone, but for
    one that looks as if it had a kind, so that no server can name a tool like another's prompt. ``read`` undoes it.
    """
    if kind == TOOL and (":" not in name or name.partition(":")[0] not in KINDS):
        return name
    return f"{kind}:{name}"


def read(text: str) -> tuple[str, str]:
    """Kind and name of what ``spelled`` has made."""
    kind, colon, name = text.partition(":")
    return (kind, name) if colon and kind in KINDS else (TOOL, text)


def arguments_schema(kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON Schema that the arguments of a call must fit. Those of prompts are texts, and none but the listed ones."""
    if kind == TOOL:
        return data.get("inputSchema") or {}
    named = [argument for argument in data.get("arguments") or () if isinstance(argument, dict) and "name" in argument]
    return {
        "type": "object",
        "properties": {str(argument["name"]): {"type": "string"} for argument in named},
        "required": [str(argument["name"]) for argument in named if argument.get("required") is True],
        "additionalProperties": False,
    }
