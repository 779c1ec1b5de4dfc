"""What a host sends to another process than the one that it concerns is passed on within bounds,
and kept no longer than needed."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from mcpregistry.gateway.http import question_ids
from mcpregistry.gateway.http.fastpath import older_sessions
from mcpregistry.models import Agent, HostMessage
from mcpregistry.services import host_sessions
from tests.fakes.stage import Stage, outside
from tests.gateway.doors import Corpus, Doors, doors
from tests.gateway.test_fast import recorded, rows
from tests.gateway.test_older import Stream, calling
from tests.waiting import HANG_LIMIT, until

pytestmark = pytest.mark.one_database


@pytest.fixture
async def slug(stage: Stage) -> str:
    return await outside(rows, stage)


async def post(at: Doors, session: str, message: dict[str, Any]) -> int:
    usual = list(Corpus("tools/list", session=session).usual.items())
    return (await at.ask(True, "POST", json.dumps({"jsonrpc": "2.0"} | message).encode(), usual))[0]


def kept(session: str) -> list[int]:
    return list(HostMessage.objects.filter(session_id=session).values_list("size", flat=True))


async def no_more_kept(session: str) -> bool:
    return await outside(kept, session) == []


@pytest.mark.attack
async def test_answers_to_questions_that_nobody_asked_are_not_kept(stage, slug):
    async with doors(slug, stage.tokens[slug]) as first, doors(slug, stage.tokens[slug]) as other:
        session = await first.opened()
        foreign = question_ids.make_question_id("another session", 1)
        for request_id in (
            1,
            -1,
            "x",
            2**60,
            foreign,
            str(foreign),
            1.5,
            question_ids.make_question_id(session, 1) + 1,
        ):
            for at in (first, other):
                assert await post(
                    at, session, {"id": request_id, "result": {"text": "x" * 60_000}}
                ) in (202, 400)
        assert await outside(kept, session) == []


async def test_an_answer_reaches_its_question_once_and_is_not_kept(stage, slug):
    async with AsyncExitStack() as stack:
        first, other = [
            await stack.enter_async_context(doors(slug, stage.tokens[slug])) for _ in range(2)
        ]
        session = await first.opened(roots={})
        stream = Stream(first, "GET", calling(session, f"{slug}-e__echo"))
        await until(lambda: stream.status == 200)
        connection = first.app._manager._connections[session]
        asking = [
            asyncio.ensure_future(connection.send_raw_request("roots/list", {})) for _ in range(2)
        ]
        await until(lambda: len(stream.messages) == 2)
        asked = [message["id"] for message in stream.messages]
        assert max(asked) < 2**53
        for request_id in asked:
            for _ in range(3):
                assert (
                    await post(other, session, {"id": request_id, "result": {"roots": []}}) == 202
                )
        assert await asyncio.gather(*asking) == [{"roots": []}] * 2
        await until(lambda: no_more_kept(session))
        await stream.leave()


async def test_a_cancellation_that_was_taken_is_not_kept_and_holds_nothing_but_the_id(
    stage, slug, tmp_path
):
    async with AsyncExitStack() as stack:
        first, other = [
            await stack.enter_async_context(doors(slug, stage.tokens[slug])) for _ in range(2)
        ]
        session = await first.opened()
        slow = calling(session, f"{slug}-s__count", {"until": str(tmp_path / "never")})
        for number, lane in enumerate((True, False)):
            first.app.lanes = first.lanes if lane else {}
            stream = Stream(first, "POST", slow, slow.request(id=f"slow-{number}"))
            await until(lambda: first.app.engine._in_flight._running)
            params = {"requestId": f"slow-{number}", "reason": "x" * 50_000}
            assert (
                await post(other, session, {"method": "notifications/cancelled", "params": params})
                == 202
            )
            await asyncio.wait_for(stream.task, 30)
            await until(lambda: no_more_kept(session))
        for params in ({"requestId": [1]}, {}):
            assert (
                await post(other, session, {"method": "notifications/cancelled", "params": params})
                == 202
            )
        assert await outside(kept, session) == []
        await post(
            other,
            session,
            {
                "method": "notifications/cancelled",
                "params": {"requestId": "gone", "reason": "x" * 9},
            },
        )
        assert max(await outside(kept, session)) < 300


async def cancel(at: Doors, session: str, request: int | str) -> int:
    return await post(
        at, session, {"method": "notifications/cancelled", "params": {"requestId": request}}
    )


@pytest.mark.exhaustive
@pytest.mark.attack
async def test_cancellation_is_passed_on_however_many_unknown_requests_were_cancelled(
    stage, slug, tmp_path
):
    async with doors(slug, stage.tokens[slug]) as first, doors(slug, stage.tokens[slug]) as other:
        session = await first.opened()
        slow = calling(session, f"{slug}-s__count", {"until": str(tmp_path / "never")})
        for request in ("slow", "slow" * 100, "slow"):  # some hosts use an id again
            stream = Stream(first, "POST", slow, slow.request(id=request))
            await until(lambda: first.app.engine._in_flight._running)
            for number in range(101):
                assert await cancel(other, session, f"unknown-{number}") == 202
            assert await cancel(other, session, request) == 202
            await asyncio.wait_for(stream.task, HANG_LIMIT)

        async def all_cancelled() -> bool:
            return [row["error_code"] for row in await recorded(slug)] == ["CANCELLED"] * 3

        await until(all_cancelled)


async def test_cancellations_that_no_process_took_are_kept_once_and_for_a_short_time(
    stage, slug, monkeypatch
):
    async with doors(slug, stage.tokens[slug]) as first, doors(slug, stage.tokens[slug]) as other:
        session = await first.opened()
        for request in (1, 1, 2, 3):
            assert await cancel(other, session, 100 + request) == 202
        assert len(await outside(kept, session)) == 3
        with monkeypatch.context() as patched:
            patched.setattr(older_sessions, "_CANCELLED_SECONDS", 0.0)
            assert await cancel(other, session, 104) == 202
        assert len(await outside(kept, session)) == 1


async def test_cancellation_that_could_not_be_passed_on_is_refused_and_can_be_sent_again(
    stage, slug, monkeypatch
):
    async with doors(slug, stage.tokens[slug]) as first, doors(slug, stage.tokens[slug]) as other:
        session = await first.opened()
        with monkeypatch.context() as patched:
            patched.setattr(host_sessions, "MOST_WAITING", 0)
            assert await cancel(other, session, 100) == 503
        assert await cancel(other, session, 100) == 202
        assert len(await outside(kept, session)) == 1


async def test_what_is_passed_on_counts_among_the_calls_of_the_agent(stage, slug):
    await outside(Agent.objects.filter(slug=slug).update, calls_per_minute=3)
    async with doors(slug, stage.tokens[slug]) as first, doors(slug, stage.tokens[slug]) as other:
        session = await first.opened()
        # the last ones are still passed on: a call must be stopped however many were made
        for number in range(5):
            message = {
                "method": "notifications/cancelled",
                "params": {"requestId": 100 + number},
            }  # no id of a request below
            assert await post(other, session, message) == 202
        assert len(await outside(kept, session)) == 5
        echo = calling(session, f"{slug}-e__echo", {"text": "x"})
        answer = await other.ask(True, "POST", echo.request(), list(echo.usual.items()))
        assert "RATE_LIMITED" in str(answer)


@pytest.mark.exhaustive
@pytest.mark.attack
async def test_what_is_posted_to_a_stream_of_another_process_counts_too_and_is_not_kept(
    stage, slug
):
    await outside(Agent.objects.filter(slug=slug).update, calls_per_minute=3)
    token = stage.tokens[slug]
    async with doors(slug, token) as first, doors(slug, token) as other:
        first.endpoint = f"{slug}/sse"
        other.endpoint = first.endpoint
        stream = Stream(first, "GET", Corpus("tools/list"))
        await until(lambda: "session_id=" in stream.body)
        session = stream.body.split("session_id=")[1].split("\r\n")[0]
        statuses = []
        for number in range(5):
            ping = Corpus("ping")
            sent = Stream(
                other, "POST", ping, ping.request(id=number), query=f"session_id={session}"
            )
            await asyncio.wait_for(sent.task, 30)
            statuses.append(sent.status)
        assert statuses == [202, 202, 202, 429, 429]
        await until(lambda: no_more_kept(session))
        await stream.leave()


def test_a_word_of_a_changed_row_is_kept_once(live_db, slug):
    host_sessions.begin_session(
        session_id=slug, agent=slug, endpoint=slug, version="2025-11-25", client="{}"
    )
    for number in range(50):
        host_sessions.set_log_level(slug, ("alert", "debug")[number % 2])
    assert kept(slug) == [0]
