"""The end of a web process, and several of them side by side."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

import httpx2
import psutil
import pytest

from mcpregistry.domain.lifecycle import InvocationState
from tests.fakes.stage import MODERN, Stage, Web, listed, outside, web
from tests.gateway.doors import Corpus, doors
from tests.processes import alive
from tests.waiting import HANG_LIMIT, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]


@pytest.fixture(scope="module")
def token(stage: Stage) -> str:
    stage.endpoint()
    return stage.agent(
        "local", stage.fake("echo", listed("echo", "pid")), stage.fake("slow", listed("count"))
    )


@pytest.fixture
def own(stage: Stage, token: str) -> Iterator[Web]:
    """A web process for this test alone."""
    with web(stage.env) as running:
        yield running


async def test_sigterm_ends_open_streams_at_once_and_the_process_soon(own, token):
    process = psutil.Process(own.processes[0].pid)
    async with contextlib.AsyncExitStack() as stack:
        modern = await stack.enter_async_context(own.client(token, MODERN))
        legacy = await stack.enter_async_context(own.client(token, "legacy"))
        await modern.call_tool("echo__echo", {})
        await legacy.call_tool("echo__echo", {})
        await until(lambda: own.streams == 1)
        subscription = await stack.enter_async_context(modern.listen(tools_list_changed=True))

        async def hear() -> None:
            # ends without an error: the server closed it in good order
            async for _ in subscription:
                pass

        hearing = asyncio.create_task(hear())
        family = [process, *process.children(recursive=True)]
        own.terminate()
        await asyncio.wait_for(hearing, HANG_LIMIT)
        assert await asyncio.to_thread(own.processes[0].wait, HANG_LIMIT) in (0, -signal.SIGTERM)
    await until(lambda: not alive(family))


async def test_a_call_in_flight_is_finished_before_the_process_ends(own, stage, token):
    async with own.client(token, MODERN) as client:
        await client.list_tools()  # else this client asks for the list after the call
        started = asyncio.Event()

        async def note(*_: object) -> None:
            started.set()

        arguments = {"steps": 10, "pause": 0.1}
        call = asyncio.create_task(
            client.call_tool("slow__count", arguments, progress_callback=note)
        )
        await asyncio.wait_for(started.wait(), HANG_LIMIT)
        own.terminate()
        assert (await call).content[0].text == "10 steps"
    await asyncio.to_thread(own.processes[0].wait, HANG_LIMIT)
    records = await outside(stage.calls, tool_name="count")
    assert [record.state for record in records] == [InvocationState.SUCCEEDED]


async def test_requests_that_come_during_the_stop_are_told_to_come_again_and_nothing_is_recorded(
    stage, token
):
    earlier = len(await outside(stage.calls))
    async with doors("default", token) as both:
        slow = Corpus(
            "tools/call",
            named="slow__count",
            name="slow__count",
            arguments={"steps": 3, "pause": 0.1},
        )
        call = asyncio.create_task(both.ask(True, "POST", slow.request(), list(slow.usual.items())))
        # recorded: it is under way
        await until(lambda: outside(lambda: len(stage.calls()) > earlier))
        both.app.begin_stop()
        transport = httpx2.ASGITransport(app=both.app)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://testserver/mcp/default"
        ) as http:
            known = {"authorization": f"Bearer {token}"}
            for headers in (slow.usual, {"content-type": "application/json"}):
                answer = await http.post("", content=slow.request(), headers=headers | known)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.json()["error"]["data"]["code"] == "BUSY"
                assert "shutting down" in answer.json()["error"]["message"]
            assert (
                await http.post("", content=slow.request(), headers=slow.usual)
            ).status_code == 401
        assert len(await outside(stage.calls)) == earlier + 1
        status, _, answer = await call
    assert (status, answer["result"]["content"][0]["text"]) == (200, "3 steps")


@pytest.mark.exhaustive
async def test_several_processes_serve_one_address(stage, token):
    with web(stage.env, processes=2) as site:
        roots = [psutil.Process(process.pid) for process in site.processes]

        async def call(number: int) -> int:
            async with site.client(token, MODERN) as client:  # a connection of its own
                return (await client.call_tool("echo__echo", {"n": number})).structured_content[
                    "arguments"
                ]["n"]

        async with asyncio.timeout(HANG_LIMIT):
            # each has started the server that it called
            while not all(root.children() for root in roots):
                assert await asyncio.gather(*(call(number) for number in range(8))) == list(
                    range(8)
                )
