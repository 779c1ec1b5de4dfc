"""Converts the messages of a chat to the arguments of an expert tool.

An expert tool with one text argument gets the last message of the user, after the earlier messages
and the system text of the client. For its model all of this is data, below the prompt of the tool.
Other expert tools get their arguments as a JSON object in the last message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.errors import ArgumentsInvalid
from subagents.headends.errors import HeadendError

LONGEST = 200_000  # characters of all messages
# Characters of the client's system text. Longer ones belong to coding agents (Claude Code and Codex
# send 15,000 to 25,000 characters) and describe tools that an expert tool does not have.
LONGEST_INSTRUCTIONS = 4_000
HISTORY = "history"  # an argument with this name gets the earlier messages
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
# Tasks of Open WebUI, titles of LibreChat (two prompts), Continue, opencode and NextChat, and
# similar prompts.
_BACKGROUND = re.compile(
    r"\s*(?:### Task:|Provide a concise, 5-word-or-less title for the conversation|"
    r"Analyze this conversation and provide:\s+1\. The detected language|"
    r"Given the following\b[^\n]{0,40}\bplease reply with a title for the chat\b|"
    r"(?:Please )?(?:write|generate|create) a (?:title for this conversation:|four to five word title\b|"
    r"(?:short|concise|brief)\b[^\n]{0,80}\btitle\b))",
    re.IGNORECASE,
)
# how a message begins that is sent in place of an answer
WAITING = "A call of this run is waiting for approval:"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. ``role``: system, user, assistant or tool."""

    role: str
    text: str


def read_messages(found: object, *, place: str = "messages") -> list[ChatMessage]:
    """Read the messages of a request. Raises HeadendError (400), also for images, audio and
    files."""
    if not isinstance(found, list) or not found:
        raise invalid_request(f"{place} must be a list with at least one message.", place)
    return [_read_message(message, f"{place}[{at}]") for at, message in enumerate(found)]


def _read_message(message: object, place: str) -> ChatMessage:
    if not isinstance(message, dict):
        raise invalid_request(f"{place} must be an object.", place)
    role = {"developer": "system"}.get(str(message.get("role")), str(message.get("role")))
    if role not in ("system", "user", "assistant", "tool", "function"):
        raise invalid_request(
            f"{place} has the unknown role {str(message.get('role'))[:40]!r}. Use system, user or assistant.",
            place,
        )
    return ChatMessage(role, read_text(message.get("content"), place))


def read_text(content: object, place: str) -> str:
    """Read the content of a message, which is a text or a list of parts. Raises HeadendError
    (400)."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid_request(f"The content of {place} must be a text or a list of parts.", place)
    return "\n".join(filter(None, (_read_part(part, place) for part in content)))


def _read_part(part: object, place: str) -> str:
    kind = str(part.get("type")) if isinstance(part, dict) else None
    if isinstance(part, dict) and kind in _TEXTS and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, dict) and kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind in _SILENT:
        return ""
    raise HeadendError(
        400,
        "unsupported_content",
        f"{place} has a part of type {str(kind)[:40]!r}. Expert tools accept only text.",
        param=place,
    )


def build_arguments(chat: Sequence[ChatMessage], input_schema: Mapping[str, Any]) -> dict[str, Any]:
    """Build the arguments of an expert tool. Raises HeadendError (400, 413)."""
    places = [
        at for at, message in enumerate(chat) if message.role == "user" and message.text.strip()
    ]
    if not places:
        raise invalid_request(
            "messages must contain a message with the role user and with text.", "messages"
        )
    if sum(len(message.text) for message in chat) > LONGEST:
        raise HeadendError(
            413,
            "too_long",
            f"The messages must have at most {LONGEST:,} characters together. Send fewer messages.",
        )
    name = _find_text_argument(input_schema)
    history = HISTORY in (input_schema.get("properties") or {})
    if not name:
        return _read_object(chat[places[-1]].text, input_schema)
    asked = chat[places[-1]]
    before = _drop_notices(chat[: places[-1]], asked)
    before += [message for message in chat[places[-1] :] if message.role == "system"]
    if history:
        return {name: asked.text, HISTORY: _build_history(before, input_schema)}
    return {name: "\n\n".join([*_describe_context(before), asked.text])}


def _drop_notices(before: Sequence[ChatMessage], asked: ChatMessage) -> list[ChatMessage]:
    """Drop the same question if a message about an approval followed it.

    Otherwise a repeated question would have other arguments than the first one, and would not get
    the answer of its run.
    """
    kept = list(before)
    while len(kept) >= 2 and kept[-2] == asked and kept[-1].text.lstrip().startswith(WAITING):
        del kept[-2:]
    return kept


def _describe_context(before: Sequence[ChatMessage]) -> list[str]:
    """Return the system text and the earlier messages, with headings."""
    system = [
        message.text for message in before if message.role == "system" and message.text.strip()
    ]
    system = system if sum(map(len, system)) <= LONGEST_INSTRUCTIONS else []
    talk = [
        message
        for message in before
        if message.role in ("user", "assistant") and message.text.strip()
    ]
    parts = ["Instructions of the client program:", *system] if system else []
    if talk:
        parts += [
            "Earlier messages:",
            *(f"{message.role.capitalize()}: {message.text}" for message in talk),
        ]
    return [*parts, "Question:"] if parts else []


def _build_history(before: Iterable[ChatMessage], input_schema: Mapping[str, Any]) -> Any:
    """Return the earlier messages as the argument expects them: a list, or one text."""
    schema = input_schema["properties"][HISTORY]
    if isinstance(schema, dict) and schema.get("type") == "array":
        return [{"role": message.role, "content": message.text} for message in before]
    return "\n\n".join(f"{message.role.capitalize()}: {message.text}" for message in before)


def _find_text_argument(schema: Mapping[str, Any]) -> str:
    """Return the name of the only required text argument, or "" if the tool has another
    signature."""
    texts = [
        name
        for name, each in (schema.get("properties") or {}).items()
        if isinstance(each, dict) and each.get("type") == "string" and name != HISTORY
    ]
    required = [name for name in schema.get("required") or texts[:1] if name != HISTORY]
    return str(required[0]) if len(required) == 1 and required[0] in texts else ""


def _read_object(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        shown = json.dumps(schema, ensure_ascii=False)
        raise invalid_request(
            f"The last message must be a JSON object that matches this schema: {shown[:4_000]}",
            "messages",
        )
    return found


def find_text_argument(schema: Mapping[str, Any]) -> str:
    """Return the name of the argument for a question in plain text. Raises ArgumentsInvalid if
    there is none."""
    if name := _find_text_argument(schema):
        return name
    raise ArgumentsInvalid(
        "This expert tool cannot answer a plain question, because it does not have exactly one required text argument.",
        remedy="Send a JSON object with the arguments by POST.",
    )


def is_background_prompt(chat: Sequence[ChatMessage]) -> bool:
    """Return whether a chat client asks for a title, tags or follow-up questions."""
    last = next((message for message in reversed(chat) if message.role == "user"), None)
    return last is not None and _BACKGROUND.match(last.text) is not None


def invalid_request(message: str, param: str = "") -> HeadendError:
    """Return the error for an invalid request (400)."""
    return HeadendError(400, "invalid_request", message, param=param)
