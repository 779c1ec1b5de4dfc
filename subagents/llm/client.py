"""The one door to models: ``complete`` makes one turn, whoever the provider is.

Only this module imports litellm, inside functions and in the worker alone: the import takes four
seconds and 180 MB. What litellm would do by itself is switched off, because it hides attempts, costs
or secrets: its retries, callbacks, price look-ups in the network, tokenizer downloads, ``.env`` files,
and keys from our environment. Turns are never streamed: a stream that was cut looks complete to it.
``tests/subagents/llm/test_client.py`` holds each of these to the installed version.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from subagents.domain.trouble import ModelError, Trouble, classify

# Before the import: afterwards they change nothing.
_SWITCHES = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_MODE": "PRODUCTION",  # the default reads a .env file into our environment
    "LITELLM_RUST": "0",  # its native core does not survive a fork
    "HF_HUB_OFFLINE": "1",
}
PREFIXES = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "gemini",
    "openrouter": "openrouter",
    "ollama": "ollama_chat",
    "compatible": "openai",
    "scripted": "openai",
}
_NO_KEY = "none"  # with no key at all litellm would take one from our environment and send it there
_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Target:
    """One model at one provider. ``base_url`` empty means the provider's own; ``timeout`` in seconds."""

    kind: str
    model: str
    base_url: str = ""
    key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    max_output: int = 4096
    temperature: float = 0.0
    timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call that the model wants. ``arguments`` is the text as it came; it may be no JSON at all."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn; ``input`` includes ``cached`` and ``cache_write``."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said. ``finish``: stop, calls, length or policy. ``cost`` is litellm's own, or None."""

    text: str
    calls: tuple[ToolUse, ...]
    usage: Usage
    finish: str
    model: str
    cost: float | None


Message = Mapping[str, Any]
Tool = Mapping[str, Any]


async def complete(
    target: Target,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    response_schema: Mapping[str, Any] | None = None,
) -> Reply:
    """One turn. Messages and tools are in OpenAI's shape. Raises ModelError; cancelling drops the line.

    ``tools`` empty means that the model cannot call any: some providers ignore ``tool_choice``.
    """
    litellm = loaded()
    request = _request(target, messages, tools, response_schema)
    try:
        async with asyncio.timeout(target.timeout + 1):  # some adapters ignore the timeout they are given
            response = await litellm.acompletion(**request)
    except TimeoutError:
        raise ModelError(Trouble.TIMEOUT, f"No answer within {target.timeout:g} s.", status=408) from None
    except Exception as error:  # noqa: BLE001 - whatever an adapter raises, the run must hear it in our words
        raise _translated(error, target) from None
    return _reply(response)


@lru_cache(maxsize=1)
def loaded() -> ModuleType:
    """litellm, imported once with everything off that would act behind our back. Takes seconds."""
    os.environ.update(_SWITCHES)
    import litellm

    # Where tiktoken finds its tables; it would download them. litellm says so itself only with one of 50 MB loaded.
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(litellm.__file__).parent / "litellm_core_utils" / "tokenizers")
    litellm.suppress_debug_info = True  # it prints help texts to standard output
    litellm.disable_hf_tokenizer_download = True
    litellm.telemetry = False
    logging.getLogger("LiteLLM").setLevel(logging.ERROR)  # it warns about models it has not heard of, on every call
    for hooks in ("callbacks", "success_callback", "failure_callback", "_async_success_callback"):
        getattr(litellm, hooks, []).clear()
    litellm.ModelResponse()  # its types are put together now, not within the first answer
    return litellm


async def close() -> None:
    """Close the connections of this loop; the worker calls it once, when it stops."""
    if loaded.cache_info().currsize:
        await loaded().close_litellm_async_clients()


