"""OpenAI's chat completions, as most servers speak them: ``POST …/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from subagents.llm.scripted import provider_rules
from subagents.llm.scripted.script import Result, ScriptedReply, ScriptedRequest
from subagents.llm.scripted.stream_pieces import event, identifier, pieces, text_of


def read(body: dict[str, Any], model: str, streams: bool) -> ScriptedRequest:
    """The request, whatever the wire format."""
    messages = body.get("messages") or []
    names = {c["id"]: c["function"]["name"] for m in messages for c in m.get("tool_calls") or []}
    users = [text_of(m.get("content")) for m in messages if m["role"] == "user"]
    return ScriptedRequest(
        model=model,
        stream=streams,
        answered=sum(m["role"] == "assistant" for m in messages),
        system="\n".join(
            text_of(m.get("content")) for m in messages if m["role"] in ("system", "developer")
        ),
        user=users[0] if users else "",
        tools=tuple(t["function"]["name"] for t in body.get("tools") or []),
        results=tuple(
            Result(names.get(m.get("tool_call_id"), ""), text_of(m.get("content")))
            for m in messages
            if m["role"] == "tool"
        ),
    )


def check(body: dict[str, Any], *, thinks: bool) -> None:
    """Raises RuleBroken."""
    provider_rules.check_chat(body, thinks=thinks)


def whole(reply: ScriptedReply, ask: ScriptedRequest) -> dict[str, Any]:
    """The answer in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.outcome == "refused":
        message |= {"content": None, "refusal": reply.text}
    if reply.calls:
        message["tool_calls"] = [_call(reply, ask, index) for index in range(len(reply.calls))]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
    return _envelope(ask, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}


def stream(reply: ScriptedReply, ask: ScriptedRequest) -> Iterator[bytes]:
    """The answer as server-sent events."""
    yield _chunk(ask, {"role": "assistant", "content": ""})
    for piece in pieces(reply.text):
        yield _chunk(ask, {"content": piece})
    for index, call in enumerate(reply.calls):
        head = _call(reply, ask, index) | {"index": index}
        yield _chunk(
            ask, {"tool_calls": [head | {"function": {"name": call.name, "arguments": ""}}]}
        )
        for piece in pieces(call.arguments):
            yield _chunk(ask, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _chunk(ask, {}, _finish(reply))
    yield event(_envelope(ask, "chat.completion.chunk") | {"choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def error(status: int, message: str) -> dict[str, Any]:
    """An error in the provider's own shape."""
    kinds = {401: "invalid_request_error", 429: "rate_limit_error", 400: "invalid_request_error"}
    return {
        "error": {
            "message": message,
            "type": kinds.get(status, "server_error"),
            "param": None,
            "code": None,
        }
    }


def _envelope(ask: ScriptedRequest, kind: str) -> dict[str, Any]:
    # service_tier: litellm's groq adapter fails without it
    return {
        "id": identifier("chatcmpl", ask),
        "object": kind,
        "created": 1,
        "model": ask.model,
        "service_tier": "default",
    }


def _chunk(ask: ScriptedRequest, delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(_envelope(ask, "chat.completion.chunk") | {"choices": [choice]})


def _call(reply: ScriptedReply, ask: ScriptedRequest, index: int) -> dict[str, Any]:
    call = reply.calls[index]
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": identifier("call", ask, index), "type": "function", "function": function}


def _finish(reply: ScriptedReply) -> str:
    if reply.outcome == "filtered":
        return "content_filter"
    if reply.cut_off:
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _usage(reply: ScriptedReply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
