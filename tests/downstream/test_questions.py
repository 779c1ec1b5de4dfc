"""Questions that an older server asks on a pipe, while its calls wait: whose they are, and what
becomes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mcpregistry.domain.calls.forwarding import (
    APPS,
    Forwarding,
    HostUnansweredError,
    select_forwardable_capabilities,
)
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.domain.text.redaction import Redactor
from mcpregistry.downstream.pool.callers import Callers
from mcpregistry.downstream.pool.server_questions import Questions, answer_message
from mcpregistry.downstream.transports.http import _link_clock
from mcpregistry.downstream.transports.server_request import ServerRequest
from tests.downstream.conftest import SENDING, Bench
from tests.fakes.targets import stdio_target
from tests.waiting import HANG_LIMIT, until

Make = Callable[..., Bench]
FORM = {"elicitation": {"form": {}}}


def asking(*kinds: str, **changes: Any) -> ServerTarget:
    return stdio_target(
        "asker",
        protocol="legacy",
        env={"FAKE_ERA": "legacy"},
        questions=frozenset(kinds),
        **changes,
    )


class Person:
    """At a host: answers when told to."""

    def __init__(self, *, ready: bool = True) -> None:
        self.asked: list[Any] = []
        self.ready = asyncio.Event()
        self.gone = False
        if ready:
            self.ready.set()

    async def __call__(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(params["message"])
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.gone = True
            raise
        return {"action": "accept", "content": {"ok": True}}

    def host(self, **capabilities: Any) -> Forwarding:
        return Forwarding(capabilities or FORM, ask=self)


def said(result: dict[str, Any]) -> Any:
    return json.loads(result["content"][0]["text"])


@pytest.mark.exhaustive
async def test_the_only_call_that_is_out_is_asked_and_its_time_stands_still(bench: Make):
    here = bench(asking("elicitation"))
    person = Person(ready=False)
    await here.pool.connect(1)
    call = asyncio.create_task(here.call("ask", host=person.host(), timeout=2 * SENDING))
    await until(lambda: person.asked)
    # more than the call's time
    asyncio.get_running_loop().call_later(2 * SENDING + 0.5, person.ready.set)
    assert said(await call) == {"action": "accept", "content": {"ok": True}}
    assert person.asked == ["The server asker asks: Sure?"]


async def test_of_two_calls_on_one_connection_neither_is_asked_but_each_on_its_own(bench: Make):
    here = bench(asking("elicitation"))
    await here.pool.connect(1)
    first = Person(ready=False)
    second = Person()
    waiting = asyncio.create_task(here.call("ask", host=first.host(), caller="a1/stdio"))
    await until(lambda: first.asked)
    assert "it is not known which of them to ask" in said(
        await here.call("ask", host=second.host(), caller="a2/stdio")
    )
    assert said(await here.call("ask", host=second.host(), session="b/1"))["action"] == "accept"
    first.ready.set()
    assert said(await waiting)["action"] == "accept"
    assert len(second.asked) == 1


@pytest.mark.parametrize("caller", ["a1/stdio", "a1/http:4f2c", "a1/default:window-1"])
async def test_parallel_calls_of_one_host_can_ask_it(bench: Make, caller: str):
    here = bench(asking("elicitation"))
    await here.pool.connect(1)
    first = Person(ready=False)
    second = Person()
    waiting = asyncio.create_task(here.call("ask", host=first.host(), caller=caller))
    await until(lambda: first.asked)
    assert said(await here.call("ask", host=second.host(), caller=caller))["action"] == "accept"
    first.ready.set()
    assert said(await waiting)["action"] == "accept"
    assert len(first.asked) == len(second.asked) == 1


@pytest.mark.attack
@pytest.mark.parametrize("caller", ["a1/default::", "a1/default::chat", "a1/", ""])
async def test_hosts_that_name_no_session_are_not_taken_for_one(bench: Make, caller: str):
    """A second window of the same agent over HTTP has the same key."""
    here = bench(asking("elicitation"))
    await here.pool.connect(1)
    first = Person(ready=False)
    second = Person()
    waiting = asyncio.create_task(here.call("ask", host=first.host(), caller=caller))
    await until(lambda: first.asked)
    assert "it is not known which of them to ask" in said(
        await here.call("ask", host=second.host(), caller=caller)
    )
    assert second.asked == []
    first.ready.set()
    await waiting


async def test_a_question_goes_on_with_another_call_when_the_one_that_was_asked_ends() -> None:
    callers = Callers()
    callers.note("a1/stdio")
    questions = Questions("asker", Redactor([]), callers)
    longer = Person()
    shorter = Person(ready=False)
    with questions.track_call(longer.host()):
        with questions.track_call(shorter.host()):
            answering = asyncio.ensure_future(
                questions.answer_question("elicitation/create", {"message": "Sure?"})
            )
            await until(lambda: shorter.asked)
            assert longer.asked == []
        assert (await answering)["action"] == "accept"
    assert shorter.gone
    assert len(longer.asked) == 1


@pytest.mark.attack
async def test_no_question_is_asked_beside_a_call_that_a_person_approved_as_it_is() -> None:
    callers = Callers()
    person = Person()
    callers.note("a1/stdio")
    questions = Questions("asker", Redactor([]), callers)
    with (
        questions.track_call(Forwarding(FORM)),
        questions.track_call(person.host()),
        pytest.raises(HostUnansweredError, match="cannot answer this request"),
    ):
        await questions.answer_question("elicitation/create", {"message": "Sure?"})
    assert person.asked == []


async def test_a_line_during_parallel_calls_of_one_host_reaches_it(bench: Make):
    here = bench(asking("elicitation"))
    person = Person(ready=False)
    waiting = asyncio.create_task(here.call("ask", host=person.host(), caller="a1/stdio"))
    await until(lambda: person.asked)
    assert await lines_heard(here) == ["shared wire", "own stream"]
    person.ready.set()
    await waiting


async def test_whoever_cannot_be_asked_or_does_not_answer_is_told_to_the_server(bench: Make):
    async def never(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        raise HostUnansweredError("The host did not answer in time.")

    here = bench(asking("elicitation"))
    # as what people approved is sent, too
    assert "cannot answer this request" in said(await here.call("ask"))
    assert "cannot answer this request" in said(
        await here.call("ask", host=Person().host(sampling={}))
    )
    assert "did not answer in time" in said(
        await here.call("ask", host=Forwarding(FORM, ask=never))
    )


async def test_a_call_that_is_cancelled_asks_nobody_any_longer(bench: Make):
    here = bench(asking("elicitation"))
    person = Person(ready=False)
    call = asyncio.create_task(here.call("ask", host=person.host()))
    await until(lambda: person.asked)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: person.gone)


async def test_a_server_is_told_what_it_may_ask_and_of_a_session_what_its_host_bears(bench: Make):
    here = bench(asking("elicitation", "sampling"))
    assert said(await here.call("declared")).keys() == {"elicitation", "sampling"}
    assert said(await here.call("declared", session="a/1", host=Person().host())).keys() == {
        "elicitation"
    }
    assert said(await here.call("declared", session="a/2")) == {}
    # It may offer these less, which is nothing that the server as a whole has changed.
    assert [event for event in here.events if event.kind == "session" and event.discovery] == []


class Alone:
    """A host that can be reached outside of its calls, and has folders."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(method)
        return {"roots": []}

    def log(self, server: str, line: Mapping[str, Any]) -> None:
        raise AssertionError

    complete = log


