"""The lane for plain calls answers and records what the SDK's way would, to everything that anyone
may ask."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mcpregistry.calls.engine import Engine
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import Decision, RuleOutcome
from mcpregistry.gateway.http.body import PlainRequest
from mcpregistry.gateway.http.response import CallResponse
from mcpregistry.models import Invocation
from tests.fakes.stage import Stage, fresh, in_order, listed, outside
from tests.gateway.doors import META, Corpus, Doors, anonymous, doors
from tests.waiting import HANG_LIMIT, until

pytestmark = pytest.mark.one_database

STRICT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
MIRRORED = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
}
FIELDS = (
    "exposed_name",
    "arguments",
    "outcome",
    "state",
    "error_code",
    "result",
    "origin",
    "host_name",
    "request_id",
)


def rows(stage: Stage, *, every_server: bool = False) -> str:
    """Make an endpoint and an agent with servers of its own, two or all six; return the slug of
    both."""
    slug = fresh("fast")
    stage.endpoint(slug)
    tools = [
        *listed("echo", "refuse"),
        *listed("strict", inputSchema=STRICT),
        *listed("where", inputSchema=MIRRORED),
    ]
    servers = [
        stage.fake("echo", tools, slug=f"{slug}-e"),
        stage.fake("slow", listed("count"), slug=f"{slug}-s"),
    ]
    if every_server:
        servers += [
            stage.fake("multi", listed("all"), slug=f"{slug}-m"),
            stage.fake("shapes", listed("number", "array"), slug=f"{slug}-x"),
            # One for each time that it is to crash: soon after the second it would be left alone
            # for a while.
            stage.fake("crash", listed("crash"), slug=f"{slug}-c"),
            stage.fake("crash", listed("crash"), slug=f"{slug}-d"),
        ]
    stage.agent(slug, *servers)
    return slug


def calling(tool: str, arguments: Any = ..., **meta: Any) -> Corpus:
    given = {} if arguments is ... else {"arguments": arguments}
    return Corpus(
        "tools/call", named=tool, name=tool, **given, **({"_meta": META | meta} if meta else {})
    )


@pytest.fixture
async def slug(stage: Stage) -> str:
    return await outside(rows, stage)


@pytest.fixture
async def slug_of_all(stage: Stage) -> str:
    """With servers for each kind of end."""
    return await outside(rows, stage, every_server=True)


async def both_ways(both: Doors, name: str, corpus: Corpus, content: bytes | None = None) -> Any:
    return await both.same(name, "POST", content or corpus.request(), list(corpus.usual.items()))


async def recorded(slug: str) -> list[dict[str, Any]]:
    found = in_order(Invocation.objects.filter(agent_slug=slug, finished_at__isnull=False))
    return await outside(lambda: list(found.values(*FIELDS)))


async def test_every_odd_body_gets_the_same_answer_and_record_with_and_without_the_lane(
    stage, slug
):
    echo = calling(
        f"{slug}-e__echo", {"text": "grüß 漢字 \u2028", "big": 10**25, "none": None, "f": 1e2}
    )
    bodies = echo.bodies() | {
        **{
            f"arguments {v!r}": echo.params(arguments=v)
            for v in (None, [], "x", {}, ..., {"a": "\ud800"})
        },
        **{
            f"name {v!r}": echo.params(name=v)
            for v in (None, "", 7, ..., "echo", f"{slug}-e::echo")
        },
        "infinite": echo.params(arguments={"n": 1}).replace(b'"n": 1', b'"n": 1e999'),
        "not a number inside": echo.params(arguments={"n": 1}).replace(b'"n": 1', b'"n": NaN'),
        "answers to questions": echo.params(inputResponses={}),
        "a state": echo.params(requestState="x"),
    }
    async with doors(slug, stage.tokens[slug]) as both:
        before = 0
        counted = {}
        for name, content in bodies.items():
            await both_ways(both, name, echo, content)
            made = (await recorded(slug))[before:]
            before += len(made)
            counted[name] = len(made)
            made = [{key: anonymous(str(value)) for key, value in row.items()} for row in made]
            if made[: len(made) // 2] != made[len(made) // 2 :]:
                both.differences[f"records of {name}"] = made
        plain = await both_ways(both, "plain", echo)
    assert both.differences == {}
    assert plain[0] == 200
    assert plain[2]["result"]["structuredContent"]["arguments"]["big"] == 10**25
    assert counted["plain"] == 2
    assert counted["no version"] == 0


async def test_every_odd_header_and_method_gets_the_same_answer_with_and_without_the_lane(
    stage, slug
):
    echo = calling(f"{slug}-e__echo", {"text": "x"})
    async with doors(slug, stage.tokens[slug]) as both:
        for name, given in echo.headers().items():
            await both.same(name, "POST", echo.request(), given)
        for method in ("GET", "DELETE", "PUT", "OPTIONS"):
            assert (await both.same(method, method, echo.request(), list(echo.usual.items())))[
                0
            ] == 405
    assert both.differences == {}


async def test_every_kind_of_end_is_told_alike(stage, slug_of_all):
    slug = slug_of_all
    ends = {
        "all content": calling(f"{slug}-m__all"),
        "number": calling(f"{slug}-x__number"),
        "array": calling(f"{slug}-x__array", {}),
        "refused by the server": calling(f"{slug}-e__refuse", {}),
        "arguments do not fit": calling(f"{slug}-e__strict", {"n": "seven"}),
        "arguments fit": calling(f"{slug}-e__strict", {"n": 7}),
        "unknown tool": calling(f"{slug}-e__nothing", {}),
        "a mirrored argument without its header": calling(f"{slug}-e__where", {"region": "north"}),
        "no mirrored argument": calling(f"{slug}-e__where", {}),
        "progress": calling(f"{slug}-s__count", {"steps": 4}, progressToken="t"),
        "progress nobody asked for": calling(f"{slug}-s__count", {"steps": 2}),
        "the server crashes": calling(f"{slug}-c__crash", {}),
        "the server crashes, with a token": calling(f"{slug}-d__crash", {}, progressToken=1),
        "a refusal after progress": calling(
            f"{slug}-s__count", {"steps": 3, "refuse": True}, progressToken=2
        ),
    }
    async with doors(slug, stage.tokens[slug]) as both:
        answers = {name: await both_ways(both, name, corpus) for name, corpus in ends.items()}
    assert both.differences == {}
    assert answers["progress"][1] == "text/event-stream"
    assert [message["method"] for _, message in answers["progress"][2][:-1]] == [
        "notifications/progress"
    ] * 4
    assert answers["a refusal after progress"][1] == "text/event-stream"
    assert answers["a refusal after progress"][2][-1][1]["result"]["isError"] is True
    assert answers["progress nobody asked for"][1] == "application/json"
    assert answers["unknown tool"][0] == 400
    assert answers["a mirrored argument without its header"][0] == 400
    assert (
        answers["the server crashes"][2]["result"]["structuredContent"]["state"]
        == InvocationState.UNKNOWN
    )


async def test_plain_calls_use_the_lane_and_what_a_person_must_decide_does_not(
    stage, slug, monkeypatch, settings
):
    """Otherwise all the comparing above would compare the SDK with itself."""
    served = []
    proceed = Engine.proceed

    async def note(engine: Engine, judged: Any) -> Any:
        served.append(judged.call.request.name)
        return await proceed(engine, judged)

    monkeypatch.setattr(Engine, "proceed", note)
    monkeypatch.setattr(Engine, "call", lambda engine, request: engine.pipeline.run(request))
    echo = calling(
        f"{slug}-e__echo", {"text": "x"}, progressToken=7, **{"claudecode/toolUseId": "toolu_1"}
    )
    async with doors(slug, stage.tokens[slug]) as both:
        await both.ask(True, "POST", echo.request(), list(echo.usual.items()))
        assert served == [f"{slug}-e__echo"]
        engine: Engine = both.app.engine
        engine.pipeline.policy = lambda question: Decision(RuleOutcome.DENY, "never")
        denied = await both_ways(both, "denied", echo)
        assert both.differences == {}
        assert denied[2]["result"]["isError"] is True
        assert len(served) == 2
        engine.pipeline.policy = lambda question: Decision(RuleOutcome.ASK, "a person decides")
        settings.MCP_HOLD_SECONDS = 0.2
        await both.ask(True, "POST", echo.request(), list(echo.usual.items()))
        assert len(served) == 2


async def test_a_host_that_leaves_cancels_its_call(stage, slug):
    """Before the lane looks and after, with and without progress; the record says what is known."""
    async with doors(slug, stage.tokens[slug]) as both:
        for arguments, meta in (
            ({"steps": 1, "pause": 100}, {}),
            ({"steps": 2000, "pause": 0.05}, {"progressToken": 1}),
        ):
            corpus = calling(f"{slug}-s__count", arguments, **meta)
            left = asyncio.Event()
            events = [{"type": "http.request", "body": corpus.request()}]

            async def receive(events: list = events, left: asyncio.Event = left) -> dict[str, Any]:
                if events:
                    return events.pop()
                await left.wait()
                return {"type": "http.disconnect"}

            sent: list[dict[str, Any]] = []

            async def send(event: dict[str, Any], sent: list = sent) -> None:
                sent.append(event)

            headers = [*corpus.usual.items(), ("authorization", f"Bearer {both.token}")]
            scope = {
                "type": "http",
                "method": "POST",
                "path": f"/mcp/{slug}",
                "headers": [(name.encode(), value.encode()) for name, value in headers],
            }
            call = asyncio.create_task(both.app(scope, receive, send))
            await until(lambda: both.app.engine.pool.list_states())
            await until(lambda sent=sent, meta=meta: sent or not meta)
            left.set()
            await asyncio.wait_for(call, HANG_LIMIT)
            assert all(event.get("more_body", True) for event in sent)
    states = [row["state"] for row in await recorded(slug)]
    assert len(states) == 2
    assert set(states) <= {InvocationState.UNKNOWN, InvocationState.NOT_SENT}


async def test_progress_after_the_request_was_answered_with_a_question_starts_nothing():
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(event: dict[str, Any]) -> None:
        raise AssertionError(event)

    before = asyncio.all_tasks()
    response = CallResponse(
        PlainRequest(1, "tools/call", {"_meta": {"progressToken": 1}}), receive, send
    )
    response.begin()
    response.close()
    response.report(1, None, "its call goes on")
    assert asyncio.all_tasks() == before
