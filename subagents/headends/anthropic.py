"""Anthropic's API: models, messages, and the count of tokens. Source: Anthropic API reference;
tried with the official client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from subagents.domain.formats import AnswerFormat
from subagents.headends.chat_arguments import ChatMessage, invalid_request, read_messages, read_text
from subagents.headends.errors import HeadendError
from subagents.headends.openai import answer_text, read_answer_format
from subagents.headends.queued_request import RunReply, RunUsage
from subagents.llm.scripted.stream_pieces import event, pieces

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def model(name: str, created: int) -> dict[str, Any]:
    """Return one model of the list."""
    when = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": when}


def models(names: list[str], created: int) -> dict[str, Any]:
    """``GET /models``."""
    first, last = (names[0], names[-1]) if names else (None, None)
    return {
        "data": [model(name, created) for name in names],
        "has_more": False,
        "first_id": first,
        "last_id": last,
    }


def error_body(error: HeadendError, request: str = "") -> dict[str, Any]:
    """Return the body of an error."""
    kind = _TYPES.get(error.status, "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": error.message},
        "request_id": f"req_{request}",
    }


@dataclass(frozen=True)
class MessageRenderer:
    """The renderer of one message."""

    waiting_status: ClassVar[int] = 200
    model: str
    max_tokens: int  # tokens

    def render(self, call: str, reply: RunReply) -> dict[str, Any]:
        """``message``."""
        text = [{"type": "text", "text": answer_text(reply)}]
        return self._message(call, reply.usage) | {"content": text, "stop_reason": _stop(reply)}

    def render_start(self, call: str) -> bytes:
        """Return ``message_start``. Its usage is 0, because the usage is known at the end of the
        run."""
        start = self._message(call, RunUsage()) | {"content": [], "stop_reason": None}
        block = {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        }
        return event({"type": "message_start", "message": start}, "message_start") + event(
            block, "content_block_start"
        )

    def render_keepalive(self, call: str, status: str) -> bytes:
        """``ping``."""
        return event({"type": "ping"}, "ping")

    def render_end(self, call: str, reply: RunReply) -> Iterator[bytes]:
        """Yield the text, the stop reason and the usage."""
        for piece in pieces(answer_text(reply)):
            delta = {"type": "text_delta", "text": piece}
            yield event(
                {"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta"
            )
        yield event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        end = {"stop_reason": _stop(reply), "stop_sequence": None}
        yield event(
            {"type": "message_delta", "delta": end, "usage": usage(reply.usage)}, "message_delta"
        )
        yield event({"type": "message_stop"}, "message_stop")

    def render_stream_error(self, error: HeadendError, request: str) -> bytes:
        """Return an error event. The official client raises it."""
        return event(error_body(error, request), "error")

    def _message(self, call: str, used: RunUsage) -> dict[str, Any]:
        return {
            "id": f"msg_{call}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "stop_sequence": None,
            "usage": usage(used),
        }


def read_request(
    body: Mapping[str, Any],
) -> tuple[list[ChatMessage], AnswerFormat, MessageRenderer]:
    """Read a request for a message. Raises HeadendError (400)."""
    most = body.get("max_tokens")
    if type(most) is not int or most < 1:
        raise invalid_request(
            "max_tokens is required and must be a positive integer.", "max_tokens"
        )
    options = body.get("output_config")
    wanted = options.get("format") if isinstance(options, dict) else None
    return (
        read_chat(body),
        read_answer_format(wanted, "output_config.format"),
        MessageRenderer(str(body.get("model")), most),
    )


def read_chat(body: Mapping[str, Any]) -> list[ChatMessage]:
    """Read the messages. The system text comes first."""
    system = read_text(body.get("system"), "system")
    return ([ChatMessage("system", system)] if system.strip() else []) + read_messages(
        body.get("messages")
    )


def usage(used: RunUsage) -> dict[str, Any]:
    """Return the usage in the form of this API, which counts cached tokens separately."""
    return {
        "input_tokens": used.input - used.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached,
        "output_tokens": used.output,
    }


def _stop(reply: RunReply) -> str:
    return "max_tokens" if reply.finish == "length" else "end_turn"
