"""Log lines of servers: to the host that has the call, at the level it wants, without secrets, and
no flood."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import Any

import pytest
from mcp import types as t
from mcp.shared.exceptions import MCPDeprecationWarning

from mcpregistry.downstream.pool.log_lines import BURST, PER_SECOND
from mcpregistry.models import Connection
from tests.fakes.stage import outside
from tests.gateway.talking import ERAS, MODES, SECRET, Scene
from tests.gateway.test_resources import connected
from tests.waiting import until

pytestmark = pytest.mark.e2e
LEVEL = "io.modelcontextprotocol/logLevel"


class Heard:
    """The log lines of one host, as (level, logger, data)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str | None, Any]] = []

    async def __call__(self, params: t.LoggingMessageNotificationParams) -> None:
        self.lines.append((params.level, params.logger, params.data))

    def levels(self) -> list[str]:
        return [level for level, _, _ in self.lines]


@pytest.mark.exhaustive(but=("http-auto-modern",))
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_lines_of_a_call_reach_its_host_at_its_level(stage, site, launched, door, mode, era):
    scene = await outside(Scene, stage, era)
    heard = Heard()
    meta = {"meta": {LEVEL: "error"}} if mode == "auto" else {}
    async with connected(door, mode, scene, site, launched, logging_callback=heard) as host:
        assert host.server_capabilities.logging is not None
        await host.call_tool(f"{scene.slug}__log", {})
        usual = ["info", "notice", "warning", "error", "critical", "alert", "emergency"]
        await until(lambda: heard.levels() == ([] if mode == "auto" else usual))
        heard.lines.clear()
        if mode == "legacy":
            with pytest.warns(MCPDeprecationWarning):
                await host.session.set_logging_level("error")
        await host.call_tool(f"{scene.slug}__log", {}, **meta)
        await until(lambda: len(heard.lines) >= 4)
    assert heard.levels() == ["error", "critical", "alert", "emergency"]
    assert {logger for _, logger, _ in heard.lines} == {f"{scene.slug}.main"}
    assert heard.lines[0][2].startswith(f"error of {scene.slug}: ")
    assert SECRET not in str(heard.lines)


@pytest.mark.exhaustive
async def test_a_flood_of_lines_costs_no_call_and_the_operator_sees_the_last(stage, site, launched):
    scene = await outside(Scene, stage, "legacy")
    heard = Heard()
    async with connected("http", "legacy", scene, site, launched, logging_callback=heard) as host:
        began = time.monotonic()
        await host.call_tool(f"{scene.slug}__flood", {})
        took = time.monotonic() - began
        assert 0 < len(heard.lines) <= BURST + PER_SECOND * took + 1
        newest = max(
            numbers("\n".join(str(data) for _, _, data in heard.lines))
        )  # a slow host is told besides what it missed
        tails = Connection.objects.filter(server=scene.server).values_list("log_tail", flat=True)

        # not at once: it is told every two seconds, of a flood that goes on too
        def seen() -> bool:
            return any(
                max(numbers(tail), default=-1) >= newest and "sent lines too fast)" in tail
                for tail in tails.all()
            )

        await until(lambda: outside(seen))


def numbers(text: str) -> list[int]:
    """Of the flood's lines in it."""
    return [int(found) for found in re.findall(r"\bline (\d+)$", text, re.MULTILINE)]


async def test_nobody_hears_a_line_that_may_be_anothers(stage, site, launched):
    """Calls of two hosts are out at one server, over one pipe; then the call of one, after that of
    the other has ended."""
    scene = await outside(Scene, stage, "legacy")
    one = Heard()
    two = Heard()
    async with contextlib.AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                connected("http", "legacy", scene, site, launched, logging_callback=heard)
            )
            for heard in (one, two)
        ]
        held = asyncio.ensure_future(first.call_tool(f"{scene.slug}__hold", {}))
        await until(
            lambda: outside(lambda: stage.calls(server_slug=scene.slug, state="dispatched"))
        )
        await second.call_tool(f"{scene.slug}__log", {})
        assert not (await held).is_error
        await second.call_tool(f"{scene.slug}__log", {})
    # the first call may still have something to say
    assert (len(one.lines), len(two.lines)) == (0, 0)
