"""Counting tokens, offline: the tokenizers that come with litellm, else two characters for a token.

Machine-made text (JSON, paths, hashes) has about two characters for a token, so the usual four would
promise room that is not there. Import only where litellm may be imported: the tokenizers are its.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

REFERENCE = "tiktoken:o200k_base"  # for savings: one tokenizer for all, so that figures compare

_BUNDLED = {"o200k_base", "o200k_harmony", "cl100k_base", "p50k_base", "p50k_edit"}  # others tiktoken would download

Count = Callable[[str], int]


def counter(tokenizer: str, model: str = "") -> Count:
    """By the tokenizer's name, or the model's where none is given: ``tiktoken:NAME``, ``anthropic``, ``gemini``."""
    name = tokenizer.lower() or _usual(model.lower())
    if name.startswith("tiktoken:"):
        return _tiktoken(name.removeprefix("tiktoken:"))
    if name.split(":")[0] in ("anthropic", "claude"):
        return _anthropic()
    return estimated  # Google publishes no tokenizer that works offline


def estimated(text: str) -> int:
    return (len(text) + 1) // 2


def _usual(model: str) -> str:
    if "claude" in model:
        return "anthropic"
    if any(word in model for word in ("gpt", "o1", "o3", "o4")):
        return REFERENCE
    return "tiktoken:cl100k_base" if "gemini" not in model and model else ""


@lru_cache(maxsize=8)
def _tiktoken(name: str) -> Count:
    if name not in _BUNDLED:
        return estimated
    from subagents.llm.client import loaded

    loaded()  # points tiktoken at the files that litellm brings along
    import tiktoken

    encoding = tiktoken.get_encoding(name)
    return lambda text: len(encoding.encode(text, disallowed_special=()))


@lru_cache(maxsize=1)
def _anthropic() -> Count:
    from subagents.llm.client import loaded

    litellm = loaded()
    return lambda text: len(litellm.encode(model="claude-3-opus-20240229", text=text))
