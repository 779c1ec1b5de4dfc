"""Counting tokens, offline: the tokenizers that come with litellm, else two characters for a token.

Machine-made text (JSON, paths, hashes) has about two characters for a token, so the usual four
would promise room that is not there. The tokenizers are litellm's files; it is not imported for
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

REFERENCE = "tiktoken:o200k_base"  # for savings: one tokenizer for all, so that figures compare

# others tiktoken would download
_BUNDLED = {"o200k_base", "o200k_harmony", "cl100k_base", "p50k_base", "p50k_edit"}

Count = Callable[[str], int]


def counter(tokenizer: str, model: str = "") -> Count:
    """A function that counts a text's tokens, by the tokenizer's name or else the model's.

    Names: ``tiktoken:NAME``, ``anthropic``, ``gemini``. Neither Anthropic nor Google publishes one
    for its models of today. What the provider bills corrects the guess with the next turn (see
    ``context.ratio_of``), so one table does for all others: each takes 30 to 75 MB of a worker.
    """
    name = tokenizer.lower() or _usual(model.lower())
    if name.startswith("tiktoken:"):
        return _tiktoken(name.removeprefix("tiktoken:"))
    if name.split(":")[0] in ("anthropic", "claude"):
        return counter(REFERENCE)
    return estimate_tokens


def estimate_tokens(text: str) -> int:
    """A guess without a tokenizer: two characters for a token."""
    return (len(text) + 1) // 2


def _usual(model: str) -> str:
    return "gemini" if "gemini" in model or not model else REFERENCE


@lru_cache(maxsize=8)
def _tiktoken(name: str) -> Count:
    tables = _tables()
    if name not in _BUNDLED or tables is None:
        return estimate_tokens
    os.environ["TIKTOKEN_CACHE_DIR"] = str(tables)
    import tiktoken

    encoding = tiktoken.get_encoding(name)
    return lambda text: len(encoding.encode(text, disallowed_special=()))


def _tables() -> Path | None:
    """The files that litellm brings along; importing it for them would take 180 MB."""
    spec = find_spec("litellm")
    folder = (
        Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
        if spec and spec.origin
        else None
    )
    return folder if folder is not None and folder.is_dir() else None
