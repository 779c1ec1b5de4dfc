"""Anthropic's messages: ``POST /v1/messages``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from subagents.llm.scripted import provider_rules
from subagents.llm.scripted.script import Result, ScriptedReply, ScriptedRequest
from subagents.llm.scripted.stream_pieces import as_object, event, identifier, pieces, text_of

# litellm offers a tool of this name when the history has tool calls and the request offers none
_PLACEHOLDER = "dummy_tool"


def read(body: dict[str, Any], model: str, streams: bool) -> ScriptedRequest:
    """The request, whatever the wire format."""
    messages = body.get("messages") or []
    blocks = [(m["role"], b) for m in messages for b in _blocks(m.get("content"))]
    users = [b["text"] for role, b in blocks if role == "user" and b.get("type") == "text"]
    return ScriptedRequest(
        model=model,
        stream=streams,
        thinks=(body.get("thinking") or {}).get("type") in ("enabled", "adaptive"),
        answered=sum(m["role"] == "assistant" for m in messages),
        system=text_of(body.get("system")),
        user=users[0] if users else "",
        tools=tuple(t["name"] for t in body.get("tools") or [] if t["name"] != _PLACEHOLDER),
        results=_results(blocks),
    )


def _results(blocks: list[tuple[str, dict[str, Any]]]) -> tuple[Result, ...]:
    """What tools have answered, with the names under which they were called."""
    names = {b["id"]: b["name"] for _, b in blocks if b.get("type") == "tool_use"}
    answers = [b for _, b in blocks if b.get("type") == "tool_result"]
    return tuple(
        Result(names.get(b["tool_use_id"], ""), text_of(b.get("content"))) for b in answers
    )


def check(body: dict[str, Any], *, thinks: bool) -> None:
    """Raises RuleBroken. Whether this API thinks is said in the request."""
    provider_rules.check_anthropic(body)


def whole(reply: ScriptedReply, ask: ScriptedRequest) -> dict[str, Any]:
    """The answer in one piece."""
    return _message(reply, ask) | {"content": _content(reply, ask), "stop_reason": _stop(reply)}


def stream(reply: ScriptedReply, ask: ScriptedRequest) -> Iterator[bytes]:
    """The answer as server-sent events."""
    start = _message(reply, ask) | {"content": [], "stop_reason": None}
    yield event({"type": "message_start", "message": start}, "message_start")
    unthought = [block for block in _content(reply, ask) if block["type"] != "thinking"]
    for index, block in enumerate(unthought):
        yield from _block(index, block, reply)
    end = {"stop_reason": _stop(reply), "stop_sequence": None}
    usage = {"output_tokens": reply.usage.output}
    yield event({"type": "message_delta", "delta": end, "usage": usage}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def error(status: int, message: str) -> dict[str, Any]:
    """An error in the provider's own shape."""
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


def _content(reply: ScriptedReply, ask: ScriptedRequest) -> list[dict[str, Any]]:
    calls = [
        {
            "type": "tool_use",
            "id": identifier("toolu", ask, i),
            "name": c.name,
            "input": as_object(c.arguments),
        }
        for i, c in enumerate(reply.calls)
    ]
    return [
        *_thoughts(reply, ask),
        *([{"type": "text", "text": reply.text}] if reply.text else []),
        *calls,
    ]


def _thoughts(reply: ScriptedReply, ask: ScriptedRequest) -> list[dict[str, Any]]:
    """A model that was told to think does so, whatever the script says of it."""
    if not ask.thinks:
        return []
    thought = reply.thinking or "Let me think."
    return [
        {
            "type": "thinking",
            "thinking": thought,
            "signature": provider_rules.signature(ask.model, thought),
        }
    ]


def _block(index: int, block: dict[str, Any], reply: ScriptedReply) -> Iterator[bytes]:
    is_text = block["type"] == "text"
    start = {"type": "text", "text": ""} if is_text else block | {"input": {}}
    yield event(
        {"type": "content_block_start", "index": index, "content_block": start},
        "content_block_start",
    )
    calls_before = index - bool(reply.text)
    for piece in pieces(block["text"] if is_text else reply.calls[calls_before].arguments):
        delta = (
            {"type": "text_delta", "text": piece}
            if is_text
            else {"type": "input_json_delta", "partial_json": piece}
        )
        yield event(
            {"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta"
        )
    yield event({"type": "content_block_stop", "index": index}, "content_block_stop")


def _message(reply: ScriptedReply, ask: ScriptedRequest) -> dict[str, Any]:
    usage = reply.usage
    return {
        "id": identifier("msg", ask),
        "type": "message",
        "role": "assistant",
        "model": ask.model,
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.input - usage.cached - usage.cache_write,
            "cache_read_input_tokens": usage.cached,
            "cache_creation_input_tokens": usage.cache_write,
            "output_tokens": usage.output,
            **(
                {"output_tokens_details": {"thinking_tokens": usage.reasoning}}
                if usage.reasoning
                else {}
            ),
        },
    }


def _stop(reply: ScriptedReply) -> str:
    if reply.outcome:
        return "refusal"
    if reply.cut_off:
        return "max_tokens"
    return "tool_use" if reply.calls else "end_turn"