@pytest.mark.attack
@pytest.mark.parametrize(
    ("shared", "caller", "method", "answered"),
    [
        (False, "a/http:1", "roots/list", True),
        (True, "a/stdio", "roots/list", True),
        (True, "a/http:1", "roots/list", False),
        (False, "a/default::", "roots/list", False),
        (False, "a/http:1", "elicitation/create", False),
        (False, "a/http:1", "sampling/createMessage", False),
    ],
)
async def test_outside_of_calls_only_the_host_that_has_a_connection_for_itself_is_asked_for_folders(
    shared: bool, caller: str, method: str, answered: bool
) -> None:
    callers = Callers(shared=shared)
    channel = Alone()
    questions = Questions("asker", Redactor([]), callers)
    host = Forwarding({"roots": {}, "sampling": {}, **FORM}, channel=channel)  # type: ignore[arg-type]
    callers.note(caller, host)
    if not answered:
        with pytest.raises(HostUnansweredError):
            await questions.answer_question(method, {})
        assert channel.asked == []
        return
    for _ in range(20):
        assert await questions.answer_question(method, {}) == {"roots": []}
    with pytest.raises(HostUnansweredError):  # a host is not asked without end
        await questions.answer_question(method, {})
    callers.note("b/other", Forwarding())
    with questions.track_call(Forwarding()):
        pass
    with pytest.raises(HostUnansweredError):  # not the only one any more
        await questions.answer_question(method, {})
    assert len(channel.asked) == 20


PAGES = {"extensions": {APPS: {"mimeTypes": ["text/html;profile=mcp-app"]}}}


async def test_pages_that_a_host_can_show_are_told_on_its_own_connection_alone(bench: Make):
    here = bench(asking())
    host = Forwarding(select_forwardable_capabilities(PAGES | {"experimental": {"x": {}}}))
    assert said(await here.call("declared", host=host, caller="a/1")).get("extensions") is None
    assert (
        said(await here.call("declared", host=host, session="a/1", caller="a/1"))["extensions"]
        == PAGES["extensions"]
    )
    assert said(await here.call("declared", session="b/1", caller="b/1")).get("extensions") is None


