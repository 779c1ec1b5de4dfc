"""Whatever a body of JSON holds, it is read, or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subagents.headends import anthropic, openai, responses
from subagents.headends.chat_arguments import build_arguments, is_background_prompt
from subagents.headends.errors import HeadendError

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
NAMES = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "name",
        "schema",
        "format",
        "json_schema",
        "id",
        "summary",
        "arguments",
        "call_id",
        "output",
        "include_usage",
        "x",
    ]
)
WORDS = st.sampled_from(
    [
        "user",
        "system",
        "developer",
        "assistant",
        "tool",
        "text",
        "input_text",
        "message",
        "reasoning",
        "item_reference",
        "function_call_output",
        "json_schema",
        "json_object",
        "image_url",
        "audio",
    ]
)
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
KEYS = [
    "model",
    "messages",
    "input",
    "instructions",
    "system",
    "n",
    "audio",
    "modalities",
    "stream",
    "stream_options",
    "response_format",
    "text",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "tools",
    "store",
    "previous_response_id",
    "conversation",
    "background",
    "prompt",
    "reasoning",
    "metadata",
    "thinking",
]
ORDINARY = {
    "model": "expert",
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "max_tokens": 100,
}
ONE_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TWO_TEXTS = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {}},
    "required": ["a", "b"],
}


def _read_anthropic(body: Mapping[str, Any]) -> Any:
    anthropic.read_chat(body)
    return anthropic.read_request(body)


@pytest.mark.parametrize("read", [openai.read_request, responses.read_request, _read_anthropic])
@given(value=VALUES)
def test_any_value_is_read_or_refused_with_a_reason(
    read: Callable[[Mapping[str, Any]], Any], value: Any
) -> None:
    bodies = [ORDINARY | {key: value} for key in KEYS]
    bodies += [ORDINARY | {key: [value]} for key in ("messages", "input", "system", "instructions")]
    bodies += [
        ORDINARY | {key: [{"role": "user", "content": [value]}]} for key in ("messages", "input")
    ]
    for body in bodies:
        with suppress(HeadendError):
            chat = read(body)[0]
            is_background_prompt(chat)
            for schema in (ONE_TEXT, TWO_TEXTS):
                with suppress(HeadendError):
                    build_arguments(chat, schema)


def test_an_endlessly_nested_object_as_arguments_is_refused() -> None:
    chat = openai.read_request({"messages": [{"role": "user", "content": "[" * 100_000}]})[0]
    with pytest.raises(HeadendError, match="must be a JSON object"):
        build_arguments(chat, TWO_TEXTS)
