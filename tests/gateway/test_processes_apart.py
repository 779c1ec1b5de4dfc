"""Several web processes that share sessions: what a server says outside of calls reaches the
process that has the host's stream."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mcpregistry.models import Server
from mcpregistry.services.servers import lifecycle
from tests.fakes.stage import ACTOR, Stage, outside
from tests.gateway.doors import Corpus, Doors, doors
from tests.gateway.talking import Scene
from tests.gateway.test_beside_calls import scene as beside
from tests.gateway.test_host_sessions import GUIDE, told, updates
from tests.gateway.test_older import Stream, calling
from tests.waiting import until

pytestmark = pytest.mark.one_database
ROUNDS = 6


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doors take each other for processes of their own."""
    numbers = itertools.count(1)
    monkeypatch.setattr(
        "mcpregistry.calls.engine.make_process_name",
        lambda kind: f"{kind}@box:{2**22 + next(numbers)}",
    )
    monkeypatch.setattr(
        "mcpregistry.calls.engine.choose_peer_address", lambda: tmp_path / f"{next(numbers)}.sock"
    )
    monkeypatch.setattr(
        "mcpregistry.calls.engine.get_marker_path", lambda: tmp_path / f"site-{next(numbers)}.peer"
    )
    monkeypatch.setattr("mcpregistry.downstream.peers.neighbours.is_alive", lambda pid: True)


@asynccontextmanager
async def running(stage: Stage, slug: str, count: int) -> AsyncIterator[list[Doors]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(doors(slug, stage.tokens[slug])) for _ in range(count)
        ]


def by_session(slug: str) -> None:
    server = Server.objects.get(slug=slug)
    server.shared_by = "session"
    server = lifecycle.save_server(server=server, actor=ACTOR)
    lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())


async def listening(at: Doors, session: str) -> Stream:
    stream = Stream(at, "GET", calling(session, "none"))
    await until(lambda: stream.status == 200)
    return stream


@pytest.mark.exhaustive
async def test_a_log_line_outside_of_calls_reaches_the_stream_at_a_third_process(
    stage: Stage,
) -> None:
    slug = await outside(beside, stage)
    await outside(by_session, slug)
    async with running(stage, slug, 3) as (owner, caller, third):
        session = await owner.opened()
        stream = await listening(third, session)
        for at, line in ((owner, ""), (caller, "late")):
            arguments = {"line": line}
            assert (
                await told(at, session, "tools/call", name=f"{slug}__later", arguments=arguments)
            )[0] == 200
        assert [owned(each) for each in (owner, caller, third)] == [1, 0, 0]
        await until(lambda: lines(stream) == ["late"])
        await stream.leave()


def owned(at: Doors) -> int:
    """How many connections of sessions this process has."""
    placement = at.app.engine.placement
    return sum(placement.is_us(owner) for owner in placement._owners.values())


def lines(stream: Stream) -> list[str]:
    return [
        each["params"]["data"]
        for each in stream.messages
        if each.get("method") == "notifications/message"
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("shared_by", ["session", "everybody"])
async def test_changes_by_every_process_reach_the_stream_at_one_of_them(
    stage: Stage, shared_by: str
) -> None:
    scene = await outside(Scene, stage, "legacy")
    if shared_by == "session":
        await outside(by_session, scene.slug)
    async with running(stage, scene.slug, 3) as processes:
        session = await processes[0].opened()
        stream = await listening(processes[1], session)
        assert (await told(processes[2], session, "resources/subscribe", uri=GUIDE))[0] == 200
        # it may have changed before the stream's process listened
        await until(lambda: updates(stream))
        for number in range(ROUNDS):
            before = len(updates(stream))
            at = processes[number % 3]
            await told(
                at, session, "tools/call", name=f"{scene.slug}__touch", arguments={"uri": GUIDE}
            )
            await until(lambda before=before: len(updates(stream)) > before)
        assert (await told(processes[0], session, "resources/unsubscribe", uri=GUIDE))[0] == 200
        for at in processes:
            await until(lambda at=at: counted(at, session, scene.slug))
        await stream.leave()


@pytest.mark.exhaustive
async def test_requests_at_the_same_time_are_served_by_a_process_that_does_not_know_the_session(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await outside(Scene, stage, "legacy")
    async with running(stage, scene.slug, 2) as (first, other):
        session = await first.opened()
        corpus = Corpus("tools/list", session=session)
        manager = other.app._manager
        serve = manager._serve

        async def serve_late(*arguments: Any, **options: Any) -> None:
            await asyncio.sleep(0.1)  # the other requests come in the meantime
            await serve(*arguments, **options)

        monkeypatch.setattr(manager, "_serve", serve_late)
        requests = (corpus.request(id=number) for number in range(1, 9))
        usual = list(corpus.usual.items())
        answers = await asyncio.gather(
            *(other.ask(False, "POST", request, usual) for request in requests)
        )
    assert [status for status, *_ in answers] == [200] * 8


async def counted(at: Doors, session: str, slug: str) -> bool:
    _, answer = await told(at, session, "tools/call", name=f"{slug}__count", arguments={})
    return answer[-1]["result"]["content"][-1]["text"] == "count 0"
