"""OpenAI's API: models and chat completions. Source: OpenAI API reference, "Chat Completions"; tried with the official client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from subagents.domain.formats import ANY, JSON, Wanted
from subagents.headends.asking import Said, bad, messages
from subagents.headends.errors import Refused
from subagents.headends.session import Reply, Usage
from subagents.llm.scripted.pieces import event, pieces

OWNER = "slipsnisse"
_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "invalid_request_error",
    409: "invalid_request_error", 413: "invalid_request_error", 422: "run_failed", 429: "rate_limit_error",
}  # fmt: skip


def model(name: str, created: int) -> dict[str, Any]:
    """One model of the list."""
    return {"id": name, "object": "model", "created": created, "owned_by": OWNER}


def models(names: list[str], created: int) -> dict[str, Any]:
    """``GET /models``."""
    return {"object": "list", "data": [model(name, created) for name in names]}


def error_body(refused: Refused, request: str = "") -> dict[str, Any]:
    """Every error, whatever its status."""
    kind = _TYPES.get(refused.status, "server_error")
    code = {401: "invalid_api_key", 404: "model_not_found"}.get(refused.status, refused.code.lower())
    return {"error": {"message": refused.message, "type": kind, "param": refused.param or None, "code": code}}


@dataclass(frozen=True)
class Completion:
    """The shape of one chat completion."""

    model: str
    with_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, call: str, reply: Reply) -> dict[str, Any]:
        """``chat.completion``."""
        message = {"role": "assistant", "content": said(reply), "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        return self._envelope(call, "chat.completion") | {"choices": [choice], "usage": usage(reply.usage)}

    def opening(self, call: str) -> bytes:
        """The first chunk."""
        return self._chunk(call, {"role": "assistant", "content": ""})

    def pulse(self, call: str, doing: str) -> bytes:
        """A comment, which clients skip."""
        return f": {doing}\n\n".encode()

    def closing(self, call: str, reply: Reply) -> Iterator[bytes]:
        """The text in chunks, the reason of its end, the usage where it was asked for."""
        for piece in pieces(said(reply)):
            yield self._chunk(call, {"content": piece})
        yield self._chunk(call, {}, _finish(reply))
        if self.with_usage:
            yield event(self._envelope(call, "chat.completion.chunk") | {"choices": [], "usage": usage(reply.usage)})
        yield b"data: [DONE]\n\n"

    def error(self, refused: Refused, request: str) -> dict[str, Any]:
        """As everywhere in this API."""
        return error_body(refused)

    def broken(self, refused: Refused, request: str) -> bytes:
        """Without ``[DONE]``: the client raises it."""
        return event(error_body(refused))

    def _envelope(self, call: str, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{call}", "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, call: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(self._envelope(call, "chat.completion.chunk") | {"choices": [choice]})


def read(body: Mapping[str, Any]) -> tuple[list[Said], Wanted, Completion]:
    """A request for a chat completion. Raises Refused (400) for what would silently be something else."""
    if body.get("n") not in (None, 1):
        raise bad("n must be 1: an expert tool gives one answer.", "n")
    if body.get("audio") or "audio" in (body.get("modalities") or ()):
        raise bad("An expert tool answers in text.", "modalities")
    options = body.get("stream_options")
    with_usage = isinstance(options, dict) and options.get("include_usage") is True
    shape = Completion(str(body.get("model")), with_usage)
    return messages(body.get("messages")), wanted(body.get("response_format"), "response_format"), shape


def wanted(found: object, place: str) -> Wanted:
    """The form of the answer: of ``response_format`` in chat completions, of ``text.format`` in responses."""
    if not isinstance(found, dict) or found.get("type") in (None, "text"):
        return ANY
    if found["type"] == "json_object":
        return Wanted(JSON, {"type": "object"})
    inner = found.get("json_schema", found)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if found["type"] != "json_schema" or not isinstance(schema, dict):
        raise bad(f"{place} must be text, json_object, or json_schema with a schema.", place)
    return Wanted(JSON, schema)


def said(reply: Reply) -> str:
    """The answer as text; what was asked for as JSON is nothing else."""
    return reply.structured or reply.text


def usage(used: Usage) -> dict[str, Any]:
    """Tokens as chat completions count them."""
    return {
        "prompt_tokens": used.input,
        "completion_tokens": used.output,
        "total_tokens": used.input + used.output,
        "prompt_tokens_details": {"cached_tokens": used.cached},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning},
    }


def _finish(reply: Reply) -> str:
    return "length" if reply.finish == "length" else "stop"
