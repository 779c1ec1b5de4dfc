"""Hosts of the older era (2025-11-25): the lanes answer as the SDK does, and any process serves any
session."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError

from mcpregistry.calls.engine import Engine
from mcpregistry.db import estimate_database_now
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Grant, HostMessage, HostSession, HostStream, Invocation
from mcpregistry.services import host_sessions, host_streams
from tests.fakes.stage import Stage, in_order, outside
from tests.gateway.doors import Corpus, Doors, anonymous, doors, said
from tests.gateway.test_fast import FIELDS, rows, slug_of_all  # noqa: F401 - the fixture
from tests.waiting import HANG_LIMIT, until

one_database = pytest.mark.one_database


@pytest.fixture
async def slug(stage: Stage) -> str:
    return await outside(rows, stage)


def calling(session: str, tool: str, arguments: Any = ..., **meta: Any) -> Corpus:
    given = {} if arguments is ... else {"arguments": arguments}
    return Corpus(
        "tools/call", session=session, name=tool, **given, **({"_meta": meta} if meta else {})
    )


async def both_ways(both: Doors, name: str, corpus: Corpus, content: bytes | None = None) -> Any:
    return said(
        await both.same(name, "POST", content or corpus.request(), list(corpus.usual.items()))
    )


async def recorded(slug: str) -> list[dict[str, Any]]:
    found = in_order(Invocation.objects.filter(agent_slug=slug, finished_at__isnull=False))
    return await outside(lambda: list(found.values(*FIELDS)))


@pytest.mark.exhaustive
@one_database
@pytest.mark.parametrize("version", ["2025-11-25", "2024-11-05"])
async def test_every_odd_body_and_header_gets_the_same_answer_and_record_with_and_without_the_lanes(
    stage, slug, version
):
    async with doors(slug, stage.tokens[slug]) as both:
        session = await both.opened(version=version, elicitation={}, roots={"listChanged": True})
        echo = calling(
            session, f"{slug}-e__echo", {"text": "grüß 漢字 \u2028", "big": 10**25, "none": None}
        )
        listing = Corpus("tools/list", session=session)
        bodies = echo.bodies() | {
            **{
                f"arguments {v!r}": echo.params(arguments=v)
                for v in (None, [], "x", {}, ..., {"a": "\ud800"})
            },
            **{f"name {v!r}": echo.params(name=v) for v in (None, "", 7, ..., "echo")},
            "a task is asked for": echo.params(task={"ttl": 5}),
            **{f"list: {name}": content for name, content in listing.bodies().items()},
            **{
                f"list: cursor {v!r}": listing.params(cursor=v) for v in (None, "", 7, "x", "x.200")
            },
            "list: no params": listing.request(params=...),
        }
        before = 0
        for name, content in bodies.items():
            await both_ways(both, name, echo, content)
            made = (await recorded(slug))[before:]
            before += len(made)
            made = [{key: anonymous(str(value)) for key, value in row.items()} for row in made]
            if made[: len(made) // 2] != made[len(made) // 2 :]:
                both.differences[f"records of {name}"] = made
        for name, given in echo.headers().items():
            if "2026" not in name and "2030" not in name:  # those are requests of the other era
                await both.same(name, "POST", echo.request(), given)
        plain = await both_ways(both, "plain", echo)
        tools = await both_ways(both, "tools", listing)
    assert both.differences == {}
    assert plain[1][-1]["result"]["structuredContent"]["arguments"]["big"] == 10**25
    assert len(tools[1][0]["result"]["tools"]) == 5
    assert before > 20


@pytest.mark.exhaustive
@one_database
async def test_every_kind_of_end_is_told_alike(stage, slug_of_all):  # noqa: F811
    slug = slug_of_all
    async with doors(slug, stage.tokens[slug]) as both:
        session = await both.opened()
        tools: dict[str, tuple[Any, ...]] = {
            "all content": (f"{slug}-m__all",),
            "number": (f"{slug}-x__number",),
            "array": (f"{slug}-x__array", {}),
            "refused by the server": (f"{slug}-e__refuse", {}),
            "arguments do not fit": (f"{slug}-e__strict", {"n": "seven"}),
            "unknown tool": (f"{slug}-e__nothing", {}),
            "a mirrored argument": (f"{slug}-e__where", {"region": "north"}),
            "the server crashes": (f"{slug}-c__crash", {}),
        }
        answers = {
            name: await both_ways(both, name, calling(session, *given))
            for name, given in tools.items()
        }
        steps = calling(session, f"{slug}-s__count", {"steps": 4}, progressToken="t")
        answers["progress"] = await both_ways(both, "progress", steps)
        refused = calling(
            session, f"{slug}-s__count", {"steps": 3, "refuse": True}, progressToken=2
        )
        answers["a refusal after progress"] = await both_ways(
            both, "a refusal after progress", refused
        )
    assert both.differences == {}
    assert [message.get("method") for message in answers["progress"][1]] == [
        "notifications/progress"
    ] * 4 + [None]
    assert answers["a refusal after progress"][1][-1]["result"]["isError"] is True
    assert (
        answers["the server crashes"][1][0]["result"]["structuredContent"]["state"]
        == InvocationState.UNKNOWN
    )


@one_database
async def test_plain_calls_use_the_lane_and_it_needs_no_transport(stage, slug, monkeypatch):
    """Otherwise all the comparing above would compare the SDK with itself."""
    served = []
    proceed = Engine.proceed

    async def note(engine: Engine, judged: Any) -> Any:
        served.append(judged.call.request.host.name)
        return await proceed(engine, judged)

    monkeypatch.setattr(Engine, "proceed", note)
    monkeypatch.setattr(Engine, "call", lambda engine, request: engine.pipeline.run(request))
    async with doors(slug, stage.tokens[slug]) as first, doors(slug, stage.tokens[slug]) as other:
        session = await first.opened()
        echo = calling(session, f"{slug}-e__echo", {"text": "x"}, progressToken=7)
        for each in (first, other):  # once with the start of the server, which may take a while
            await each.ask(True, "POST", echo.request(), list(echo.usual.items()))
        answers = [
            await each.ask(True, "POST", echo.request(), list(echo.usual.items()))
            for each in (first, other)
        ]
        assert other.app._manager._server_instances == {}
    assert [(status, kind) for status, kind, _ in answers] == [(200, "application/json")] * 2
    assert served == ["raw"] * 4


# Several processes


async def test_a_session_is_served_by_any_process_and_ends_in_all(stage, slug):
    """Also by the SDK's own way, by one that starts later, and after the one that opened it has
    gone."""
    token = stage.tokens[slug]
    async with doors(slug, token) as other:
        async with doors(slug, token) as first:
            session = await first.opened()
        echo = calling(session, f"{slug}-e__echo", {"text": "x"})
        usual = list(echo.usual.items())
        async with doors(slug, token) as later:
            for each, lane in ((other, True), (other, False), (later, False), (later, True)):
                status, answer = said(await each.ask(lane, "POST", echo.request(), usual))
                assert (status, answer[0]["result"]["structuredContent"]["arguments"]) == (
                    200,
                    {"text": "x"},
                )
            ended: list[str] = []
            later.app.sessions.ended.append(ended.append)
            assert (await other.ask(True, "DELETE", b"", usual))[0] == 200
            await until(lambda: ended)
            assert ended == [session]
            for each, lane in ((other, True), (other, False), (later, True), (later, False)):
                assert (await each.ask(lane, "POST", echo.request(), usual))[0] == 404
            await until(lambda: not later.app._manager._server_instances)
    row = await outside(HostSession.objects.get, pk=session)
    assert (row.agent_slug, row.endpoint_slug, row.ended_at is None) == (slug, slug, False)


class Stream:
    """A host's GET, or POST, that stays open: what comes on it, until it leaves."""

    def __init__(
        self,
        both: Doors,
        method: str,
        corpus: Corpus,
        content: bytes = b"",
        *,
        query: str = "",
        **headers: str,
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        given = [*corpus.usual.items(), ("authorization", f"Bearer {both.token}"), *headers.items()]
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given]
        scope = {"type": "http", "method": method, "path": f"/mcp/{both.endpoint}", "headers": raw}
        scope["query_string"] = query.encode()
        self._events = [{"type": "http.request", "body": content}]
        self.task = asyncio.create_task(both.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._events:
            return self._events.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: dict[str, Any]) -> None:
        self.sent.append(event)
        if event["type"] == "http.response.body" and not event.get("more_body"):
            self.left.set()  # ASGI: after the end of an answer, receive() returns http.disconnect

    @property
    def over(self) -> bool:
        """Whether the answer has ended."""
        return (
            bool(self.sent)
            and self.sent[-1]["type"] == "http.response.body"
            and not self.sent[-1].get("more_body")
        )

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"]) if self.sent else 0

    @property
    def body(self) -> str:
        return b"".join(event.get("body", b"") for event in self.sent).decode()

    @property
    def messages(self) -> list[dict[str, Any]]:
        found = [
            line.removeprefix("data: ")
            for line in self.body.split("\r\n")
            if line.startswith("data: {")
        ]
        return [json.loads(line) for line in found]

    async def leave(self) -> None:
        self.left.set()
        await asyncio.wait_for(self.task, HANG_LIMIT)


