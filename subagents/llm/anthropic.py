"""Anthropic's messages: a request in its own words, and what its answer says.

litellm's translation from OpenAI's shape loses what thinking models need back (it keeps no order of
blocks), marks no failed tool result, and drops options that it has not heard of for a model. So its
untranslated door is used, and the words are ours. Pure: values in, values out.

https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking and …/prompt-caching are what
it keeps to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from subagents.domain.finish_reasons import Finish, finish_of
from subagents.domain.model_options import ClaudeThinking, claude_thinking, takes_temperature
from subagents.domain.transcript import FAILED, STATE
from subagents.llm.model_values import Message, ModelReply, ModelTarget, TokenUsage, Tool, ToolUse

_CACHED = {"cache_control": {"type": "ephemeral"}}
_SENT = ("metadata", "service_tier", "top_k", "top_p")
_PLACEHOLDER = {
    "name": "dummy_tool",
    "description": "Not to be used.",
    "input_schema": {"type": "object"},
}
_THOUGHT = ("thinking", "redacted_thinking")


def request(
    target: ModelTarget,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    schema: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The arguments of ``litellm.anthropic_messages``, without what every request has (key,
    address, time).

    Three points are marked for the cache while tools are offered, because then another turn most
    likely follows: behind the tools, behind the system prompt, and behind the last message. Without
    tools nothing would be read again.
    """
    thinking = _thinking(target, messages)
    said = _conversation(messages, thinks=thinking is not None)
    if schema is not None and not tools:
        _append(said, "user", {"type": "text", "text": _by_schema(schema)})
    body: dict[str, Any] = {
        "model": f"anthropic/{target.model}",
        "max_tokens": target.max_output,
        "messages": said,
    }
    system: list[dict[str, Any]] = [{"type": "text", "text": text} for text in _system(messages)]
    if system:
        body["system"] = system
    if offered := [_tool(tool) for tool in tools] or _placeholder(messages):
        body["tools"] = offered
    if tools:
        for blocks in (offered, system, said[-1]["content"] if said else []):
            blocks[-1:] = [block | _CACHED for block in blocks[-1:]]
    return body | _choice(target, tools) | _options(target, thinking)


def _thinking(target: ModelTarget, messages: Sequence[Message]) -> ClaudeThinking | None:
    """None as well where the last answer was another model's, or was given without thinking.

    The API refuses a request that thinks while the tool calls under way were not thought about.
    """
    thinking = claude_thinking(target.model, target.options, target.max_output)
    last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
    if thinking is None or last is None or not last.get("tool_calls"):
        return thinking
    return thinking if last.get(STATE) is not None else None


def _options(target: ModelTarget, thinking: ClaudeThinking | None) -> dict[str, Any]:
    given = target.options
    found = {name: given[name] for name in _SENT if name in given}
    if "stop" in given:
        found["stop_sequences"] = (
            [given["stop"]] if isinstance(given["stop"], str) else given["stop"]
        )
    if thinking is not None:  # its temperature is 1 and need not be said
        found["thinking"] = thinking.thinking
        if thinking.effort:
            found["output_config"] = {"effort": thinking.effort}
    elif takes_temperature(target.model):
        found["temperature"] = target.temperature
    return found


def _choice(target: ModelTarget, tools: Sequence[Tool]) -> dict[str, Any]:
    if not tools:
        return {}
    choice: dict[str, Any] = (
        {"type": "any"} if target.tool_choice == "required" else {"type": "auto"}
    )
    if target.options.get("parallel_tool_calls") is False:
        choice["disable_parallel_tool_use"] = True
    return {"tool_choice": choice} if target.tool_choice or len(choice) > 1 else {}


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool["function"]
    schema = {"type": "object", **function["parameters"]}
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": schema,
    }


