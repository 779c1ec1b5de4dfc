"""Tokens are counted offline: by the named tokenizer, else by the model's name, else an
estimate."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from subagents.llm.tokens import counter

TEXT = "The quick brown fox jumps over the lazy dog."


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("tokenizer", "model", "tokens"),
    [
        ("tiktoken:o200k_base", "", 10),
        ("tiktoken:cl100k_base", "", 10),
        ("anthropic", "", 10),
        ("claude:haiku", "", 10),
        ("gemini", "", len(TEXT) // 2),
        ("google:gemini", "", len(TEXT) // 2),
        ("tiktoken:o200k_harmony", "", 10),
        ("tiktoken:p50k_base", "", 10),
        ("tiktoken:p50k_edit", "", 10),
        ("tiktoken:nonsense", "", len(TEXT) // 2),
        ("", "openai/gpt-4o-mini", 10),
        ("", "own/some-model", 10),
        ("", "anthropic/claude-haiku-4-5", 10),
        ("", "google/gemini-2.5-flash", len(TEXT) // 2),
    ],
)
def test_each_tokenizer_counts_in_its_own_way(tokenizer: str, model: str, tokens: int) -> None:
    assert counter(tokenizer, model)(TEXT) == tokens


@pytest.mark.parametrize("name", ["gpt2", "r50k_base"])
def test_a_tokenizer_that_is_not_bundled_is_not_fetched(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    looked_up: list[Any] = []

    def refused(*host: Any, **more: Any) -> Any:
        looked_up.append(host)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert counter(f"tiktoken:{name}")(TEXT) == len(TEXT) // 2
    assert looked_up == []