async def test_a_stream_lives_where_it_was_opened_and_hears_of_changes(stage, slug):
    async with doors(slug, stage.tokens[slug]) as first, doors(slug, stage.tokens[slug]) as other:
        session = await first.opened()
        stream = Stream(other, "GET", Corpus("tools/list", session=session))
        await until(lambda: stream.status == 200)
        await outside(lambda: Grant.objects.filter(agent__slug=slug).delete())
        await until(lambda: any("list_changed" in str(message) for message in stream.messages))
        await stream.leave()


async def test_a_word_about_a_request_reaches_the_process_that_serves_it(stage, slug):
    """Of the lane and of the SDK's way. The host's connection may be lost meanwhile; the call goes
    on until its word."""
    async with AsyncExitStack() as stack:
        first, other = [
            await stack.enter_async_context(doors(slug, stage.tokens[slug])) for _ in range(2)
        ]
        session = await first.opened()
        slow = calling(session, f"{slug}-s__count", {"steps": 1, "pause": 100})
        for number, lane in enumerate((True, False)):
            first.app.lanes = first.lanes if lane else {}
            stream = Stream(first, "POST", slow, slow.request(id=f"slow-{number}"))
            await until(
                lambda: first.app.engine.pool.list_states() and first.app.engine._in_flight._running
            )
            note = {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": f"slow-{number}"},
            }
            answer = await other.ask(
                True, "POST", json.dumps(note).encode(), list(slow.usual.items())
            )
            assert answer[0] == 202
            await asyncio.wait_for(stream.task, HANG_LIMIT)
            said_last = stream.messages[-1] if stream.messages else json.loads(stream.body)
            assert said_last["error"] == {"code": -32800, "message": "Request cancelled"}
    assert {row["state"] for row in await recorded(slug)} <= {
        InvocationState.UNKNOWN,
        InvocationState.NOT_SENT,
    }
    assert len(await recorded(slug)) == 2