def _placeholder(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The API wants tools beside a history with calls, even where none may be used any more."""
    return [_PLACEHOLDER] if any(m.get("tool_calls") for m in messages) else []


def _by_schema(schema: Mapping[str, Any]) -> str:
    """In words: the API's own way knows only a part of JSON Schema, and only some models have
    it."""
    return (
        f"Answer only with JSON that matches this schema: {json.dumps(schema, ensure_ascii=False)}"
    )


def _system(messages: Sequence[Message]) -> list[str]:
    return [m["content"] for m in messages if m["role"] == "system" and m["content"].strip()]


def _conversation(messages: Sequence[Message], *, thinks: bool) -> list[dict[str, Any]]:
    """Roles take turns: what follows one another from one side is one message."""
    said: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            for block in _answer(message, thinks=thinks):
                _append(said, "assistant", block)
        elif message["role"] == "tool":
            _append(said, "user", _result(message))
        elif message["role"] == "user":
            _append(said, "user", {"type": "text", "text": message["content"]})
    return said


def _append(said: list[dict[str, Any]], role: str, block: dict[str, Any]) -> None:
    if not said or said[-1]["role"] != role:
        said.append({"role": role, "content": []})
    said[-1]["content"].append(block)


def _answer(message: Message, *, thinks: bool) -> Iterator[dict[str, Any]]:
    """As it was given, block by block, where it was this very model's; else its text and calls."""
    calls = {call["id"]: call for call in message.get("tool_calls") or ()}
    if thinks and (state := message.get(STATE)) is not None:
        yield from _drop_unmade_calls(state, calls)
        return
    if message.get("content"):
        yield {"type": "text", "text": message["content"]}
    for id, call in calls.items():
        function = call["function"]
        yield {
            "type": "tool_use",
            "id": id,
            "name": function["name"],
            "input": json.loads(function["arguments"]),
        }


def _drop_unmade_calls(
    state: Mapping[str, Any], calls: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Calls beyond what the run could make were dropped: a call without a result would be
    refused."""
    ids = iter(calls)
    for block in state["content"]:
        if block["type"] != "tool_use":
            yield block
        elif (id := next(ids, None)) is not None:
            # perhaps another than it came with, see ``records``
            yield {**block, "id": id}


def _result(message: Message) -> dict[str, Any]:
    found = {
        "type": "tool_result",
        "tool_use_id": message["tool_call_id"],
        "content": message["content"],
    }
    return found | ({"is_error": True} if message.get(FAILED) else {})


# The answer


def reply(response: Mapping[str, Any], target: ModelTarget) -> ModelReply:
    """Raises KeyError or TypeError for what is no message."""
    content = list(response["content"])
    text = "".join(block["text"] for block in content if block["type"] == "text")
    calls = tuple(
        ToolUse(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False))
        for block in content
        if block["type"] == "tool_use"
    )
    thinks = claude_thinking(target.model, target.options, target.max_output) is not None
    return ModelReply(
        text=text,
        calls=calls,
        usage=_usage(response.get("usage") or {}, content),
        finish=_finish(response.get("stop_reason"), text, len(calls)),
        model=str(response.get("model") or ""),
        state={"content": content}
        if thinks and any(block["type"] in _THOUGHT for block in content)
        else None,
    )


def _finish(reason: str | None, text: str, calls: int) -> Finish:
    cut = reason in ("max_tokens", "model_context_window_exceeded")
    return finish_of(
        "length" if cut else reason, text=text, calls=calls, refused=reason == "refusal"
    )


def _usage(usage: Mapping[str, Any], content: Sequence[Mapping[str, Any]]) -> TokenUsage:
    """Anthropic counts what came from the cache and went into it beside the input, and thinking
    within the output."""
    read = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    output = usage.get("output_tokens") or 0
    return TokenUsage(
        input=(usage.get("input_tokens") or 0) + read + written,
        output=output,
        cached=read,
        cache_write=written,
        reasoning=min(output, _thought(usage, content)),
    )


def _thought(usage: Mapping[str, Any], content: Sequence[Mapping[str, Any]]) -> int:
    """Tokens of thinking; where the provider does not count them, about four characters of what it
    shows are one."""
    counted = (usage.get("output_tokens_details") or {}).get("thinking_tokens")
    return (
        int(counted)
        if counted is not None
        else sum(len(b.get("thinking") or "") for b in content) // 4
    )