async def test_pages_that_a_host_can_show_are_told_to_a_modern_server_with_its_call(bench: Make):
    here = bench(stdio_target("echo", env={"FAKE_ERA": "modern"}))
    for host, told in (
        (Forwarding(select_forwardable_capabilities(PAGES)), PAGES),
        (Forwarding(select_forwardable_capabilities(PAGES)).drop_apps(), {}),
        (Forwarding(), {}),
    ):
        meta = (await here.call("echo", host=host))["structuredContent"]["meta"]
        assert meta[f"{APPS.removesuffix('ui')}clientCapabilities"] == told


async def test_what_is_asked_after_its_call_has_ended_reaches_no_host_and_not_without_end():
    person = Person()
    redactor = Redactor([])
    with Questions("asker", redactor).track_call(person.host()) as call:
        for _ in range(100):
            await call.answer("elicitation/create", {"message": "Again?"})
        with pytest.raises(HostUnansweredError, match="too many questions"):
            await call.answer("elicitation/create", {"message": "Again?"})
    with Questions("asker", redactor).track_call(person.host()) as over:
        pass
    with pytest.raises(HostUnansweredError, match="has ended"):
        await over.answer("elicitation/create", {"message": "Late?"})
    assert len(person.asked) == 100


async def test_a_question_that_outlives_its_posted_call_is_declined():
    person = Person(ready=False)
    with Questions("asker", Redactor([])).track_call(person.host()) as call:
        async with asyncio.timeout(HANG_LIMIT) as clock:
            _link_clock(
                clock,
                ServerRequest(
                    method="tools/call", params={}, timeout=HANG_LIMIT, patience=call.patience
                ),
            )
            asked = {"id": 1, "method": "elicitation/create", "params": {"message": "Sure?"}}
            replying = asyncio.ensure_future(answer_message(asked, call))
            await until(lambda: person.asked)
    assert (await replying)["error"]["message"] == "The call has ended."


async def lines_heard(here: Bench) -> list[Any]:
    """What the host of the only call that is out hears: lines on the shared wire, and in its own
    stream."""
    connection = here.pool._slots[1].connection
    assert connection is not None
    lines: list[Any] = []
    connection.logs.begin(lines.append)
    connection.logs.handle_line({"level": "info", "data": "shared wire"})
    connection.logs.handle_line({"level": "info", "data": "own stream"}, lines.append)
    connection.logs.end(lines.append)
    return [line["data"] for line in lines]


@pytest.mark.attack
async def test_a_late_question_or_line_of_an_ended_call_reaches_no_other_host(bench: Make):
    """The server says them while only the second host's call is out."""
    here = bench(asking("elicitation"))
    second = Person()
    assert said(await here.call("declared", host=Person().host(), caller="a1/x"))
    assert "it is not known which of them to ask" in said(
        await here.call("ask", host=second.host(), caller="a2/y")
    )
    assert second.asked == []
    assert await lines_heard(here) == ["own stream"]
    assert (
        said(await here.call("ask", host=second.host(), caller="a2/y", session="a2/y"))["action"]
        == "accept"
    )


@pytest.mark.attack
async def test_after_a_call_that_was_given_up_no_other_host_of_a_shared_connection_is_asked_or_told(
    bench: Make,
):
    here = bench(asking("elicitation"))
    first = Person(ready=False)
    second = Person()
    call = asyncio.create_task(here.call("ask", host=first.host(), caller="a1/x"))
    await until(lambda: first.asked)
    call.cancel()
    await asyncio.wait({call})
    # Its server may go on with it, and ask again.
    assert "it is not known which of them to ask" in said(
        await here.call("ask", host=second.host(), caller="a2/y")
    )
    assert second.asked == []
    assert await lines_heard(here) == ["own stream"]


async def test_a_host_that_is_alone_on_a_connection_is_asked_again_after_a_cancelled_call(
    bench: Make,
):
    here = bench(asking("elicitation"))
    first = Person(ready=False)
    again = Person()
    call = asyncio.create_task(here.call("ask", host=first.host(), caller="a1/x"))
    await until(lambda: first.asked)
    call.cancel()
    await asyncio.wait({call})
    assert said(await here.call("ask", host=again.host(), caller="a1/x"))["action"] == "accept"
    assert await lines_heard(here) == ["shared wire", "own stream"]


async def test_a_session_that_begins_with_a_call_that_people_decided_on_can_be_asked_later(
    bench: Make,
):
    here = bench(asking("elicitation"))
    person = Person()
    assert "cannot answer this request" in said(
        await here.call("ask", session="a/1", asks=frozenset({"elicitation"}))
    )
    assert said(await here.call("ask", session="a/1", host=person.host()))["action"] == "accept"
