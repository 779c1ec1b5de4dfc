"""Held calls with the official SDK's client, in both eras and through every door."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client
from mcp import types as t

from tests.fakes.stage import MODERN, Stage, Web, folder, fresh
from tests.gateway.held.conftest import Case

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]

DOORS = [(door, era) for door in ("http", "sse", "ws", "stdio") for era in ("legacy", MODERN)]


@contextlib.asynccontextmanager
async def client_at(
    door: str, era: str, stage: Stage, site: Web, token: str, **options: Any
) -> AsyncIterator[Client]:
    # One without a name of its own would be held for four seconds only, and one that went away less
    # than before.
    options["client_info"] = t.Implementation(name=fresh("patient"), version="1")
    if door != "stdio":
        async with site.client(token, era, door=door, **options) as client:
            yield client
    else:
        async with Client(
            stage.runmcp("--cwd", str(folder())), mode=era, cache=None, **options
        ) as client:
            yield client


@pytest.mark.exhaustive
@pytest.mark.parametrize(("door", "era"), DOORS)
async def test_progress_is_heard_and_the_result_comes_when_it_is_approved(
    stage, site, token, case: Case, door, era
):
    told = asyncio.Event()
    heard: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")
        told.set()

    async with client_at(door, era, stage, site, token) as client:
        calling = asyncio.create_task(
            client.call_tool("echo__ask", case.arguments, progress_callback=on_progress)
        )
        await told.wait()
        await case.approve()
        result = await calling
    assert heard[0].startswith("Waiting for an approver")
    assert result.structured_content["arguments"] == case.arguments
    assert len(case.sent()) == 1


@pytest.mark.exhaustive(but=("stdio-legacy",))
@pytest.mark.parametrize(("door", "era"), DOORS)
async def test_the_person_at_the_client_confirms(stage, site, token, case: Case, door, era):
    asked: list[t.ElicitRequestParams] = []

    async def person(context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
        asked.append(params)
        return t.ElicitResult(action="accept", content={"confirm": True})

    async with client_at(door, era, stage, site, token, elicitation_callback=person) as client:
        result = await client.call_tool("echo__mine", case.arguments)
    assert result.structured_content["arguments"] == case.arguments
    assert [params.mode for params in asked] == ["form"]
    assert len(case.sent()) == len(await case.calls()) == 1


@pytest.mark.exhaustive(but=("http-2026-07-28",))
@pytest.mark.parametrize(("door", "era"), DOORS)
async def test_a_client_that_gives_up_on_the_call_takes_the_request_along(
    stage, site, token, case: Case, door, era
):
    async with client_at(door, era, stage, site, token) as client:
        calling = asyncio.create_task(client.call_tool("echo__ask", case.arguments))
        await case.request()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await case.until("cancelled")
        assert (
            await client.call_tool("mcp_approval_status", {"id": (await case.request()).pk})
        ).structured_content["state"] == "cancelled"
    assert case.sent() == []
