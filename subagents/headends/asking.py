"""From the messages of a chat to the arguments of an expert tool.

A tool with one text gets the last thing that the user said, preceded by what was said before and by the client's own instructions:
both are data to its model, below the tool's own prompt. Any other tool gets its arguments as one JSON object in the last message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.errors import ArgumentsInvalid
from subagents.headends.errors import Refused

LONGEST = 200_000  # characters of all that is asked
# Characters of a client's own instructions. People's wishes are shorter; longer ones are those of coding agents (Claude Code, Codex: 15,000
# to 25,000), which describe tools that an expert tool does not have.
LONGEST_INSTRUCTIONS = 4_000
HISTORY = "history"  # an argument of this name gets the earlier messages
_TEXTS = {"text", "input_text", "output_text"}
_SILENT = {
    "thinking",
    "redacted_thinking",
    "reasoning",
    "tool_use",
    "tool_result",
    "function_call",
    "function_call_output",
}
# Open WebUI's tasks; LibreChat's titles; the same of clients that copied them.
_BACKGROUND = re.compile(
    r"\s*(?:### Task:|Provide a concise, 5-word-or-less title for the conversation|"
    r"(?:Please )?(?:write|generate|create) a (?:short|concise|brief)\b[^\n]{0,80}\btitle\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Said:
    """One message: system, user or assistant, and its text."""

    role: str
    text: str


def messages(found: object, *, place: str = "messages") -> list[Said]:
    """The messages of a request. Raises Refused (400) for what has no text: pictures, sounds, files."""
    if not isinstance(found, list) or not found:
        raise bad(f"{place} must be a list with at least one message.", place)
    return [_said(message, f"{place}[{at}]") for at, message in enumerate(found)]


def _said(message: object, place: str) -> Said:
    if not isinstance(message, dict):
        raise bad(f"{place} is not an object.", place)
    role = {"developer": "system"}.get(str(message.get("role")), str(message.get("role")))
    if role not in ("system", "user", "assistant", "tool", "function"):
        raise bad(f"{place} has the role {str(message.get('role'))[:40]!r}.", place)
    return Said(role, text_of(message.get("content"), place))


def text_of(content: object, place: str) -> str:
    """A message's content, a text or parts. Raises Refused (400) for parts that no text can be made of."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise bad(f"The content of {place} is neither a text nor a list of parts.", place)
    return "\n".join(filter(None, (_part(part, place) for part in content)))


def _part(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind in _TEXTS and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in _SILENT:
        return ""
    raise Refused(
        400, "unsupported_content", f"{place} has a part of type {str(kind)[:40]!r}: an expert tool is asked in text alone.",
        param=place,
    )  # fmt: skip


def arguments_of(said: Sequence[Said], input_schema: Mapping[str, Any]) -> dict[str, Any]:
    """The expert tool's arguments. Raises Refused (400), which gives the schema where an object is needed."""
    asked = [message for message in said if message.role == "user" and message.text.strip()]
    if not asked:
        raise bad("There is no message of the user to answer.", "messages")
    if sum(len(message.text) for message in said) > LONGEST:
        raise Refused(413, "too_long", f"The messages have more than {LONGEST:,} characters. Send fewer of them.")
    name, history = _text_argument(input_schema), HISTORY in (input_schema.get("properties") or {})
    if not name:
        return _object(asked[-1].text, input_schema)
    before = said[: said.index(asked[-1])]
    if history:
        return {name: asked[-1].text, HISTORY: _history(before, input_schema)}
    return {name: "\n\n".join([*_told(before), asked[-1].text])}


def _told(before: Sequence[Said]) -> list[str]:
    """What was said before the question, under headings."""
    system = [message.text for message in before if message.role == "system" and message.text.strip()]
    system = system if sum(map(len, system)) <= LONGEST_INSTRUCTIONS else []
    talk = [message for message in before if message.role in ("user", "assistant") and message.text.strip()]
    parts = ["The client program says about this conversation:", *system] if system else []
    if talk:
        parts += ["Said before:", *(f"{message.role.capitalize()}: {message.text}" for message in talk)]
    return [*parts, "The question:"] if parts else []


def _history(before: Iterable[Said], input_schema: Mapping[str, Any]) -> Any:
    """As the argument's own schema has it: a list of messages, or one text."""
    schema = input_schema["properties"][HISTORY]
    if isinstance(schema, dict) and schema.get("type") == "array":
        return [{"role": message.role, "content": message.text} for message in before]
    return "\n\n".join(f"{message.role.capitalize()}: {message.text}" for message in before)


def _text_argument(schema: Mapping[str, Any]) -> str:
    """The one argument that takes a text; "" where there are others that must be said, or none."""
    texts = [
        name
        for name, each in (schema.get("properties") or {}).items()
        if isinstance(each, dict) and each.get("type") == "string" and name != HISTORY
    ]
    required = [name for name in schema.get("required") or texts[:1] if name != HISTORY]
    return str(required[0]) if len(required) == 1 and required[0] in texts else ""


def _object(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        shown = json.dumps(schema, ensure_ascii=False)
        raise bad(
            f"This model takes a JSON object as the last message. It must fit this schema: {shown[:4_000]}", "messages"
        )
    return found


def text_argument(schema: Mapping[str, Any]) -> str:
    """The argument that takes a question in plain text. Raises ArgumentsInvalid where there is no such one."""
    if name := _text_argument(schema):
        return name
    raise ArgumentsInvalid(
        "This expert tool takes more than one text.", remedy="Send a JSON object with its arguments by POST."
    )


def is_background(said: Sequence[Said]) -> bool:
    """Whether a chat client asks by itself: for a title, tags, or the next questions."""
    last = next((message for message in reversed(said) if message.role == "user"), None)
    return last is not None and _BACKGROUND.match(last.text) is not None


def bad(message: str, param: str = "") -> Refused:
    """A request that no such API would take."""
    return Refused(400, "invalid_request", message, param=param)
