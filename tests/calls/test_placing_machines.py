"""Sessions over several machines: their processes reach each other over TLS, and nobody else
does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings

from controlplane import doctor
from mcpregistry.calls import connection_placement
from mcpregistry.calls.connection_placement import STATE_IS_NEW
from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.downstream.peers import sockets, tls_listener
from mcpregistry.downstream.peers.connections import connect_to_process
from mcpregistry.downstream.peers.frames import read_frame, write_frame
from mcpregistry.downstream.peers.sockets import PeerAddress, identify
from mcpregistry.downstream.peers.tls_listener import TLSListener
from mcpregistry.models import Server, SessionOwner
from tests.calls.processes import Start, text_of
from tests.fakes.targets import stdio_target

OLD = b"o" * 32
NEW = b"n" * 32
several_machines = pytest.mark.parametrize("processes", ["several machines"], indirect=True)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def own_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets._Site, "identity", None)


def plain(context: ssl.SSLContext) -> None:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE


async def answered(streams: Streams) -> Any:
    """What a listener answers to somebody who asks whether it takes a call."""
    reader, writer = streams
    write_frame(writer, {"word": {"channel": "x", "method": "ask", "arguments": []}})
    try:
        return await read_frame(reader, 1_000_000)
    finally:
        writer.close()


async def listening(heard: list[Any]) -> tuple[TLSListener, str]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await read_frame(reader, 1_000_000))
        write_frame(writer, {"yes": True})
        writer.close()

    server, address = await sockets.listen(PeerAddress("127.0.0.1"), accept)
    assert isinstance(server, TLSListener)
    return server, address


@several_machines
async def test_machines_share_a_sessions_connection_and_the_next_owner_says_that_state_is_new(
    processes: Start, server: Server
) -> None:
    first, second, third = await processes(stdio_target("crash"), 3)
    pids = {text_of(await each.call(server, "pid")) for each in (first, second, third)}
    owner = await db_call(SessionOwner.objects.get)
    assert len(pids) == 1
    assert (owner.machine, owner.process) == (connection_placement.ALL_MACHINES, first.name)
    assert owner.address.startswith("127.0.1.1:")
    await first.die()
    after = [await each.call(server, "pid") for each in (second, third)]
    assert after[0]["content"][0]["text"] == STATE_IS_NEW
    assert {text_of(each) for each in after}.isdisjoint(pids)
    assert text_of(after[0]) == text_of(after[1])


@several_machines
async def test_a_process_at_the_address_of_a_dead_one_shows_that_it_is_dead(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = await processes(stdio_target("crash"), 3)
    await first.call(server, "pid")
    await first.die()
    await db_call(lambda: SessionOwner.objects.update(address=third.placement.address))
    monkeypatch.setattr(connection_placement, "_REFUSALS", 1_000)
    assert (await second.call(server, "pid"))["content"][0]["text"] == STATE_IS_NEW


@several_machines
async def test_a_machine_that_cannot_be_reached_is_replaced_when_its_lease_ends(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await processes(stdio_target("crash"))
    await first.call(server, "pid")
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.05)
    with socket.create_server(("127.0.1.9", 0)) as mute:  # takes connections, and says nothing
        away = f"127.0.1.9:{mute.getsockname()[1]}"
        await db_call(lambda: SessionOwner.objects.update(address=away))
        with pytest.raises(QueueFullError, match="cannot be reached"):
            await second.call(server, "pid")
        await db_call(
            lambda: SessionOwner.objects.update(
                lease_until=read_database_now() - timedelta(seconds=1)
            )
        )
        monkeypatch.undo()
        assert (await second.call(server, "pid"))["content"][0]["text"] == STATE_IS_NEW


@several_machines
async def test_a_machine_with_other_keys_is_refused_and_told_why(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await processes(stdio_target("crash"))
    before = text_of(await first.call(server, "pid"))
    identify([NEW])
    with pytest.raises(QueueFullError, match="do not accept") as refused:
        await second.call(server, "pid")
    assert "SLIPSNISSE_KEYS" in refused.value.remedy
    identify(settings.SLIPSNISSE_KEYS.values())
    assert text_of(await second.call(server, "pid")) == before


async def test_machines_accept_each_other_while_keys_are_rotated() -> None:
    heard: list[Any] = []
    identify([OLD, NEW])
    server, address = await listening(heard)
    identify([NEW, OLD])
    assert await answered(await sockets.dial(address)) == {"yes": True}
    server.close()


def certified(keys: list[bytes]) -> Callable[[str], Awaitable[Streams]]:
    """Somebody who connects with a certificate of their own, and accepts every other."""

    async def dial(address: str) -> Streams:
        identify(keys)
        assert sockets._Site.identity is not None
        plain(sockets._Site.identity.client)
        return await sockets.dial(address)

    return dial


async def without_certificate(address: str) -> Streams:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain(context)
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), ssl=context)


async def without_tls(address: str) -> Streams:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.attack
@pytest.mark.parametrize("dial", [certified([NEW]), without_certificate, without_tls])
async def test_whoever_has_no_key_of_the_site_is_not_heard(
    dial: Callable[[str], Awaitable[Streams]],
) -> None:
    heard: list[Any] = []
    identify([OLD])
    server, address = await listening(heard)
    with contextlib.suppress(ssl.SSLError):
        assert await answered(await dial(address)) is None
    identify([OLD])
    assert await answered(await sockets.dial(address)) == {"yes": True}
    assert len(heard) == 1
    server.close()


async def silent(address: str) -> Streams:
    """Somebody who connects and never begins the handshake."""
    return await without_tls(address)


@pytest.mark.attack
async def test_connection_without_handshake_is_closed_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.05)
    identify([OLD])
    server, address = await listening([])
    reader, writer = await silent(address)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    server.close()


@pytest.mark.attack
async def test_connections_without_handshake_are_bounded_and_keep_no_process_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_listener, "MOST_HANDSHAKES", 3)
    identify([OLD])
    server, address = await listening([])
    attackers = [await silent(address) for _ in range(6)]
    for reader, _ in attackers[:3]:
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    assert await answered(await sockets.dial(address)) == {"yes": True}
    assert len(server._handshakes) <= 3
    for _, writer in attackers:
        writer.close()
    server.close()


@pytest.mark.attack
async def test_nothing_is_sent_to_who_has_no_key_of_the_site() -> None:
    heard: list[Any] = []
    identify([NEW])
    server, address = await listening(heard)
    identify([OLD])
    with pytest.raises(QueueFullError, match="do not accept"):
        async with connect_to_process(address):
            pass
    assert heard == []
    server.close()


def test_each_process_makes_the_same_certificate_of_a_key() -> None:
    assert sockets._make_certificate(OLD) == sockets._make_certificate(OLD)
    assert sockets._make_certificate(OLD)[0] != sockets._make_certificate(NEW)[0]


async def test_processes_of_a_machine_take_the_ports_in_turn_and_say_if_there_is_none() -> None:
    identify([OLD])
    with socket.create_server(("127.0.1.8", 0)) as taken:
        first = taken.getsockname()[1]
        place = PeerAddress("127.0.1.8", first, first)
        with pytest.raises(OSError, match="in use"):
            await sockets.listen(place, lambda *_: None)
        server, address = await sockets.listen(replace(place, last=first + 20), lambda *_: None)
        assert first < int(address.rpartition(":")[2]) <= first + 20
        server.close()


@several_machines
async def test_doctor_connects_to_the_processes_and_warns_of_machines_apart(
    processes: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await processes(stdio_target("crash"))
    monkeypatch.setattr(settings, "PEER_ADDRESS", ("127.0.1.1", 0, 0))

    async def found() -> list[tuple[bool, str]]:
        return [
            (each.ok, each.what)
            for each in await asyncio.to_thread(lambda: [*doctor._check_machines()])
        ]

    assert await found() == []
    await first.call(server, "pid")
    address = first.placement.address
    assert await found() == [(True, f"the process of this site at {address} can be reached")]
    await first.placement._server.close()
    assert [ok for ok, _ in await found()] == [False]
    monkeypatch.setattr(settings, "PEER_ADDRESS", None)
    await db_call(lambda: SessionOwner.objects.update(machine="a"))
    other = {"machine": "b", "session": "x", "process": "web@b:1", "address": "/x"}
    later = read_database_now() + timedelta(minutes=1)
    await db_call(
        lambda: SessionOwner.objects.create(server=server, lease_until=later, since=later, **other)
    )
    assert [(ok, "the 2 machines" in what) for ok, what in await found()] == [(False, True)]
