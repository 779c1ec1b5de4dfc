"""Connections between processes are kept for the next call, and a connection that was closed in the
meantime repeats nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from mcpregistry.domain.calls.forwarding import NOTHING
from mcpregistry.domain.errors import ConnectionFailed
from mcpregistry.downstream.peers import connections
from mcpregistry.downstream.peers import server as peer_server
from mcpregistry.downstream.peers.client import Relay
from mcpregistry.downstream.peers.connections import OwnerGoneError, PeerConnections
from mcpregistry.downstream.peers.frames import read_frame, write_frame
from mcpregistry.downstream.peers.messages import RelayedCall, pack_host
from mcpregistry.downstream.peers.server import Handlers, PeerServer
from mcpregistry.downstream.peers.sockets import listen
from mcpregistry.downstream.server_call import ServerCall
from mcpregistry.models import Server
from tests.calls.processes import Process, Start, text_of
from tests.fakes.targets import stdio_target
from tests.waiting import until

MOST_BYTES = 1_000_000
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Part = Callable[["Peer", Streams], Awaitable[None]]


def count_connections(process: Process) -> int:
    """The connections of other processes that this one serves."""
    return len(process.placement._server._exchanges)


async def test_calls_one_after_the_other_use_one_connection(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    pids = [text_of(await each.call(server, "pid")) for each in (first, second, second, second)]
    assert len(set(pids)) == 1
    assert count_connections(first) == 1


async def test_idle_connections_are_bounded_in_number_and_time(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_IDLE", 2)
    first, second = await processes(stdio_target("crash"))
    await first.call(server, "pid")
    await asyncio.gather(*(second.call(server, "pid") for _ in range(6)))
    await until(lambda: count_connections(first) == 2)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.01)
    await asyncio.gather(*(second.call(server, "pid") for _ in range(2)))
    await until(lambda: count_connections(first) == 0)


async def test_process_closes_connections_of_a_machine_that_says_nothing_more(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "IDLE_SECONDS", 0.01)
    first, second = await processes(stdio_target("crash"))
    await first.call(server, "pid")
    await second.call(server, "pid")
    await until(lambda: count_connections(first) == 0 and not second.placement.connections._idle)


async def test_death_of_a_process_closes_the_connections_to_it(
    processes: Start, server: Server
) -> None:
    first, second = await processes(stdio_target("crash"))
    await first.call(server, "pid")
    await second.call(server, "pid")
    assert len(second.placement.connections._idle) == 1
    await first.die()
    await until(lambda: not second.placement.connections._idle)


class Peer:
    """An owner that follows a script: one part for each call that it is offered, on whichever
    connection."""

    def __init__(self, folder: Path, *script: Part) -> None:
        self.address = str(folder / "peer.sock")
        self.script = list(script)
        self.dialled = 0
        self.offered = 0
        self.begun = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled += 1
        while await read_frame(reader, MOST_BYTES) is not None:
            self.offered += 1
            await self.script.pop(0)(self, (reader, writer))
        writer.close()


async def answer(peer: Peer, streams: Streams) -> None:
    await begin(peer, streams)
    write_frame(streams[1], {"result": {"content": []}})


async def begin(peer: Peer, streams: Streams) -> None:
    write_frame(streams[1], {"taken": True})
    assert await read_frame(streams[0], MOST_BYTES) == {"go": True}
    peer.begun += 1


async def begin_and_die(peer: Peer, streams: Streams) -> None:
    await begin(peer, streams)
    streams[1].close()


async def die(_: Peer, streams: Streams) -> None:
    streams[1].close()


@pytest.fixture
async def scripted(
    tmp_path: Path,
) -> AsyncIterator[Callable[..., Awaitable[tuple[Peer, Callable[[], Awaitable[Any]]]]]]:
    """Start a peer with a script; returns it and what makes a call there."""
    kept = PeerConnections()
    listening: list[Any] = []

    async def start(*script: Part) -> tuple[Peer, Callable[[], Awaitable[Any]]]:
        peer = Peer(tmp_path, *script)
        listening.append((await listen(tmp_path / "peer.sock", peer.accept))[0])

        async def call() -> Any:
            return await Relay(_call(), ServerCall(1, "pid"), _still).run(peer.address, kept)

        return peer, call

    yield start
    await kept.close()
    for each in listening:
        each.close()


async def _still() -> bool:
    return True


def _call() -> RelayedCall:
    return RelayedCall(
        "web@box:1",
        1,
        "pid",
        "{}",
        "ann/http:1",
        "",
        "tool",
        pack_host(NOTHING, "", ""),
        None,
        None,
        None,
        False,
        None,
        None,
        None,
        None,
        False,
        False,
    )


async def test_call_uses_a_new_connection_if_the_kept_one_was_closed(scripted: Any) -> None:
    peer, call = await scripted(answer, die, answer)
    await call()
    assert await call() == {"content": []}
    assert (peer.dialled, peer.offered, peer.begun) == (2, 3, 2)


async def test_call_that_has_begun_on_a_kept_connection_is_not_sent_again(scripted: Any) -> None:
    peer, call = await scripted(answer, begin_and_die)
    await call()
    with pytest.raises(ConnectionFailed) as failed:
        await call()
    assert failed.value.sent
    assert (peer.dialled, peer.begun) == (1, 2)


@pytest.mark.attack
async def test_progress_for_a_process_that_hangs_is_left_out(tmp_path: Path) -> None:
    has_reported = asyncio.Event()
    may_end = asyncio.Event()

    async def perform(call: RelayedCall, _: Any, callbacks: Any) -> dict[str, Any]:
        for number in range(2_000):
            callbacks["on_progress"](number, None, "x" * 10_000)
        has_reported.set()
        await may_end.wait()
        return {"content": []}

    handlers = Handlers("web@box:1", owns=lambda _: True, perform=perform, hear=cast("Any", None))
    owner = PeerServer(handlers)
    accepted: list[asyncio.StreamWriter] = []
    accept = owner._accept

    def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        accept(reader, writer)

    owner._accept = note  # type: ignore[method-assign]
    address = await owner.start(tmp_path / "peer.sock")
    reader, writer = await asyncio.open_unix_connection(address)
    write_frame(writer, {"call": msgspec.structs.replace(_call(), wants_progress=True)})
    write_frame(writer, {"go": True})
    await has_reported.wait()
    assert accepted[0].transport.get_write_buffer_size() < 2 * peer_server.MOST_UNREAD
    may_end.set()
    frames = []
    while not frames or "result" not in frames[-1]:
        frames.append(await read_frame(reader, MOST_BYTES))
    assert frames[0] == {"taken": True}
    assert 50 < len(frames) < 1_000
    writer.close()
    await owner.close()


async def test_owner_that_closes_a_new_connection_counts_as_gone(scripted: Any) -> None:
    peer, call = await scripted(die)
    with pytest.raises(OwnerGoneError):
        await call()
    assert (peer.dialled, peer.offered) == (1, 1)


async def test_caller_cancelled_while_it_takes_a_kept_connection_closes_it(tmp_path: Path) -> None:
    peer = Peer(tmp_path, answer, answer)
    kept = PeerConnections()
    listening = (await listen(tmp_path / "peer.sock", peer.accept))[0]
    await Relay(_call(), ServerCall(1, "pid"), _still).run(peer.address, kept)
    (connection,) = kept._idle
    watching = kept._idle[connection]
    may_end = asyncio.Event()
    watching.cancel()
    await asyncio.wait({watching})

    async def end_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    kept._idle[connection] = asyncio.ensure_future(end_late())
    await asyncio.sleep(0)
    caller = asyncio.ensure_future(
        Relay(_call(), ServerCall(1, "pid"), _still).run(peer.address, kept)
    )
    await until(lambda: not kept._idle)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert connection.writer.is_closing()
    may_end.set()
    assert await Relay(_call(), ServerCall(1, "pid"), _still).run(peer.address, kept) == {
        "content": []
    }
    assert (peer.dialled, peer.offered) == (2, 2)
    await kept.close()
    listening.close()
