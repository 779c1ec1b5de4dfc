"""Ollama's native chat: ``POST /api/chat``, one JSON object a line when streaming."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from subagents.llm.scripted.script import Result, ScriptedReply, ScriptedRequest
from subagents.llm.scripted.stream_pieces import as_object, pieces, text_of


def read(body: dict[str, Any], model: str, streams: bool) -> ScriptedRequest:
    """The request, whatever the wire format."""
    messages = body.get("messages") or []
    users = [text_of(m.get("content")) for m in messages if m["role"] == "user"]
    return ScriptedRequest(
        model=model,
        stream=streams,
        answered=sum(m["role"] == "assistant" for m in messages),
        system="\n".join(text_of(m.get("content")) for m in messages if m["role"] == "system"),
        user=users[0] if users else "",
        tools=tuple(t["function"]["name"] for t in body.get("tools") or []),
        results=_results(messages),
    )


def _results(messages: list[dict[str, Any]]) -> tuple[Result, ...]:
    """What tools have answered. This wire knows no call ids: results come in the order of the
    calls."""
    asked = [c["function"]["name"] for m in messages for c in m.get("tool_calls") or []]
    answers = [m for m in messages if m["role"] == "tool"]
    names = itertools.chain(asked, itertools.repeat(""))
    return tuple(
        Result(m.get("tool_name") or name, text_of(m.get("content")))
        for m, name in zip(answers, names, strict=False)
    )


def check(body: dict[str, Any], *, thinks: bool) -> None:
    """Ollama refuses nothing that we could send it by mistake."""


def whole(reply: ScriptedReply, ask: ScriptedRequest) -> dict[str, Any]:
    """The answer in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.thinking:
        message["thinking"] = reply.thinking
    if reply.calls:
        message["tool_calls"] = [_call(c.name, c.arguments) for c in reply.calls]
    return _line(ask, message) | _end(reply)


def stream(reply: ScriptedReply, ask: ScriptedRequest) -> Iterator[bytes]:
    """The answer as lines of JSON."""
    for piece in pieces(reply.text):
        yield _encode_line(_line(ask, {"role": "assistant", "content": piece}))
    if reply.calls:  # all in one line: clients number the calls of a line
        calls = [_call(c.name, c.arguments) for c in reply.calls]
        yield _encode_line(_line(ask, {"role": "assistant", "content": "", "tool_calls": calls}))
    yield _encode_line(_line(ask, {"role": "assistant", "content": ""}) | _end(reply))


def error(status: int, message: str) -> dict[str, Any]:
    """An error in the provider's own shape."""
    return {"error": message}


def show(model: str) -> dict[str, Any]:
    """``POST /api/show``: what clients ask about a model before they offer it tools."""
    return {
        "details": {"family": "scripted"},
        "capabilities": ["completion", "tools"],
        "model_info": {},
    }


def _line(ask: ScriptedRequest, message: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": ask.model,
        "created_at": "2026-01-01T00:00:00Z",
        "message": message,
        "done": False,
    }


def _end(reply: ScriptedReply) -> dict[str, Any]:
    return {
        "done": True,
        "done_reason": "length" if reply.cut_off else "stop",
        "prompt_eval_count": reply.usage.input,
        "eval_count": reply.usage.output,
    }


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": as_object(arguments)}}


def _encode_line(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"
