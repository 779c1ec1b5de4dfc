"""One connection for each session in the whole site, whichever process gets the call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from mcpregistry.calls.placing import STATE_IS_NEW, Placement
from mcpregistry.db import database_now, db_call
from mcpregistry.domain.calls.forwarding import NOTHING, Forwarding, Unanswered
from mcpregistry.domain.errors import ConnectionFailed, ToolRefused
from mcpregistry.domain.lifecycle import State
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.models import Server, SessionOwner
from mcpregistry.services.servers import placement
from tests.calls.conftest import Site, add_server, tool
from tests.fakes.targets import stdio_target
from tests.waiting import HANG_LIMIT, until

SESSION = "ann/http:1"
ENDLESS = {"steps": 1_000_000, "pause": 0.05}


class Process:
    """A process of the site, as far as placement is concerned."""

    def __init__(self, number: int, folder: Path, target: Any) -> None:
        async def targets(_: int) -> Any:
            return target

        self.name = f"web@box:{number}"
        self.pool = Pool(targets, lambda _: None, on_session_over=self._release)
        self.placement = Placement(self.pool, self.name)
        self._socket = folder / f"{number}.sock"

    def _release(self, server: int, session: str) -> None:
        self.placement.release(server, session)

    async def start(self) -> None:
        await self.placement.start(self._socket)

    async def stop(self) -> None:
        await self.placement.close()
        await self.pool.close()

    async def die(self) -> None:
        """Without a word to anybody."""
        await self.placement._server.close()
        assert self.placement._renewing is not None
        self.placement._renewing.cancel()
        self.placement._address = ""
        self.placement._owners.clear()
        await self.pool.close()

    async def call(self, server: Server, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Any:
        host = options.pop("host", NOTHING)
        session = options.pop("session", SESSION)
        given = json.dumps(dict(arguments or {})).encode()
        return await self.placement.call(
            server.pk, tool, given, session=session, host=host, timeout=HANG_LIMIT, **options
        )


Start = Callable[..., Awaitable[list[Process]]]


@pytest.fixture
async def processes(live_db: None, tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Process] = []

    async def start(target: Any, count: int = 2) -> list[Process]:
        made.extend(Process(number + 1, tmp_path, target) for number in range(count))
        for each in made:
            await each.start()
        return made

    yield start
    for each in made:
        await each.stop()


@pytest.fixture
async def server(live_db: None) -> Server:
    return await db_call(add_server, "crash")


def text_of(result: Mapping[str, Any]) -> str:
    return str(result["content"][-1]["text"])


async def test_processes_share_a_sessions_connection_and_others_have_their_own(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    pids = [text_of(await each.call(server, "pid")) for each in (first, second, second, first)]
    other = text_of(await second.call(server, "pid", session="bob/http:2"))
    shared = [text_of(await each.call(server, "pid", session="")) for each in (first, second)]
    assert len(set(pids)) == 1
    assert other not in pids
    assert len({*pids, other, *shared}) == 4


async def test_of_calls_at_the_same_time_one_process_becomes_the_owner(processes: Start, server: Server) -> None:
    all_of_them = await processes(stdio_target("crash"), 3)
    found = await asyncio.gather(*(each.call(server, "pid") for each in [*all_of_them] * 3))
    assert len({text_of(each) for each in found}) == 1
    assert await db_call(SessionOwner.objects.count) == 1


async def test_a_dead_owner_is_replaced_at_once_and_the_caller_is_told(processes: Start, server: Server) -> None:
    first, second = await processes(stdio_target("crash"))
    before = await first.call(server, "pid")
    assert text_of(await second.call(server, "pid")) == text_of(before)
    await first.die()
    after = await second.call(server, "pid")
    again = await second.call(server, "pid")
    assert text_of(after) != text_of(before)
    assert after["content"][0]["text"] == STATE_IS_NEW
    assert again["content"] == [{"type": "text", "text": text_of(after)}]


async def test_an_owner_that_dies_during_a_call_leaves_its_outcome_unknown(processes: Start, server: Server) -> None:
    first, second = await processes(stdio_target("slow"))
    await first.call(server, "count")
    sent = asyncio.Event()
    calling = asyncio.ensure_future(second.call(server, "count", ENDLESS, on_sent=sent.set))
    await sent.wait()
    await first.die()
    with pytest.raises(ConnectionFailed) as failed:
        await calling
    assert failed.value.sent
    assert text_of(await second.call(server, "count"))


async def test_an_owner_whose_lease_has_run_out_is_replaced(processes: Start, server: Server) -> None:
    first, second = await processes(stdio_target("crash"))
    before = await first.call(server, "pid")
    first.placement._renewed -= 60
    await db_call(lambda: SessionOwner.objects.update(lease_until=database_now() - timedelta(seconds=1)))
    after = await second.call(server, "pid")
    back = await first.call(server, "pid")
    assert text_of(before) != text_of(after) == text_of(back)
    await until(lambda: not first.pool.holds_session(server.pk, SESSION))


async def test_a_connection_that_is_closed_is_owned_by_nobody(processes: Start, server: Server) -> None:
    first, second = await processes(stdio_target("crash"))
    await first.call(server, "pid")
    await first.pool.close_session(server.pk, SESSION)
    await until(lambda: db_call(lambda: not SessionOwner.objects.exists()))
    assert await second.call(server, "pid")
    assert await db_call(lambda: SessionOwner.objects.get().process) == second.name


async def test_errors_of_servers_pass_as_they_are(processes: Start, server: Server) -> None:
    first, second = await processes(stdio_target("slow"))
    errors = []
    for each in (first, second):
        with pytest.raises(ToolRefused) as refused:
            await each.call(server, "count", {"refuse": True})
        errors.append(vars(refused.value))
    assert errors[0] == errors[1]
    assert (errors[0]["rpc_code"], errors[0]["message"]) == (-32000, "not today")


@pytest.mark.parametrize("answers", [True, False])
async def test_questions_reach_the_host_of_the_call(processes: Start, server: Server, answers: bool) -> None:
    asked: list[tuple[str, Any]] = []

    async def person(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        asked.append((method, params["message"]))
        if not answers:
            raise Unanswered("Nobody is here.")
        return {"action": "accept", "content": {"ok": True}}

    kinds = frozenset({"elicitation"})
    first, second = await processes(
        stdio_target("asker", protocol="legacy", env={"FAKE_ERA": "legacy"}, questions=kinds)
    )
    host = Forwarding({"elicitation": {"form": {}}}, ask=person)
    await first.call(server, "declared", host=host, asks=kinds)
    result = await second.call(server, "ask", host=host, asks=kinds)
    assert len(asked) == 1
    assert asked[0][0] == "elicitation/create"
    assert ("accept" in text_of(result)) is answers


async def test_progress_reaches_the_caller_and_a_cancelled_call_is_cancelled(processes: Start, server: Server) -> None:
    first, second = await processes(stdio_target("slow"))
    await first.call(server, "count")
    heard: list[tuple[Any, ...]] = []
    await second.call(server, "count", {"steps": 3}, on_progress=lambda *said: heard.append(said))
    assert [said[0] for said in heard] == [1, 2, 3]
    sent = asyncio.Event()
    calling = asyncio.ensure_future(second.call(server, "count", ENDLESS, on_sent=sent.set))
    await sent.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await until(lambda: not first.placement._server._exchanges)


async def test_without_an_answer_who_the_owner_is_nothing_is_sent(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await db_call(add_server, "crash", tool("pid"), shared_by="agent")
    here: Site = await site()

    def fails(**_: Any) -> Any:
        raise OperationalError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(placement, "claim", fails)
        refused = await here.call("crash__pid")
    assert (refused.state, refused.error_code) == (State.NOT_SENT, "UNAVAILABLE")
    assert (await here.call("crash__pid")).state is State.SUCCEEDED
