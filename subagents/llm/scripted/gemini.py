"""Google's generateContent: ``POST …/models/{model}:generateContent`` and
``:streamGenerateContent``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from subagents.llm.scripted import provider_rules
from subagents.llm.scripted.script import Result, ScriptedReply, ScriptedRequest
from subagents.llm.scripted.stream_pieces import as_object, event, identifier, pieces


def read(body: dict[str, Any], model: str, streams: bool) -> ScriptedRequest:
    """The request, whatever the wire format; the model and whether it streams stand in the path."""
    contents = body.get("contents") or []
    parts = [p for c in contents for p in c.get("parts") or []]
    instruction = body.get("systemInstruction") or body.get("system_instruction") or {}
    return ScriptedRequest(
        model=model,
        stream=streams,
        answered=sum(c.get("role") == "model" for c in contents),
        system="\n".join(p.get("text") or "" for p in instruction.get("parts") or []),
        user=_first_words(contents),
        tools=tuple(_list_tool_names(body)),
        results=tuple(
            _result(p) for p in parts if _either(p, "functionResponse", "function_response")
        ),
    )


def check(body: dict[str, Any], *, thinks: bool) -> None:
    """Raises RuleBroken. The model stands in the path, so its name is no part of what is signed."""
    provider_rules.check_gemini(body, "", thinks=thinks)


def whole(reply: ScriptedReply, ask: ScriptedRequest) -> dict[str, Any]:
    """The answer in one piece."""
    if reply.outcome:
        return _answer([], reply, ask, finish="SAFETY")
    thoughts = [{"text": reply.thinking, "thought": True}] if reply.thinking else []
    texts = [{"text": reply.text}] if reply.text else []
    calls: list[dict[str, Any]] = [
        {"functionCall": {"name": c.name, "args": as_object(c.arguments)}} for c in reply.calls
    ]
    if reply.thinking and calls:
        calls[0]["thoughtSignature"] = provider_rules.signature("", reply.calls[0].name)
    return _answer(
        [*thoughts, *texts, *calls], reply, ask, finish="MAX_TOKENS" if reply.cut_off else "STOP"
    )


def stream(reply: ScriptedReply, ask: ScriptedRequest) -> Iterator[bytes]:
    """The answer as server-sent events."""
    for piece in pieces(reply.text):
        yield event(_answer([{"text": piece}], reply, ask))
    calls = [
        {"functionCall": {"name": c.name, "args": as_object(c.arguments)}} for c in reply.calls
    ]
    yield event(_answer(calls, reply, ask, finish="MAX_TOKENS" if reply.cut_off else "STOP"))


def error(status: int, message: str) -> dict[str, Any]:
    """An error in the provider's own shape."""
    names = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED",
    }
    return {"error": {"code": status, "message": message, "status": names.get(status, "INTERNAL")}}


def _first_words(contents: list[dict[str, Any]]) -> str:
    """The last text of the first message: clients put a system prompt before it for models that
    take none."""
    parts = [part for content in contents[:1] for part in content.get("parts") or []]
    texts = [part["text"] for part in parts if part.get("text")]
    return texts[-1] if texts else ""


def _list_tool_names(body: dict[str, Any]) -> Iterator[str]:
    for tool in body.get("tools") or []:
        for declared in _either(tool, "functionDeclarations", "function_declarations") or []:
            yield declared["name"]


def _either(part: dict[str, Any], camel: str, snake: str) -> Any:
    return part.get(camel) or part.get(snake)


def _result(part: dict[str, Any]) -> Result:
    response = _either(part, "functionResponse", "function_response")
    value = response.get("response") or {}
    content = value.get("content", value) if isinstance(value, dict) else value
    return Result(
        response.get("name", ""), content if isinstance(content, str) else json.dumps(content)
    )


def _answer(
    parts: list[dict[str, Any]],
    reply: ScriptedReply,
    ask: ScriptedRequest,
    finish: str | None = None,
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    usage = reply.usage
    counts = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.input + usage.output,
        "cachedContentTokenCount": usage.cached,
    }
    answer = {
        "usageMetadata": counts,
        "modelVersion": ask.model,
        "responseId": identifier("resp", ask),
    }
    return answer | {"candidates": [candidate | ({"finishReason": finish} if finish else {})]}
