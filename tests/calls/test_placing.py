"""One connection for each session in the whole site, whichever process gets the call."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import stat
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from django.db import OperationalError

from mcpregistry.calls import connection_placement
from mcpregistry.calls.connection_placement import STATE_IS_NEW
from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.calls.forwarding import NOTHING, Forwarding, HostUnansweredError
from mcpregistry.domain.errors import ConnectionFailed, QueueFullError, ToolRefused
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.downstream.peers import client
from mcpregistry.downstream.peers.channels import RemoteChannel
from mcpregistry.downstream.peers.server import Handlers, PeerServer
from mcpregistry.models import Server, SessionOwner
from mcpregistry.services.servers import placement
from tests.calls.conftest import Site, add_server, tool
from tests.calls.processes import SESSION, Start, text_of
from tests.fakes.targets import stdio_target
from tests.waiting import until

ENDLESS = {"steps": 1_000_000, "pause": 0.05}


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


async def test_of_calls_at_the_same_time_one_process_becomes_the_owner(
    processes: Start, server: Server
) -> None:
    all_of_them = await processes(stdio_target("crash"), 3)
    found = await asyncio.gather(*(each.call(server, "pid") for each in [*all_of_them] * 3))
    assert len({text_of(each) for each in found}) == 1
    assert await db_call(SessionOwner.objects.count) == 1


async def test_a_dead_owner_is_replaced_at_once_and_the_caller_is_told(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    before = await first.call(server, "pid")
    assert text_of(await second.call(server, "pid")) == text_of(before)
    await first.die()
    after = await second.call(server, "pid")
    again = await second.call(server, "pid")
    assert text_of(after) != text_of(before)
    assert after["content"][0]["text"] == STATE_IS_NEW
    assert again["content"] == [{"type": "text", "text": text_of(after)}]


async def test_a_first_call_that_fails_leaves_the_word_about_new_state_to_the_next(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    before = await first.call(server, "pid")
    assert text_of(await second.call(server, "pid")) == text_of(before)
    await first.die()
    with pytest.raises(ConnectionFailed):
        await second.call(server, "crash")
    await until(lambda: db_call(lambda: SessionOwner.objects.filter(process="").exists()))

    async def pid() -> Any:
        try:
            return await second.call(server, "pid")
        except ConnectionFailed:  # the server is not tried again at once
            return None

    after = await until(pid)
    assert after["content"][0]["text"] == STATE_IS_NEW
    assert (await second.call(server, "pid"))["content"] == after["content"][1:]


@pytest.mark.parametrize("from_elsewhere", [False, True])
async def test_a_server_that_died_between_calls_is_replaced_and_the_caller_is_told(
    processes: Start, server: Server, from_elsewhere: bool
) -> None:
    first, second = await processes(stdio_target("crash"))
    before = text_of(await first.call(server, "pid"))
    os.kill(int(before), signal.SIGKILL)
    await until(lambda: not first.pool.sessions.has_connection(server.pk, SESSION))
    caller = second if from_elsewhere else first

    async def pid() -> Any:
        try:
            return await caller.call(server, "pid")
        except ConnectionFailed:  # the server is not tried again at once
            return None

    after = await until(pid)
    assert text_of(after) != before
    assert after["content"][0]["text"] == STATE_IS_NEW
    assert (await caller.call(server, "pid"))["content"] == after["content"][1:]


async def test_the_word_about_new_state_reaches_the_process_that_calls_first(
    processes: Start, server: Server
) -> None:
    first, second, third = await processes(stdio_target("slow"), 3)
    await first.call(server, "count")
    await first.die()
    with pytest.raises(ToolRefused):
        await second.call(server, "count", {"refuse": True})
    after = [await each.call(server, "count") for each in (third, second, third)]
    assert [len(each["content"]) for each in after] == [2, 1, 1]
    assert after[0]["content"][0]["text"] == STATE_IS_NEW


async def test_an_owner_that_dies_during_a_call_leaves_its_outcome_unknown(
    processes: Start, server: Server
) -> None:
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


async def test_an_owner_whose_lease_has_run_out_is_replaced(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    before = await first.call(server, "pid")
    first.placement._renewed -= 60
    await db_call(
        lambda: SessionOwner.objects.update(lease_until=read_database_now() - timedelta(seconds=1))
    )
    after = await second.call(server, "pid")
    back = await first.call(server, "pid")
    assert text_of(before) != text_of(after) == text_of(back)
    await until(lambda: not first.pool.sessions.has_connection(server.pk, SESSION))


async def test_former_owner_closes_its_connection_when_it_renews_its_leases_again(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await processes(stdio_target("crash"))
    await first.call(server, "pid")
    await first.call(server, "pid", session="ann/http:2")
    await db_call(
        lambda: SessionOwner.objects.filter(session=SESSION).update(
            lease_until=read_database_now() - timedelta(seconds=1)
        )
    )
    await second.call(server, "pid")
    first.placement._renewed -= 60
    monkeypatch.setattr(connection_placement, "_RENEW_EVERY", 0.01)
    first.placement._renewing.cancel()
    first.placement._renewing = asyncio.create_task(first.placement._renew())
    await until(lambda: not first.pool.sessions.has_connection(server.pk, SESSION))
    assert first.pool.sessions.has_connection(server.pk, "ann/http:2")
    assert second.pool.sessions.has_connection(server.pk, SESSION)


async def test_a_call_waits_while_its_owner_looks_whether_it_has_the_connection(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    before = [text_of(await each.call(server, "pid")) for each in (first, second)]
    handlers = first.placement._server.handlers
    first.placement._server.handlers = msgspec.structs.replace(handlers, owns=lambda _: False)
    second.placement.connections.drop(first.placement.address)  # a kept one has the former handlers

    def own_again() -> None:
        first.placement._server.handlers = handlers

    asyncio.get_running_loop().call_later(5 * connection_placement._PAUSE, own_again)
    assert text_of(await second.call(server, "pid")) == before[0] == before[1]


async def test_failure_of_the_database_for_one_lost_connection_does_not_keep_the_others_open(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await processes(stdio_target("crash"))
    sessions = [SESSION, "ann/http:2", "ann/http:3"]
    for session in sessions:
        await first.call(server, "pid", session=session)
    await db_call(
        lambda: SessionOwner.objects.update(lease_until=read_database_now() - timedelta(seconds=1))
    )
    for session in sessions:
        await second.call(server, "pid", session=session)
    is_owner = placement.is_owner
    asked = list[str]()
    is_down = True

    def fail_for_the_second(place: Any, process: str) -> bool:
        asked.append(place.session)
        if is_down and place.session == "ann/http:2":
            raise OperationalError("injected")
        return is_owner(place, process)

    monkeypatch.setattr(placement, "is_owner", fail_for_the_second)
    monkeypatch.setattr(connection_placement, "_RENEW_EVERY", 0.01)
    first.placement._renewed -= 60
    first.placement._renewing.cancel()
    first.placement._renewing = asyncio.create_task(first.placement._renew())
    await until(
        lambda: (
            not any(
                first.pool.sessions.has_connection(server.pk, each)
                for each in (SESSION, "ann/http:3")
            )
        )
    )
    await until(lambda: asked.count("ann/http:2") > 1)
    # no call is made on it until it is known to be ours
    assert not first.placement._has_lease((server.pk, "ann/http:2"))
    is_down = False
    await until(lambda: not first.pool.sessions.has_connection(server.pk, "ann/http:2"))


async def test_end_of_a_session_closes_its_connection_in_the_process_that_has_it(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    for session in (SESSION, "ann/http:2"):
        await first.call(server, "pid", session=session)
        await second.call(server, "pid", session=session)
    second.placement.end_session("http:1")
    await until(lambda: not first.pool.sessions.has_connection(server.pk, SESSION))
    assert first.pool.sessions.has_connection(server.pk, "ann/http:2")


async def test_a_connection_that_is_closed_is_owned_by_nobody(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    await first.call(server, "pid")
    await first.pool.sessions.close(server.pk, SESSION)
    await until(lambda: db_call(lambda: not SessionOwner.objects.exists()))
    assert await second.call(server, "pid")
    assert await db_call(lambda: SessionOwner.objects.get().process) == second.name


async def test_a_connection_that_is_being_given_up_takes_no_call(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await processes(stdio_target("slow"))
    await first.call(server, "count")
    releasing = asyncio.Event()
    asked = list[bool]()
    go = asyncio.Event()
    handlers = first.placement._server.handlers

    async def slowly(function: Any, *args: Any, **options: Any) -> Any:
        if function is placement.release:
            releasing.set()
            await go.wait()
        return await db_call(function, *args, **options)

    def owns(call: Any) -> bool:
        asked.append(handlers.owns(call))
        return asked[-1]

    monkeypatch.setattr(connection_placement, "db_call", slowly)
    first.placement._server.handlers = msgspec.structs.replace(handlers, owns=owns)
    await first.pool.sessions.close(server.pk, SESSION)
    await releasing.wait()
    calling = asyncio.ensure_future(second.call(server, "count"))
    await until(lambda: asked)
    go.set()
    await calling
    assert not asked[0]
    assert await db_call(lambda: SessionOwner.objects.get().process) == second.name
    assert not first.pool.sessions.has_connection(server.pk, SESSION)


@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_connection_is_not_given_up_while_a_call_is_about_to_use_it(
    processes: Start, server: Server, succeeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await processes(stdio_target("slow"))
    await first.call(server, "count")
    call = first.pool.call
    waiting = asyncio.Event()
    go = asyncio.Event()

    async def slowly(*args: Any, **options: Any) -> Any:
        waiting.set()
        await go.wait()
        if succeeds:
            return await call(*args, **options)
        raise ConnectionFailed("injected")

    monkeypatch.setattr(first.pool, "call", slowly)
    calling = asyncio.ensure_future(second.call(server, "count"))
    await waiting.wait()
    await first.pool.sessions.close(server.pk, SESSION)
    await first.placement.give_back((server.pk, SESSION))
    assert await db_call(lambda: SessionOwner.objects.get().process) == first.name
    go.set()
    if succeeds:
        await calling
        assert await db_call(lambda: SessionOwner.objects.get().process) == first.name
    else:
        with pytest.raises(ConnectionFailed):
            await calling
        await until(lambda: db_call(lambda: not SessionOwner.objects.exists()))


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
async def test_questions_reach_the_host_of_the_call(
    processes: Start, server: Server, answers: bool
) -> None:
    asked: list[tuple[str, Any]] = []

    async def person(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        asked.append((method, params["message"]))
        if not answers:
            raise HostUnansweredError("Nobody is here.")
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


async def test_progress_reaches_the_caller_and_a_cancelled_call_is_cancelled(
    processes: Start, server: Server
) -> None:
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


async def test_without_an_answer_who_the_owner_is_nothing_is_sent(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(add_server, "crash", tool("pid"), shared_by="agent")
    here: Site = await site()

    def fails(*_: Any) -> Any:
        raise OperationalError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(placement, "claim_connection", fails)
        refused = await here.call("crash__pid")
    assert (refused.state, refused.error_code) == (InvocationState.NOT_SENT, "UNAVAILABLE")
    assert (await here.call("crash__pid")).state is InvocationState.SUCCEEDED


async def test_an_owner_that_does_not_answer_has_done_nothing(
    processes: Start, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TAKEN_SECONDS", 0.05)
    first, second = await processes(stdio_target("crash"))
    await first.call(server, "pid")
    heard: list[bytes] = []

    async def hears(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())

    stopped = await asyncio.start_unix_server(hears, str(tmp_path / "stopped"))
    await db_call(lambda: SessionOwner.objects.update(address=str(tmp_path / "stopped")))
    with pytest.raises(QueueFullError, match="does not answer"):
        await second.call(server, "pid")
    await until(lambda: heard)
    assert b'"go"' not in heard[0]
    await db_call(
        lambda: SessionOwner.objects.update(lease_until=read_database_now() - timedelta(seconds=1))
    )
    assert (await second.call(server, "pid"))["content"][0]["text"] == STATE_IS_NEW
    stopped.close()


async def test_a_call_of_an_owner_that_has_lost_its_lease_is_not_waited_for(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LOOK_SECONDS", 0.05)
    first, second = await processes(stdio_target("slow"))
    await first.call(server, "count")
    sent = asyncio.Event()
    calling = asyncio.ensure_future(
        second.call(server, "count", {"steps": 1, "pause": 600}, on_sent=sent.set)
    )
    await sent.wait()
    await db_call(
        lambda: SessionOwner.objects.update(lease_until=read_database_now() - timedelta(seconds=1))
    )
    with pytest.raises(ConnectionFailed, match="does not answer") as failed:
        await calling
    assert failed.value.sent


async def test_an_owner_that_is_leaving_is_not_taken_for_dead(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    before = await first.call(server, "pid")
    name = f"web@box:{os.getpid()}"
    await db_call(lambda: SessionOwner.objects.update(process=name))
    await first.placement._server.close()
    calling = asyncio.ensure_future(second.call(server, "pid"))
    await until(lambda: second.placement._owners == {} or calling.done())
    assert not calling.done()
    await db_call(placement.release_process, name)
    after = await calling
    assert text_of(after) != text_of(before)
    assert after["content"][0]["text"] == STATE_IS_NEW


class Heard:
    """A host outside of its calls."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == "never":
            raise HostUnansweredError("Nobody is here.")
        return {"roots": [{"uri": f"file:///{method}/{params['n']}"}]}

    def log(self, server: str, line: Mapping[str, Any]) -> None:
        self.said.append(("log", server, line))

    def complete(self, elicitation_id: str) -> None:
        self.said.append(("complete", elicitation_id))


