"""The helpers of ``tests/fakes/stage.py`` that other tests rely on."""

from __future__ import annotations

import sys

import pytest
from mcp import StdioServerParameters

from tests.fakes.stage import raw_host

SAYS_ONE_THING = (
    """import sys; print('{"jsonrpc": "2.0", "id": 1}'); print("gone", file=sys.stderr)"""
)


async def test_waiting_for_a_message_fails_when_the_output_ends():
    async with raw_host(
        StdioServerParameters(command=sys.executable, args=["-S", "-c", SAYS_ONE_THING])
    ) as host:
        assert (await host.answer(1))["id"] == 1
        with pytest.raises(AssertionError, match="The output has ended") as failure:
            await host.answer(2)
    assert "gone" in str(failure.value)
