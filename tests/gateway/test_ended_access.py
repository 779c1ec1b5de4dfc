"""When a token, an agent, an endpoint or a session ends, so does every stream of it, also one on
which nothing is said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.models import Agent, Endpoint, HostSession
from mcpregistry.services import host_sessions
from mcpregistry.services.access import agents, tokens
from tests.fakes.stage import ACTOR, Stage, outside
from tests.gateway.doors import Corpus, doors
from tests.gateway.test_fast import calling as modern_call
from tests.gateway.test_fast import rows
from tests.gateway.test_older import Stream
from tests.gateway.test_older import calling as older_call
from tests.waiting import until

pytestmark = pytest.mark.one_database


@pytest.fixture
async def slug(stage: Stage) -> str:
    return await outside(rows, stage)


def revoke(stage: Stage, slug: str) -> None:
    tokens.revoke_token(token=stage.token(slug), actor=ACTOR)


def disable(_: Stage, slug: str) -> None:
    agent = Agent.objects.get(slug=slug)
    agent.enabled = False
    agents.save_agent(agent=agent, actor=ACTOR)


def remove(_: Stage, slug: str) -> None:
    agents.delete_endpoint(
        endpoint=Endpoint.objects.get(slug=slug), actor=ACTOR, rights=grant_all_rights
    )


def end(_: Stage, slug: str) -> None:
    for session in HostSession.objects.filter(agent_slug=slug, ended_at=None):
        host_sessions.end_by_hand(session=session, actor=ACTOR)


class Streams:
    """One idle stream of each kind, at one process; ``older`` are those of a session, begun at
    another process."""

    def __init__(self, older: dict[str, Stream], others: dict[str, Stream]) -> None:
        self.older = older
        self.all = older | others

    def open(self) -> list[str]:
        return [name for name, stream in self.all.items() if not stream.over]


@contextlib.asynccontextmanager
async def streams(stage: Stage, slug: str, done: str) -> AsyncIterator[Streams]:
    token = stage.tokens[slug]
    async with doors(slug, token) as first, doors(slug, token) as at:
        session = await first.opened()
        slow = {"until": done}
        older = older_call(session, f"{slug}-s__count", slow, unseen={"no": "progress"})
        modern = modern_call(f"{slug}-s__count", slow)
        listen = Corpus("subscriptions/listen", notifications={"toolsListChanged": True})
        found = {"lane": Stream(at, "POST", older, older.request(id="lane"))}
        await until(lambda: "id: " in found["lane"].body)
        event_id = found["lane"].body.split("id: ")[1].split("\r\n")[0]
        found["resumed"] = Stream(at, "GET", older, last_event_id=event_id)
        found["own"] = Stream(at, "GET", older)
        at.app.lanes = {}
        found["sdk"] = Stream(at, "POST", older, older.request(id="sdk"))
        await until(lambda: "id: " in found["sdk"].body)
        at.app.lanes = at.lanes
        others = {"call": Stream(at, "POST", modern, modern.request())}
        others["listen"] = Stream(at, "POST", listen, listen.request())
        await until(lambda: all(each.status == 200 for each in [*found.values(), others["listen"]]))
        await until(lambda: len(at.app.engine._in_flight._running) == 3)
        try:
            yield Streams(found, others)
        finally:
            for stream in (found | others).values():
                stream.left.set()


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("ending", [revoke, disable, remove, end])
async def test_the_end_of_access_ends_every_stream_and_nothing_more_is_said(
    stage: Stage, slug: str, tmp_path: Any, ending: Callable[[Stage, str], None]
):
    async with streams(stage, slug, str(tmp_path / "done")) as found:
        kept = ["call", "listen"] if ending is end else []  # modern hosts have no session
        assert found.open() == list(found.all)
        await outside(ending, stage, slug)
        await until(lambda: found.open() == kept)
        told = {name: found.all[name].body for name in found.all if name not in kept}
        (tmp_path / "done").touch()
        await asyncio.gather(
            *(stream.task for name, stream in found.all.items() if name != "listen" or not kept)
        )
        assert {name: found.all[name].body for name in told} == told
        assert "result" not in str(told)
        assert found.all["call"].status == (200 if kept else 401)
