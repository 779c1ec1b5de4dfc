"""A scripted model server on loopback, and a target for each kind of provider that reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from subagents.llm.model_values import ModelTarget
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import load
from tests.waiting import HANG_LIMIT

KEY = "sk-canary-7f31"
KINDS = ["openai", "anthropic", "google", "openrouter", "ollama", "compatible", "scripted"]

SCRIPT: dict[str, Any] = {
    "talk": {
        "turns": [
            {
                "text": "Let me look.",
                "calls": [
                    {"name": "clock__now", "arguments": {"zone": "UTC"}},
                    {"name": "files__read", "arguments": {"path": "{{ user.json.path }}"}},
                ],
                "usage": {"input": 1600, "output": 20, "cached": 400, "cache_write": 200},
            },
            {"text": "It is {{ last.json.hour }}; the file says {{ results.0.text }}."},
        ],
        "final": {"text": "No tools, so: {{ last.json.hour }}."},
    },
    "broken": {"turns": [{"calls": [{"name": "files__read", "arguments": '{"path": '}]}]},
    "cut": {"turns": [{"text": "half a", "cut_off": True}]},
    "plain": {"turns": [{"text": "hello"}]},
    "json": {"turns": [{"text": '{"answer": 42}'}]},
    **{
        name: {"turns": [{"text": "ok", "attempts": [fault]}]}
        for name, fault in {
            "limited": {"status": 429, "message": "slow down", "retry_after": 7},
            "failing": {"status": 500, "message": "boom"},
            "overloaded": {"status": 503, "message": "come back"},
            "forbidden": {"status": 401, "message": f"bad key {KEY}"},
            "missing": {"status": 404, "message": "no such model"},
            "poor": {
                "status": 429,
                "message": "You exceeded your current quota, please check your plan",
            },
            "dropping": {"cut": 30},
            "stalling": {"stall": True},
        }.items()
    },
}


@pytest.fixture
def models() -> ScriptedModels:
    return ScriptedModels(load(SCRIPT))


class Current:
    """The server's app: it passes each request to the models of the current test."""

    models: ScriptedModels

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await self.models(scope, receive, send)


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[Current, str]]:
    """One server for all tests of a process, because a server takes 0.2 s to stop."""
    current = Current()
    # until the first test: the server asks it whether it is ready
    current.models = ScriptedModels(load(SCRIPT))
    with run_server(current) as address:
        yield current, address


@pytest.fixture
def base(models: ScriptedModels, served: tuple[Current, str]) -> str:
    """The address of the server, which answers with ``models``."""
    current, address = served
    current.models = models
    return address


def target(kind: str, base: str, model: str, **more: Any) -> ModelTarget:
    url = base if kind in ("anthropic", "google", "ollama") else f"{base}/v1"
    return ModelTarget(
        kind, model, url, KEY, **({"timeout": HANG_LIMIT, "networks": ("127.0.0.0/8",)} | more)
    )
