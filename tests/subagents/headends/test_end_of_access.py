"""Requests in progress at a headend end when the access of their client ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.db import db_call
from mcpregistry.models import Agent, Endpoint, Token
from mcpregistry.services.access import agents
from mcpregistry.services.access.tokens import revoke_token
from subagents.domain.lifecycle import RunState
from subagents.models import Run
from tests.subagents.headends.conftest import headend, token
from tests.subagents.headends.test_endings import COUNTS, INTERFACES, no_open_runs
from tests.subagents.kit import Bench
from tests.waiting import until


def revoke() -> None:
    revoke_token(token=Token.objects.get(), actor="test")


def disable() -> None:
    agent = Agent.objects.get(slug="ann")
    agent.enabled = False
    agents.save_agent(agent=agent, actor="test")


@pytest.mark.exhaustive(but=("openai-revoke", "anthropic-disable", "rest-revoke"))
@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("end_access", [revoke, disable], ids=["revoke", "disable"])
async def test_requests_in_progress_end_with_the_access_of_their_client(
    bench: Bench, serving: Any, interface: str, end_access: Callable[[], None]
) -> None:
    """Both a stream and a request for one answer, while the run goes on. The run is cancelled, as
    when a client disconnects."""
    kind, path, body, _ = INTERFACES[interface]

    def prepare() -> str:
        expert = bench.expert(
            bench.model("m", COUNTS, repeat=True), uses=[bench.server("slow", "count")]
        )
        expert.users.add(Agent.objects.get(slug="ann"))
        expert.endpoints.add(Endpoint.objects.get(slug="default"))
        headend(kind)
        return token()

    key = await db_call(prepare)
    served = await serving()
    bodies = (
        [body]
        if kind == "rest"
        else [body | {"model": "expert", "stream": stream} for stream in (False, True)]
    )
    async with contextlib.AsyncExitStack() as stack:
        asking = []
        for number, each in enumerate(bodies):
            asks = await stack.enter_async_context(served.client(key))
            asking.append(asyncio.ensure_future(asks.post(path, json=each)))
            await until(lambda made=number + 1: len(bench.sent()) == made)
        await db_call(end_access)
        answers = await asyncio.gather(*asking)
        await until(no_open_runs)
    assert answers[0].status_code == 401
    assert all("was revoked in the meantime" in each.text for each in answers)
    assert await db_call(lambda: {each.state for each in Run.objects.all()}) == {RunState.CANCELLED}