def _request(
    target: Target, messages: Sequence[Message], tools: Sequence[Tool], schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    # Copies, because some adapters rewrite the caller's schemas in place.
    request: dict[str, Any] = {
        "model": f"{PREFIXES[target.kind]}/{target.model}",
        "messages": copy.deepcopy(list(messages)),
        "api_key": target.key or _NO_KEY,
        "temperature": target.temperature,
        "max_tokens": target.max_output,
        "timeout": target.timeout,
        "stream": False,
        "max_retries": 0,
        "num_retries": 0,
        "drop_params": True,
        "extra_headers": {"Accept": "application/json", **target.headers},
        **target.options,
    }
    if target.base_url:
        request["api_base"] = _base(target)
    if tools:
        request["tools"] = copy.deepcopy(list(tools))
    else:
        request.pop("tool_choice", None)  # a provider refuses a choice among none
    if schema is not None and not tools:  # with tools, one adapter would turn it into a forced call
        strict = {"name": "answer", "schema": copy.deepcopy(dict(schema)), "strict": False}
        request["response_format"] = {"type": "json_schema", "json_schema": strict}
    return request


def _base(target: Target) -> str:
    """The address in the form that the adapter wants: the one for Google adds no version by itself."""
    base = target.base_url.rstrip("/")
    if target.kind == "google" and not re.search(r"/v\d\w*$", base):
        return f"{base}/v1beta"
    return base


def _reply(response: Any) -> Reply:
    try:
        choice = response.choices[0]
        message = choice.message
        calls = tuple(_call(index, call) for index, call in enumerate(message.tool_calls or []))
    except (AttributeError, IndexError, TypeError):
        raise ModelError(Trouble.UNREADABLE, "The provider's answer holds no message.") from None
    return Reply(
        text=message.content or "",
        calls=calls,
        usage=_usage(getattr(response, "usage", None)),
        finish=_finish(choice.finish_reason, calls),
        model=str(getattr(response, "model", "") or ""),
        cost=(getattr(response, "_hidden_params", None) or {}).get("response_cost"),
    )


def _call(index: int, call: Any) -> ToolUse:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolUse(call.id or f"call_{index}", call.function.name or "", text or "{}")


def _finish(reason: str | None, calls: tuple[ToolUse, ...]) -> str:
    if reason == "length":
        return "length"
    if reason == "content_filter":
        return "policy"
    return "calls" if calls else "stop"


def _usage(usage: Any) -> Usage:
    if usage is None:
        return Usage()
    details = getattr(usage, "prompt_tokens_details", None)
    spent = getattr(usage, "completion_tokens_details", None)
    return Usage(
        input=usage.prompt_tokens or 0,
        output=usage.completion_tokens or 0,
        cached=getattr(details, "cached_tokens", None) or 0,
        cache_write=getattr(usage, "cache_creation_input_tokens", None) or 0,
        reasoning=getattr(spent, "reasoning_tokens", None) or 0,
    )


def _translated(error: Exception, target: Target) -> ModelError:
    status = getattr(error, "status_code", None)
    text = str(getattr(error, "message", "") or error)
    trouble = classify(type(error).__name__, status if isinstance(status, int) else None, text)
    words = _OWN_WORDS.get(trouble) or _clean(text, target)
    return ModelError(trouble, words, status=status, retry_after=_retry_after(error))


_OWN_WORDS = {
    Trouble.NETWORK: "The provider cannot be reached, or the line broke. Is its address right, and is it running?",
    Trouble.TIMEOUT: "The provider did not answer in time.",
}


def _clean(text: str, target: Target) -> str:
    """Without the key, which some providers repeat in their refusal, and without litellm's own labels."""
    for secret in (target.key, *target.headers.values()):
        if len(secret) > 3:
            text = text.replace(secret, "***")
    while (shorter := _LABEL.sub("", text.strip())) != text:
        text = shorter
    return _told(text)[:_LONGEST_MESSAGE]


_LABEL = re.compile(r"^(?:litellm\.)?(?:\w+Error:|\w*Exception(?: \w+)? -|Timeout:) ?")


def _told(text: str) -> str:
    """The message inside a provider's error body, if it is one."""
    try:
        body, _ = json.JSONDecoder().raw_decode(text)
        told = body["error"]
        return str(told["message"] if isinstance(told, dict) else told)
    except (ValueError, KeyError, TypeError):
        return text


def _retry_after(error: Exception) -> float | None:
    """Providers' Retry-After in seconds; litellm keeps it in an attribute of its own."""
    headers = getattr(error, "litellm_response_headers", None) or {}
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, TypeError, ValueError):
        return None
