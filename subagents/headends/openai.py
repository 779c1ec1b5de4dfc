"""OpenAI's API: models and chat completions. Source: OpenAI API reference, "Chat Completions";
tried with the official client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mcpregistry.domain.text.display import show_invisible_characters
from subagents.domain.formats import JSON, OWN_FORMAT, AnswerFormat
from subagents.headends.chat_arguments import ChatMessage, invalid_request, read_messages
from subagents.headends.errors import HeadendError
from subagents.headends.queued_request import RunReply, RunUsage
from subagents.llm.scripted.stream_pieces import event, pieces

OWNER = "slipsnisse"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    422: "run_failed",
    429: "rate_limit_error",
}


def model(name: str, created: int) -> dict[str, Any]:
    """Return one model of the list."""
    return {"id": name, "object": "model", "created": created, "owned_by": OWNER}


def models(names: list[str], created: int) -> dict[str, Any]:
    """``GET /models``."""
    return {"object": "list", "data": [model(name, created) for name in names]}


def error_body(error: HeadendError, request: str = "") -> dict[str, Any]:
    """Return the body of an error."""
    kind = _TYPES.get(error.status, "server_error")
    code = {"UNAUTHENTICATED": "invalid_api_key", "NOT_FOUND": "model_not_found"}.get(
        error.code, error.code.lower()
    )
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param or None,
            "code": code,
        }
    }


@dataclass(frozen=True)
class Completion:
    """The renderer of one chat completion."""

    waiting_status: ClassVar[int] = 200
    model: str
    with_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def render(self, call: str, reply: RunReply) -> dict[str, Any]:
        """``chat.completion``."""
        message = {"role": "assistant", "content": answer_text(reply), "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        return self._envelope(call, "chat.completion") | {
            "choices": [choice],
            "usage": usage(reply.usage),
        }

    def render_start(self, call: str) -> bytes:
        """Return the first chunk."""
        return self._chunk(call, {"role": "assistant", "content": ""})

    def render_keepalive(self, call: str, status: str) -> bytes:
        """Return a comment, which clients skip."""
        return comment(status)

    def render_end(self, call: str, reply: RunReply) -> Iterator[bytes]:
        """Yield the text, the finish reason and, if requested, the usage."""
        for piece in pieces(answer_text(reply)):
            yield self._chunk(call, {"content": piece})
        yield self._chunk(call, {}, _finish(reply))
        if self.with_usage:
            yield event(
                self._envelope(call, "chat.completion.chunk")
                | {"choices": [], "usage": usage(reply.usage)}
            )
        yield b"data: [DONE]\n\n"

    def render_stream_error(self, error: HeadendError, request: str) -> bytes:
        """Return an error event without ``[DONE]``. The official client raises it."""
        return event(error_body(error))

    def _envelope(self, call: str, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{call}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _chunk(self, call: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(self._envelope(call, "chat.completion.chunk") | {"choices": [choice]})


def read_request(body: Mapping[str, Any]) -> tuple[list[ChatMessage], AnswerFormat, Completion]:
    """Read a request for a chat completion. Raises HeadendError (400) for options that cannot be
    honoured."""
    if body.get("n") not in (None, 1):
        raise invalid_request("n must be 1: an expert tool returns one answer.", "n")
    modalities = body.get("modalities")
    if body.get("audio") or (isinstance(modalities, list) and "audio" in modalities):
        raise invalid_request(
            "modalities must be text: an expert tool answers in text.", "modalities"
        )
    options = body.get("stream_options")
    with_usage = isinstance(options, dict) and options.get("include_usage") is True
    renderer = Completion(str(body.get("model")), with_usage)
    return (
        read_messages(body.get("messages")),
        read_answer_format(body.get("response_format"), "response_format"),
        renderer,
    )


def read_answer_format(found: object, place: str) -> AnswerFormat:
    """Read ``response_format`` of a chat completion, or ``text.format`` of a response."""
    if not isinstance(found, dict) or found.get("type") in (None, "text"):
        return OWN_FORMAT
    if found["type"] == "json_object":
        return AnswerFormat(JSON, {"type": "object"})
    inner = found.get("json_schema", found)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if found["type"] != "json_schema" or not isinstance(schema, dict):
        raise invalid_request(
            f"{place} must be text, json_object, or json_schema with a schema.", place
        )
    return AnswerFormat(JSON, schema)


def answer_text(reply: RunReply) -> str:
    """Return the answer as text. If JSON was requested, it is only the JSON."""
    return reply.structured or reply.text


def usage(used: RunUsage) -> dict[str, Any]:
    """Return the usage in the form of chat completions."""
    return {
        "prompt_tokens": used.input,
        "completion_tokens": used.output,
        "total_tokens": used.input + used.output,
        "prompt_tokens_details": {"cached_tokens": used.cached},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning},
    }


def comment(text: str) -> bytes:
    """Return a comment of a stream. It is one line, whatever names it contains."""
    return f": {show_invisible_characters(text, 300)}\n\n".encode()


def _finish(reply: RunReply) -> str:
    return "length" if reply.finish == "length" else "stop"
