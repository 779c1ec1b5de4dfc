"""OpenAI's chat completions as litellm translates them to all other providers: the request's words,
and the answer's.

Pure: values in, values out. ``ModelResponse`` is litellm's, of which only attributes are read.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from subagents.domain.finish_reasons import finish_of
from subagents.domain.model_options import Options, gemini_thinking
from subagents.domain.transcript import FAILED, STATE, failure
from subagents.llm.model_values import Message, ModelReply, ModelTarget, TokenUsage, Tool, ToolUse

PREFIXES = {
    "openai": "openai",
    "google": "gemini",
    "openrouter": "openrouter",
    "ollama": "ollama_chat",
    "compatible": "openai",
    "scripted": "openai",
}
_CHAT_ONLY = ("compatible", "scripted")  # never /v1/responses, whatever the model's name is
_SIGNED = "__thought__"  # litellm hides Gemini's signature in the call's id behind this
_GEMINI = {
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
_REASONED = ("reasoning_content", "reasoning", "reasoning_details")


def request(
    target: ModelTarget,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    schema: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The arguments of ``litellm.acompletion``, without what every request has (key, address,
    time)."""
    # Copies, because some adapters rewrite the caller's schemas in place.
    asked: dict[str, Any] = {
        "model": f"{PREFIXES[target.kind]}/{target.model}",
        "messages": _fill_reasoning([_message(target.kind, message) for message in messages]),
        "temperature": target.temperature,
        "max_tokens": target.max_output,
    }
    if tools:
        asked["tools"] = copy.deepcopy(list(tools))
        if target.tool_choice:  # a provider refuses a choice among none
            asked["tool_choice"] = target.tool_choice
    if schema is not None and not tools:  # with tools, one adapter would turn it into a forced call
        strict = {"name": "answer", "schema": copy.deepcopy(dict(schema)), "strict": False}
        asked["response_format"] = {"type": "json_schema", "json_schema": strict}
    return asked | (
        _of_gemini(target, asked) if target.kind == "google" else _of_others(target, asked)
    )