async def test_a_host_is_reached_between_its_calls_from_another_process(processes: Start) -> None:
    first, second = await processes(stdio_target("crash"))
    channel = Heard()
    told = first.placement.pack_local_host(Forwarding(channel=channel))
    remote = RemoteChannel(told.address, told.channel, second.placement.connections)
    assert await remote.ask("roots/list", {"n": 1}) == {"roots": [{"uri": "file:///roots/list/1"}]}
    with pytest.raises(HostUnansweredError, match="Nobody is here"):
        await remote.ask("never", {})
    remote.log("lab", {"data": "x"})
    remote.complete("e1")
    said = channel.said
    await until(lambda: len(said) == 2)
    assert said == [("log", "lab", {"data": "x"}), ("complete", "e1")]
    assert first.placement.pack_local_host(NOTHING).channel == ""
    del channel
    gc.collect()
    for address in (told.address, second.placement._us.address, "/nowhere"):
        with pytest.raises(HostUnansweredError, match="has ended"):
            await RemoteChannel(address, told.channel, second.placement.connections).ask(
                "roots/list", {"n": 1}
            )


async def test_few_owners_elsewhere_are_remembered(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_placement, "MOST_REMEMBERED", 3)
    first, second = await processes(stdio_target("crash"))
    own = text_of(await second.call(server, "pid", session="ann/own"))
    for number in range(5):
        await first.call(server, "pid", session=f"ann/{number}")
        await second.call(server, "pid", session=f"ann/{number}")
    assert len(second.placement._owners) <= 3
    assert text_of(await second.call(server, "pid", session="ann/own")) == own
    second.placement.end_session("4")
    assert "ann/4" not in {session for _, session in second.placement._owners}


@pytest.mark.attack
async def test_only_the_user_of_the_site_can_connect(processes: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    server = PeerServer(Handlers("web", owns=bool, perform=cast(Any, None), hear=cast(Any, None)))
    await server.start(folder / "1.sock")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "1.sock").stat().st_mode) == 0o600
    await server.close()
    assert list(folder.iterdir()) == []
