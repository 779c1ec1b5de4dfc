"""Whatever breaks inside, its text stays inside, in either era."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp import types as t

from mcpregistry.calls.watch.changes import Feed
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import EndpointSpec
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.server import Gateway

SECRET = "postgres://user:hunter2@db"
CALLER = Caller("local", "default", "stdio")


def invalid() -> Exception:
    try:
        t.Tool.model_validate({"name": [SECRET]})
    except ValueError as error:
        return error
    raise AssertionError


BREAKAGES = [
    RuntimeError(SECRET),
    ValueError(SECRET),
    KeyError(SECRET),
    TimeoutError(SECRET),
    UnicodeEncodeError("utf-8", SECRET, 0, 1, SECRET),
    ExceptionGroup(SECRET, [OSError(SECRET)]),
    invalid(),
]


class Broken:
    """An engine in which everything fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        endpoint = EndpointSpec("default", "", "", "double", "none", False, True, ())
        self.live = SimpleNamespace(
            current=Snapshot(revision=1, endpoints={"default": endpoint}), listeners=[]
        )
        self.feed = Feed()  # not started: nothing changes here

    def get_catalogue(self, *_: str) -> Any:
        raise self.error

    async def call(self, *_: Any) -> Any:
        raise self.error


@pytest.mark.attack
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("error", BREAKAGES, ids=lambda error: type(error).__name__)
async def test_an_unexpected_error_never_reaches_the_host(error, mode):
    gateway = Gateway(Broken(error), caller=CALLER)
    async with Client(gateway.server, mode=mode, cache=None) as client:
        for ask in (client.list_tools, lambda: client.call_tool("any", {})):
            with pytest.raises(MCPError) as refusal:
                await ask()
            assert "hunter2" not in f"{refusal.value.error!r}"
            assert refusal.value.code in {t.INTERNAL_ERROR, t.INVALID_PARAMS}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_our_own_refusals_say_why_and_what_to_do(mode):
    gateway = Gateway(
        Broken(QueueFullError("The site is full.", remedy="Call again.")), caller=CALLER
    )
    async with Client(gateway.server, mode=mode, cache=None) as client:
        with pytest.raises(MCPError, match=r"The site is full\. Call again\."):
            await client.call_tool("any", {})
