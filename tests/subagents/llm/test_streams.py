"""The streams of the scripted server are read by litellm as the whole answers are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from subagents.llm.chat import PREFIXES
from subagents.llm.client import load_litellm
from subagents.llm.guarded_transport import GuardedRoute
from tests.subagents.llm.conftest import KEY, KINDS, target
from tests.subagents.llm.test_client import MESSAGES, TOOLS


# litellm's own types, built at the first stream; turns of runs are never streamed.
@pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_says_what_the_whole_answer_says(kind: str, base: str) -> None:
    litellm = load_litellm()
    asked = target(kind, base, "talk")
    address = f"{base}/v1beta" if kind == "google" else asked.base_url
    with GuardedRoute(asked.networks).activate_route():
        stream = await litellm.acompletion(
            model=f"{PREFIXES.get(kind, kind)}/talk",
            messages=MESSAGES,
            tools=TOOLS,
            api_base=address,
            api_key=KEY,
            stream=True,
        )
        chunks: list[Any] = [chunk async for chunk in stream]
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    message = whole.choices[0].message
    assert message.content == "Let me look."
    assert [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls] == [
        ("clock__now", {"zone": "UTC"}),
        ("files__read", {"path": "README.md"}),
    ]