@pytest.mark.exhaustive
@one_database
async def test_a_lost_connection_does_not_cancel_a_call_of_the_older_era(stage, slug, tmp_path):
    async with doors(slug, stage.tokens[slug]) as both:
        slow = calling(await both.opened(), f"{slug}-s__count", {"until": str(tmp_path / "done")})
        stream = Stream(both, "POST", slow, slow.request())
        await until(lambda: both.app.engine._in_flight._running)
        stream.left.set()
        (tmp_path / "done").touch()  # the call ends only now, so its host has left before
        await stream.leave()
    assert [row["state"] for row in await recorded(slug)] == [InvocationState.SUCCEEDED]


async def answered_later(stream: Stream, path: Doors, corpus: Corpus) -> tuple[str, dict[str, Any]]:
    """The host loses its connection, then reads on at ``path``: the id of the event, and the
    answer."""
    await until(lambda: "id: " in stream.body)
    event_id = stream.body.split("id: ")[1].split("\r\n")[0]
    stream.left.set()
    again = Stream(path, "GET", corpus, last_event_id=event_id)
    await asyncio.wait_for(again.task, HANG_LIMIT)
    assert again.status == 200
    return event_id, again.messages[-1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("lane", [True, False])
async def test_a_host_that_lost_its_connection_reads_the_answer_at_another_process(
    stage, slug, lane
):
    async with doors(slug, stage.tokens[slug]) as first, doors(slug, stage.tokens[slug]) as other:
        first.app.lanes = first.lanes if lane else {}
        slow = calling(await first.opened(), f"{slug}-s__count", {"steps": 1, "pause": 2})
        event_id, answer = await answered_later(
            Stream(first, "POST", slow, slow.request(id="a")), other, slow
        )
        assert (answer["id"], answer["result"].get("isError", False)) == ("a", False)
        # of the session, and of another one
        strangers = [slow, calling(await first.opened(), f"{slug}-s__count")]
        for corpus, known in zip(strangers, (True, False), strict=True):
            again = Stream(other, "GET", corpus, last_event_id=event_id)
            await until(lambda again=again: again.status == 200)
            if known:
                await asyncio.wait_for(again.task, HANG_LIMIT)
            assert bool(again.messages) is known
            await again.leave()


@pytest.mark.exhaustive
@one_database
async def test_a_session_does_not_idle_while_a_plain_call_runs(stage, slug, tmp_path):
    async with doors(slug, stage.tokens[slug]) as at:
        session = await at.opened()
        signal = tmp_path / "signal"
        slow = calling(session, f"{slug}-s__count", {"until": str(signal)})
        first = Stream(at, "POST", slow, slow.request(id="slow"))
        await until(lambda: at.app.engine._in_flight._running)
        await at.app.sessions._write_down()
        await outside(
            HostSession.objects.filter(pk=session).update,
            seen_at=estimate_database_now() - host_sessions.IDLE,
        )
        at.app.sessions.get_known(session).used -= host_sessions.IDLE.total_seconds()
        await at.app.sessions._write_down()
        assert (
            await outside(HostSession.objects.get, pk=session)
        ).seen_at > estimate_database_now() - host_sessions.IDLE / 2
        note = {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": "slow"},
        }
        assert (await at.ask(True, "POST", json.dumps(note).encode(), list(slow.usual.items())))[
            0
        ] == 202
        await asyncio.wait_for(first.task, HANG_LIMIT)
        assert "Request cancelled" in first.body


async def test_what_is_not_known_is_no_error_but_a_stream(stage, slug):
    async with doors(slug, stage.tokens[slug]) as both:
        session = await both.opened()
        for event_id in ("1", "", "\xff", "x" * 5_000, "0" * 32 + ".7"):
            stream = Stream(
                both, "GET", Corpus("tools/list", session=session), last_event_id=event_id
            )
            await until(lambda stream=stream: stream.status)
            assert stream.status == 200
            await stream.leave()


async def test_the_answer_of_a_process_that_died_is_in_the_record_of_the_call(stage, slug):
    def kept(call_id: str, method: str = "tools/call") -> str:
        request = json.dumps({"id": 7, "method": method, "uri": ""})
        return host_streams.begin_stream(session_id=session, request=request, call_id=call_id)

    async with doors(slug, stage.tokens[slug]) as both:
        session = await both.opened()
        echo = calling(session, f"{slug}-e__echo", {"text": "kept"})
        await both.ask(True, "POST", echo.request(), list(echo.usual.items()))
        call = (await outside(lambda: list(Invocation.objects.filter(agent_slug=slug))))[0]
        ended = await outside(kept, call.pk)
        lost = await outside(kept, "")
        await outside(
            HostStream.objects.filter(pk=lost).update,
            asked_at=call.received_at - timedelta(hours=1),
        )
        found = [Stream(both, "GET", echo, last_event_id=f"{each}.0") for each in (ended, lost)]
        for each in found:
            await asyncio.wait_for(each.task, HANG_LIMIT)
    result = found[0].messages[-1]
    unknown = found[1].messages[-1]
    assert (result["id"], result["result"]["structuredContent"]["arguments"]) == (
        7,
        {"text": "kept"},
    )
    assert (unknown["id"], "not stored" in unknown["error"]["message"]) == (7, True)


@pytest.mark.exhaustive
async def test_one_session_too_many_ends_the_one_that_idled_longest(stage, slug, monkeypatch):
    monkeypatch.setattr(host_sessions, "MOST", 2)
    async with doors(slug, stage.tokens[slug]) as both:
        sessions = [await both.opened() for _ in range(3)]
        lists = [Corpus("tools/list", session=session) for session in sessions]
        await until(lambda: both.app.sessions.get_known(sessions[0]) is None)
        found = [
            (await both.ask(True, "POST", each.request(), list(each.usual.items())))[0]
            for each in lists
        ]
    assert found == [404, 200, 200]
    kept = await outside(
        lambda: [HostSession.objects.get(pk=session).client for session in sessions]
    )
    # what a host says of itself may be long
    assert [bool(client) for client in kept] == [False, True, True]


async def test_what_idles_ends_and_is_forgotten(stage, slug):
    def sweep(periods: float) -> int:
        began = HostSession.objects.filter(pk=session).values_list("created_at", flat=True)
        return host_sessions.end_idle_sessions(began[0] + host_sessions.IDLE * periods)

    await outside(HostSession.objects.all().delete)  # those of other tests
    async with doors(slug, stage.tokens[slug]) as both:
        session = await both.opened()
        assert await outside(sweep, 0.5) == 0
        # which is no message: nobody stumbles over it
        await outside(host_sessions.send_host_message, session, "{}")
        assert await outside(sweep, 2) == 1
        listing = Corpus("tools/list", session=session)
        await until(lambda: both.app.sessions.get_known(session) is None)
        assert (await both.ask(True, "POST", listing.request(), list(listing.usual.items())))[
            0
        ] == 404
    await outside(sweep, 4)
    assert await outside(lambda: HostSession.objects.count() + HostMessage.objects.count()) == 0


@one_database
async def test_without_a_database_nothing_is_lost_and_no_answer_is_a_500(stage, slug, monkeypatch):
    def away(*_: Any, **__: Any) -> Any:
        raise DatabaseError

    async with doors(slug, stage.tokens[slug]) as both:
        session = await both.opened()
        echo = calling(session, f"{slug}-e__echo", {"text": "x"})
        usual = list(echo.usual.items())
        for name in ("find_running_session", "end_session"):
            monkeypatch.setattr(host_sessions, name, away)
        monkeypatch.setattr(host_streams, "find_stream_by_event", away)
        assert (await both.ask(True, "DELETE", b"", usual))[0] == 503
        assert (await both.ask(True, "GET", b"", [*usual, ("last-event-id", "x.1")]))[0] == 503
        # it was looked up before
        assert (await both.ask(True, "POST", echo.request(), usual))[0] == 200
        both.app.sessions._known.clear()
        assert (await both.ask(True, "POST", echo.request(), usual))[0] == 503
        monkeypatch.undo()
        assert (await both.ask(True, "POST", echo.request(), usual))[0] == 200


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.attack
@one_database
@pytest.mark.parametrize(
    "lanes", [(True, True), (True, False), (False, False)], ids=["lane", "both", "sdk"]
)
async def test_an_id_that_is_in_use_is_refused_in_whichever_form(stage, slug, tmp_path, lanes):
    """The SDK takes 7 and "7" for one id, so the second request would take the answer of the first
    one."""
    async with doors(slug, stage.tokens[slug]) as at:
        session = await at.opened()
        signal = tmp_path / "signal"
        slow = calling(session, f"{slug}-s__count", {"until": str(signal)})
        at.app.lanes = at.lanes if lanes[0] else {}
        first = Stream(at, "POST", slow, slow.request(id=7))
        await until(lambda: at.app.engine._in_flight._running)
        echo = calling(session, f"{slug}-e__echo", {"text": "x"})
        usual = list(echo.usual.items())
        for again in (7, "7"):
            status, _, answer = await at.ask(lanes[1], "POST", echo.request(id=again), usual)
            assert (status, answer["error"]["code"], answer["id"]) == (400, -32600, again)
        signal.touch()
        await asyncio.wait_for(first.task, HANG_LIMIT)
        assert "result" in first.messages[-1]
        assert (await at.ask(lanes[1], "POST", echo.request(id=7), usual))[0] == 200


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.attack
@one_database
@pytest.mark.parametrize("wrong", ["params", "too long", "no database"])
async def test_a_handshake_that_failed_leaves_no_session(stage, slug, monkeypatch, wrong):
    def away(**_: Any) -> Any:
        raise DatabaseError

    client = {"name": "x" * 70_000 if wrong == "too long" else "raw", "version": "1"}
    params = (
        {}
        if wrong == "params"
        else {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    )
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    ).encode()
    async with doors(slug, stage.tokens[slug]) as at:
        if wrong == "no database":
            monkeypatch.setattr(host_sessions, "begin_session", away)
        answer = said(
            await at.ask(True, "POST", body, list(Corpus("initialize").usual.items())[:2])
        )
        assert answer[1][0]["error"]["code"] in (-32602, -32603)
        await until(lambda: not at.app._manager._server_instances)
        await until(lambda: not at.app._manager._connections)
