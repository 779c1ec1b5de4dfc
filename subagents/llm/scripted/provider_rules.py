"""Documented rules of the providers' APIs, by which a request is refused that the real ones would
refuse as well.

Each is quoted by the message that the provider answers with. ``thinks``: the scenario is that of a
thinking model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

Body = Mapping[str, Any]

_ANTHROPIC = {
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "service_tier",
    "stream",
    "output_config",
    "output_format",
}
_LEAST_BUDGET = 1024
_MOST_MARKS = 4
_THOUGHT = ("thinking", "redacted_thinking")


class RuleBroken(ValueError):
    """The text is what the provider says."""


def signature(*what: str) -> str:
    """What a provider signs its thoughts with: the same for the same thoughts, and nobody else can
    make it up."""
    return hashlib.sha256("\0".join(("signed", *what)).encode()).hexdigest()


def check_anthropic(body: Body) -> None:
    """https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking"""
    if unknown := sorted(set(body) - _ANTHROPIC):
        raise RuleBroken(f"{unknown[0]}: Extra inputs are not permitted")
    if (marks := str(body).count("'cache_control'")) > _MOST_MARKS:
        raise RuleBroken(
            f"A maximum of {_MOST_MARKS} blocks with cache_control may be provided. Found {marks}."
        )
    thinking = body.get("thinking") or {"type": "disabled"}
    if thinking["type"] == "enabled":
        _check_budget(thinking["budget_tokens"], body["max_tokens"])
    if thinking["type"] != "disabled":
        _check_sampling(body)
    answers = [
        (at, m["content"]) for at, m in enumerate(body["messages"]) if m["role"] == "assistant"
    ]
    for at, content in answers:
        _check_signatures(at, content, str(body["model"]), thinks=thinking["type"] != "disabled")
    if thinking["type"] == "enabled" and answers:
        _check_begins_with_thinking(*answers[-1])


def _check_budget(budget: int, most: int) -> None:
    if budget < _LEAST_BUDGET:
        raise RuleBroken(
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        )
    if budget >= most:
        raise RuleBroken("`max_tokens` must be greater than `thinking.budget_tokens`.")


def _check_sampling(body: Body) -> None:
    if body.get("temperature", 1) != 1:
        raise RuleBroken(
            "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
        )
    if "top_k" in body:
        raise RuleBroken("`top_k` must be unset when thinking is enabled or in adaptive mode.")
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        raise RuleBroken("Thinking may not be enabled when tool_choice forces tool use.")


def _check_signatures(at: int, content: Any, model: str, *, thinks: bool) -> None:
    for index, block in enumerate(content if isinstance(content, list) else ()):
        if block.get("type") not in _THOUGHT:
            continue
        if not thinks:
            raise RuleBroken(
                "When thinking is disabled, an `assistant` message cannot contain `thinking`."
            )
        if block["type"] == "thinking" and block.get("signature") != signature(
            model, block["thinking"]
        ):
            raise RuleBroken(
                f"messages.{at}.content.{index}: Invalid `signature` in `thinking` block"
            )


def _check_begins_with_thinking(at: int, content: Any) -> None:
    kinds = [block.get("type") for block in content] if isinstance(content, list) else ["text"]
    if "tool_use" in kinds and kinds[0] not in _THOUGHT:
        raise RuleBroken(
            f"messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kinds[0]}`. When "
            "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks)."
        )


def check_chat(body: Body, *, thinks: bool) -> None:
    """OpenAI's refusal of names it does not know, and what DeepSeek and Kimi want back with their
    own tool calls.

    https://api-docs.deepseek.com/guides/thinking_mode
    """
    if foreign := [name for name in body if name != name.lower()]:
        raise RuleBroken(f"Unrecognized request argument supplied: {foreign[0]}")
    asked = [
        m for m in body.get("messages") or () if m["role"] == "assistant" and m.get("tool_calls")
    ]
    if thinks and not all(m.get("reasoning_content") for m in asked):
        raise RuleBroken(
            "The `reasoning_content` in the thinking mode must be passed back to the API."
        )
    if any({"provider_state", "is_error"} & set(m) for m in body.get("messages") or ()):
        raise RuleBroken("Additional properties are not allowed in messages.")


def check_gemini(body: Body, model: str, *, thinks: bool) -> None:
    """https://ai.google.dev/gemini-api/docs/thought-signatures: the first call of each step carries
    its own."""
    for content in body.get("contents") or ():
        calls = [
            p for p in content.get("parts") or () if p.get("functionCall") or p.get("function_call")
        ]
        if thinks and content.get("role") == "model" and calls:
            call = calls[0].get("functionCall") or calls[0]["function_call"]
            if calls[0].get("thoughtSignature") != signature(model, call["name"]):
                raise RuleBroken(
                    "Function call is missing a thought_signature in functionCall parts."
                )