def _of_others(target: ModelTarget, asked: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(target.options)
    if target.kind == "ollama":
        return options
    # Named, so that none is dropped for a model that litellm has not heard of.
    more: dict[str, Any] = {**options, "allowed_openai_params": list(options)}
    if target.kind == "openai":
        more["extra_body"] = {"prompt_cache_key": _cache_key(asked)}
    if target.kind in _CHAT_ONLY:
        more["_skip_responses_api_bridge"] = True
    return more


def _cache_key(asked: Mapping[str, Any]) -> str:
    """The same for all requests that begin alike: OpenAI sends them where the beginning is in the
    cache already."""
    beginning = [[m for m in asked["messages"] if m["role"] == "system"], asked.get("tools")]
    return hashlib.sha256(json.dumps(beginning, sort_keys=True).encode()).hexdigest()[:32]


def _of_gemini(target: ModelTarget, asked: dict[str, Any]) -> dict[str, Any]:
    """In its own words, because litellm drops options, and makes system prompts user texts, of
    models it does not know."""
    given = target.options
    config: dict[str, Any] = {
        theirs: given[ours] for ours, theirs in _GEMINI.items() if ours in given
    }
    if "stop" in given:
        config["stopSequences"] = (
            [given["stop"]] if isinstance(given["stop"], str) else given["stop"]
        )
    if thinking := gemini_thinking(target.model, given, target.max_output):
        config["thinkingConfig"] = thinking
    body: dict[str, Any] = {"generationConfig": config} if config else {}
    if "safety_settings" in given:
        body["safetySettings"] = given["safety_settings"]
    system = [m["content"] for m in asked["messages"] if m["role"] == "system"]
    if system:
        body["system_instruction"] = {"parts": [{"text": text} for text in system]}
    rest = [m for m in asked["messages"] if m["role"] != "system"]
    return {"messages": rest} | ({"extra_body": body} if body else {})


def _message(kind: str, message: Message) -> dict[str, Any]:
    """Without our own keys, with what this model wants back of its own answers."""
    found = copy.deepcopy(
        {key: value for key, value in message.items() if key not in (STATE, FAILED)}
    )
    if message.get(FAILED):  # the wire has no mark of its own
        found["content"] = failure(found["content"])
    state: Mapping[str, Any] = message.get(STATE) or {}
    if kind == "google":
        _sign(found, state)
    elif found.get("tool_calls"):  # wanted with calls alone; some refuse it elsewhere
        found |= state
    return found


def _fill_reasoning(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """DeepSeek wants reasoning beside every call in a history, also beside those that another model
    has asked for."""
    if any("reasoning_content" in message for message in messages):
        for message in messages:
            if message.get("tool_calls"):
                message.setdefault("reasoning_content", " ")
    return messages


def _sign(message: dict[str, Any], state: Mapping[str, Any]) -> None:
    for call, signature in zip(
        message.get("tool_calls") or (), state.get("calls", ()), strict=False
    ):
        if signature:
            call["provider_specific_fields"] = {"thought_signature": signature}
    if state.get("text"):
        message["provider_specific_fields"] = {"thought_signatures": [state["text"]]}


# The answer


def reply(response: Any, target: ModelTarget) -> ModelReply:
    """Raises AttributeError, IndexError or TypeError for what is no answer."""
    choice = response.choices[0]
    message = choice.message
    calls = tuple(_call(index, call) for index, call in enumerate(message.tool_calls or []))
    refusal = str(_own(message).get("refusal") or "")
    text = message.content or refusal
    return ModelReply(
        text=text,
        calls=calls,
        usage=_usage(getattr(response, "usage", None)),
        finish=finish_of(choice.finish_reason, text=text, calls=len(calls), refused=bool(refusal)),
        model=str(getattr(response, "model", "") or ""),
        cost=(getattr(response, "_hidden_params", None) or {}).get("response_cost"),
        state=_signatures(message) if target.kind == "google" else _reasoning(message),
    )


def _own(message: Any) -> Options:
    """What litellm found in the message beyond OpenAI's fields."""
    return getattr(message, "provider_specific_fields", None) or {}


def _call(index: int, call: Any) -> ToolUse:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    id = re.sub(f"{_SIGNED}.*", "", call.id or "", flags=re.DOTALL)
    if text.strip() in ("", "null"):  # how some models call a tool without arguments
        text = "{}"
    return ToolUse(id or f"call_{index}", call.function.name or "", text)


def _reasoning(message: Any) -> dict[str, Any] | None:
    """Under the names under which it came: DeepSeek, Kimi and Ollama have another than vLLM and
    OpenRouter."""
    own = _own(message)
    found = {name: own[name] for name in _REASONED if own.get(name)}
    shown = getattr(message, "reasoning_content", None)
    if shown and "reasoning" not in found:
        found["reasoning_content"] = shown
    return found or None


def _signatures(message: Any) -> dict[str, Any] | None:
    calls = [
        (getattr(call, "provider_specific_fields", None) or {}).get("thought_signature")
        for call in message.tool_calls or ()
    ]
    text = next((s for s in _own(message).get("thought_signatures") or () if s not in calls), None)
    return {"calls": calls, "text": text} if text or any(calls) else None


def _usage(usage: Any) -> TokenUsage:
    if usage is None:
        return TokenUsage()
    details = getattr(usage, "prompt_tokens_details", None)
    spent = getattr(usage, "completion_tokens_details", None)
    return TokenUsage(
        input=usage.prompt_tokens or 0,
        output=usage.completion_tokens or 0,
        cached=getattr(details, "cached_tokens", None) or 0,
        cache_write=getattr(usage, "cache_creation_input_tokens", None) or 0,
        reasoning=getattr(spent, "reasoning_tokens", None) or 0,
    )
