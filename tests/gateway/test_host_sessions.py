"""What a host's session is to all processes together: what it wants to hear, what is kept for it,
and who it belongs to."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from django.db import OperationalError

from mcpregistry.domain.errors import QueueFullError, ResourceLimit
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.gateway.http import session_cache, session_stream
from mcpregistry.models import Grant, HostMessage, HostSession, HostStream, Server
from mcpregistry.services import host_sessions, host_streams
from mcpregistry.services.access import tokens
from mcpregistry.services.servers import lifecycle
from tests.fakes.stage import ACTOR, Stage, outside
from tests.gateway.doors import Corpus, Doors, doors, said
from tests.gateway.talking import Scene
from tests.gateway.test_fast import rows
from tests.gateway.test_older import Stream, calling, recorded
from tests.waiting import HANG_LIMIT, until

one_database = pytest.mark.one_database
GUIDE = "docs://guide"


@pytest.fixture
async def slug(stage: Stage) -> str:
    return await outside(rows, stage)


async def told(both: Doors, session: str, method: str, **params: Any) -> Any:
    corpus = Corpus(method, session=session, **params)
    return said(await both.ask(False, "POST", corpus.request(), list(corpus.usual.items())))


async def test_what_a_host_wants_to_hear_holds_in_every_process(stage):
    """The level of log lines, and subscriptions: said to one, the stream at another, and then at a
    third."""
    scene = await outside(Scene, stage)
    async with AsyncExitStack() as stack:
        first, other, third = [
            await stack.enter_async_context(doors(scene.slug, scene.token)) for _ in range(3)
        ]
        session = await first.opened()
        log = calling(session, f"{scene.slug}__log", {})
        touch = calling(session, f"{scene.slug}__touch", {"uri": GUIDE})

        async def levels() -> list[str]:
            _, lines = await told(
                other, session, "tools/call", name=f"{scene.slug}__log", arguments={}
            )
            return [
                line["params"]["level"]
                for line in lines
                if line.get("method") == "notifications/message"
            ]

        assert len(await levels()) == 7  # and now the other process knows the session
        assert (await told(first, session, "logging/setLevel", level="alert"))[0] == 200

        async def less() -> bool:
            return await levels() == ["alert", "emergency"]

        await until(less)
        for at in (other, third):
            stream = Stream(at, "GET", log)
            await until(lambda stream=stream: stream.status == 200)
            if at is other:
                for uri in (GUIDE, "repo://me/issues/7"):
                    assert (await told(first, session, "resources/subscribe", uri=uri))[0] == 200
                assert (
                    await told(first, session, "resources/unsubscribe", uri="repo://me/issues/7")
                )[0] == 200
            for times in (1, 2):  # once because it may have changed before, once because it has
                await until(lambda stream=stream, times=times: len(updates(stream)) >= times)
                assert set(updates(stream)) <= {GUIDE, "repo://me/issues/7"}
                await at.ask(False, "POST", touch.request(), list(touch.usual.items()))
            await stream.leave()
        assert (await told(third, session, "resources/unsubscribe", uri=GUIDE))[0] == 200
        assert await outside(host_sessions.list_subscriptions, session) == set()
        refused = (await told(first, session, "resources/subscribe", uri="nothing://here"))[1]
        assert "not found" in refused[-1]["error"]["message"]


@pytest.mark.exhaustive
async def test_what_could_not_be_read_or_followed_at_once_is_so_later(stage, monkeypatch):
    """A level that the database did not say; a subscription to what may only be read again after a
    while."""
    monkeypatch.setattr(session_stream, "LOOK_AGAIN", 0.1)
    monkeypatch.setattr(session_cache, "_AFTER_FAULT", 0.1)
    scene = await outside(Scene, stage)
    async with AsyncExitStack() as stack:
        first, other = [
            await stack.enter_async_context(doors(scene.slug, scene.token)) for _ in range(2)
        ]
        session = await first.opened()
        stream = Stream(other, "GET", calling(session, f"{scene.slug}__log", {}))
        await until(lambda: stream.status == 200)
        read = host_sessions.get_log_level
        faults = [OperationalError("busy")] * 2

        def broken(session_id: str) -> str:
            if faults:
                raise faults.pop()
            return read(session_id)

        monkeypatch.setattr(host_sessions, "get_log_level", broken)
        assert (await told(first, session, "logging/setLevel", level="alert"))[0] == 200
        assert (await told(first, session, "resources/subscribe", uri=GUIDE))[0] == 200
        await until(lambda: updates(stream) == [GUIDE])
        await until(
            lambda: (known := other.app.sessions.get_known(session)) and known.log_level == "alert"
        )
        assert not faults

        def busy(session_id: str, uri: str) -> None:
            raise OperationalError("busy")

        with monkeypatch.context() as patched:  # what its host is told has failed does not stand
            patched.setattr(host_sessions, "subscribe", busy)
            refused = (await told(other, session, "resources/subscribe", uri="repo://me/issues/7"))[
                1
            ]
            assert "database is unavailable" in refused[-1]["error"]["message"]

        async def one_left() -> bool:
            _, lines = await told(
                other, session, "tools/call", name=f"{scene.slug}__count", arguments={}
            )
            return "count 1" in str(lines[-1])

        await until(one_left)
        await stream.leave()

        await outside(Grant.objects.filter(agent=scene.agent).delete)
        await until(lambda: not other.app.engine.get_catalogue(scene.slug, scene.slug).entries)
        stream = Stream(other, "GET", calling(session, f"{scene.slug}__log", {}))
        await until(lambda: stream.status == 200)
        await outside(lambda: scene.grant(kind=""))
        await until(lambda: updates(stream) == [GUIDE])
        await stream.leave()


async def test_changed_lists_are_told_where_the_stream_is_whoever_heard_that_the_handshake_ended(
    stage, slug
):
    async with AsyncExitStack() as stack:
        first, other = [
            await stack.enter_async_context(doors(slug, stage.tokens[slug])) for _ in range(2)
        ]
        session = await first.opened(other)
        corpus = calling(session, f"{slug}-e__echo", {})
        stream = Stream(first, "GET", corpus)
        await until(lambda: stream.status == 200)
        await outside(disable, slug)
        await until(
            lambda: (
                "notifications/tools/list_changed"
                in [each.get("method") for each in stream.messages]
            )
        )
        await stream.leave()


def disable(slug: str) -> None:
    lifecycle.disable_server(server=Server.objects.get(slug=f"{slug}-e"), actor=ACTOR)


def updates(stream: Stream) -> list[str]:
    found = [
        each["params"]
        for each in stream.messages
        if each.get("method") == "notifications/resources/updated"
    ]
    return [each["uri"] for each in found]


async def test_a_websocket_whose_row_cannot_be_made_is_refused_with_the_reason(
    stage, slug, monkeypatch
):
    """It is not accepted first: people would not see it, and could not end it."""

    def away(**_: Any) -> None:
        raise OperationalError("away")

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(event: dict[str, Any]) -> None:
        heard.append(event)

    monkeypatch.setattr(host_sessions, "begin_session", away)
    heard: list[dict[str, Any]] = []
    headers = [
        (b"host", b"testserver"),
        (b"authorization", f"Bearer {stage.tokens[slug]}".encode()),
    ]
    scope = {
        "type": "websocket",
        "path": f"/mcp/{slug}/ws",
        "headers": headers,
        "subprotocols": ["mcp"],
    }
    async with doors(slug, stage.tokens[slug]) as both:
        await both.app(scope | {"extensions": {"websocket.http.response": {}}}, receive, send)
        start, body = heard
        assert (start["type"], start["status"]) == ("websocket.http.response.start", 503)
        refusal = json.loads(body["body"])["error"]
        assert (refusal["data"]["code"], "database is unavailable" in refusal["message"]) == (
            "BUSY",
            True,
        )
        assert not both.app._connections._taken


@one_database
@pytest.mark.parametrize("lane", [True, False])
async def test_an_answer_that_was_waited_for_does_not_reach_who_has_lost_access(
    stage, slug, lane, tmp_path
):
    async with doors(slug, stage.tokens[slug]) as both:
        both.app.lanes = both.lanes if lane else {}
        unseen = {"seen": "no progress is asked for"}
        slow = calling(
            await both.opened(), f"{slug}-s__count", {"until": str(tmp_path / "done")}, **unseen
        )
        stream = Stream(both, "POST", slow, slow.request(id="a"))
        await until(lambda: "id: " in stream.body)  # it can be read on
        event_id = stream.body.split("id: ")[1].split("\r\n")[0]
        again = Stream(both, "GET", slow, last_event_id=event_id)
        await until(lambda: again.status == 200)
        token = await outside(stage.token, slug)
        await outside(lambda: tokens.revoke_token(token=token, actor=ACTOR))
        await until(lambda: both.app.engine.find_agent(token.hash) is None)
        (tmp_path / "done").touch()
        await asyncio.wait_for(asyncio.gather(stream.task, again.task), HANG_LIMIT)
        assert (stream.messages, again.messages) == ([], [])
        assert (await both.ask(lane, "POST", slow.request(), list(slow.usual.items())))[0] == 401
    assert [row["state"] for row in await recorded(slug)] == [InvocationState.SUCCEEDED]


async def test_kept_answers_and_messages_are_sealed_and_bounded(stage, slug, monkeypatch):
    def story() -> None:
        host_sessions.begin_session(
            session_id=slug, agent=slug, endpoint=slug, version="2025-11-25", client="{}"
        )
        stream = host_streams.begin_stream(session_id=slug, request="{}", call_id="")
        host_streams.store_answer(stream, '{"said": "a secret"}')
        host_sessions.send_host_message(slug, '{"said": "a secret"}')
        rows = [
            *HostStream.objects.filter(pk=stream).values(),
            *HostMessage.objects.filter(session_id=slug).values(),
        ]
        assert "secret" not in str(rows)
        assert (
            host_streams.read_kept_answer(HostStream.objects.get(pk=stream))
            == '{"said": "a secret"}'
        )
        news = host_sessions.read_news(HostSession.objects.get(pk=slug).created_at)
        assert [body for _, session, body in news.messages if session == slug] == [
            '{"said": "a secret"}'
        ]
        for most, value in (("MOST_WAITING", 1), ("MOST_SAID", 100)):
            with monkeypatch.context() as patched:
                patched.setattr(host_sessions, most, value)
                with pytest.raises(QueueFullError, match="waiting to be delivered"):
                    host_sessions.send_host_message(slug, "{}")
                count = HostMessage.objects.filter(session_id=slug).count
                waiting = count()
                # ours is not the host's, and is said once
                host_sessions.set_log_level(slug, "alert")
                host_sessions.set_log_level(slug, "alert")
                assert count() == waiting + (most == "MOST_WAITING")
                patched.setattr(host_sessions, "MOST_SUBSCRIBED", 1)
                host_sessions.subscribe(slug, GUIDE)
                host_sessions.subscribe(slug, GUIDE)  # which it has already
                with pytest.raises(ResourceLimit, match="Unsubscribe"):
                    host_sessions.subscribe(slug, "docs://other")
                assert host_sessions.list_subscriptions(slug) == {GUIDE}
        other = f"{slug}-2"
        host_sessions.begin_session(
            session_id=other, agent=slug, endpoint=slug, version="2025-11-25", client="{}"
        )
        with monkeypatch.context() as patched:
            patched.setattr(host_sessions, "MOST_SAID_OF_AGENT", 100)
            with pytest.raises(QueueFullError, match="its agent"):
                host_sessions.send_host_message(other, "{}")
        host_sessions.send_host_message(other, "{}")
        HostSession.objects.filter(pk__in=[slug, other]).delete()

    await outside(story)
