"""Anthropic's API: models, messages, and the count of tokens. Source: Anthropic API reference; tried with the official client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from subagents.headends.asking import Said, bad, messages, text_of
from subagents.headends.errors import Refused
from subagents.headends.openai import said
from subagents.headends.session import Reply, Usage
from subagents.llm.scripted.pieces import event, pieces

_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    409: "invalid_request_error", 413: "request_too_large", 422: "invalid_request_error", 429: "rate_limit_error",
    503: "overloaded_error",
}  # fmt: skip


def model(name: str, created: int) -> dict[str, Any]:
    """One model of the list."""
    when = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": when}


def models(names: list[str], created: int) -> dict[str, Any]:
    """``GET /models``."""
    first, last = (names[0], names[-1]) if names else (None, None)
    return {"data": [model(name, created) for name in names], "has_more": False, "first_id": first, "last_id": last}


def error_body(refused: Refused, request: str = "") -> dict[str, Any]:
    """Every error, whatever its status."""
    kind = _TYPES.get(refused.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": refused.message}, "request_id": f"req_{request}"}


@dataclass(frozen=True)
class Message:
    """The shape of one message."""

    model: str
    most: int  # tokens that the client wants at most

    def whole(self, call: str, reply: Reply) -> dict[str, Any]:
        """``message``."""
        text = [{"type": "text", "text": said(reply)}]
        return self._message(call, reply.usage) | {"content": text, "stop_reason": _stop(reply)}

    def opening(self, call: str) -> bytes:
        """``message_start``; how many tokens the run will read is known at its end."""
        start = self._message(call, Usage()) | {"content": [], "stop_reason": None}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return event({"type": "message_start", "message": start}, "message_start") + event(block, "content_block_start")

    def pulse(self, call: str, doing: str) -> bytes:
        """``ping``."""
        return event({"type": "ping"}, "ping")

    def closing(self, call: str, reply: Reply) -> Iterator[bytes]:
        """The text, the reason of its end, the usage."""
        for piece in pieces(said(reply)):
            delta = {"type": "text_delta", "text": piece}
            yield event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")
        yield event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        end = {"stop_reason": _stop(reply), "stop_sequence": None}
        yield event({"type": "message_delta", "delta": end, "usage": usage(reply.usage)}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def error(self, refused: Refused, request: str) -> dict[str, Any]:
        """As everywhere in this API."""
        return error_body(refused, request)

    def broken(self, refused: Refused, request: str) -> bytes:
        """The client raises it."""
        return event(error_body(refused, request), "error")

    def _message(self, call: str, used: Usage) -> dict[str, Any]:
        return {
            "id": f"msg_{call}", "type": "message", "role": "assistant", "model": self.model, "stop_sequence": None,
            "usage": usage(used),
        }  # fmt: skip


def read(body: Mapping[str, Any]) -> tuple[list[Said], Message]:
    """A request for a message. Raises Refused (400)."""
    most = body.get("max_tokens")
    if type(most) is not int or most < 1:
        raise bad("max_tokens: say how many tokens the answer may have at most.", "max_tokens")
    return asked(body), Message(str(body.get("model")), most)


def asked(body: Mapping[str, Any]) -> list[Said]:
    """The messages, the client's instructions first."""
    system = text_of(body.get("system"), "system")
    return ([Said("system", system)] if system.strip() else []) + messages(body.get("messages"))


def usage(used: Usage) -> dict[str, Any]:
    """Tokens as this API counts them: those from a cache beside the others."""
    return {
        "input_tokens": used.input - used.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached,
        "output_tokens": used.output,
    }


def _stop(reply: Reply) -> str:
    return "max_tokens" if reply.finish == "length" else "end_turn"
