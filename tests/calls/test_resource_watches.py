"""A subscribed resource is followed on every connection where it may change, in whichever process
that is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from mcpregistry.calls.resource_watches import ResourceWatches
from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import Forwarding
from mcpregistry.domain.errors import ToolRefused
from mcpregistry.downstream.peers.neighbours import announce, list_neighbours
from mcpregistry.downstream.peers.sockets import PeerAddress
from mcpregistry.downstream.pool.resource_subscriptions import Opener
from mcpregistry.models import Server, SessionOwner, SiteProcess
from mcpregistry.services.upkeep.processes import renew_process_lease
from tests.calls.conftest import add_server
from tests.calls.processes import SESSION, Process, text_of
from tests.fakes.targets import stdio_target
from tests.waiting import HANG_LIMIT, until

URI = "docs://guide"
ROUNDS = 24
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


class Watching(Process):
    """A process of the site that other processes find. ``is_alone``: it is the only one on its
    machine."""

    def __init__(self, number: int, folder: Path, target: Any, *, is_alone: bool = False) -> None:
        super().__init__(
            number,
            PeerAddress(f"127.0.1.{number}") if is_alone else folder / f"{number}.sock",
            target,
        )
        self._marker = (
            folder / f"machine-{number}" if is_alone else folder
        ) / f"site-{number}.peer"
        self._is_alone = is_alone
        self.heard = 0
        self.watches = ResourceWatches(self.pool, self.placement)

    async def start(self) -> None:
        await super().start()
        if self._is_alone:
            await db_call(renew_process_lease, self.name, self.name, self.placement.address)
        await self.watches.start(self._marker)

    async def stop(self) -> None:
        await self.watches.close()
        await super().stop()

    async def die(self) -> None:
        await self.pool.watches.close()
        await super().die()

    async def watch(
        self, server: Server, session: str = SESSION, uri: str = URI
    ) -> Callable[[], None]:
        return await self.pool.watches.add(
            server.pk, uri, self._hear, patience=HANG_LIMIT, session=session, opener=Opener(session)
        )

    def _hear(self) -> None:
        self.heard += 1

    async def hears_touch_by(self, other: Process, server: Server, session: str) -> None:
        before = self.heard
        await other.call(server, "touch", session=session)
        await until(lambda: self.heard > before)

    async def subscriptions(self, server: Server, session: str = SESSION) -> str:
        return text_of(await self.call(server, "count", session=session))


@pytest.fixture
async def server(live_db: None) -> Server:
    return await db_call(add_server, "talkative")


Start = Callable[..., Any]


@pytest.fixture
async def start(
    live_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Start]:
    monkeypatch.setattr("mcpregistry.downstream.peers.neighbours.is_alive", lambda pid: True)
    monkeypatch.setattr("mcpregistry.downstream.pool.resource_subscriptions.RETRY_FIRST", 0.05)
    made: list[Watching] = []

    async def one_more(era: str, program: str = "talkative", *, is_alone: bool = False) -> Watching:
        target = stdio_target(program, env={"FAKE_ERA": era})
        made.append(Watching(len(made) + 1, tmp_path, target, is_alone=is_alone))
        await made[-1].start()
        return made[-1]

    yield one_more
    for each in made:
        await each.stop()


@pytest.mark.exhaustive(one_in=4)
@ERAS
@pytest.mark.parametrize("session", [SESSION, ""], ids=["session", "everybody"])
async def test_every_change_is_heard_whichever_process_makes_the_call(
    start: Start, server: Server, session: str, era: str
) -> None:
    processes = [await start(era) for _ in range(3)]
    watcher = processes[1]
    if session:
        await processes[0].call(server, "count", session=session)
    end = await watcher.watch(server, session)
    for number in range(ROUNDS):
        await watcher.hears_touch_by(processes[number % 3], server, session)
    assert [each.heard for each in processes if each is not watcher] == [0, 0]
    assert await processes[2].subscriptions(server, session) == "count 1"
    end()
    for each in processes:
        await until(partial(has_none, each, server, session))


async def has_none(process: Watching, server: Server, session: str) -> bool:
    return await process.subscriptions(server, session) == "count 0"


async def test_one_connection_serves_the_watches_of_all_processes(
    start: Start, server: Server
) -> None:
    first, second = [await start("legacy") for _ in range(2)]
    ends = [await each.watch(server) for each in (first, second)]
    assert await second.subscriptions(server) == "count 1"
    assert await db_call(SessionOwner.objects.count) == 1
    await first.call(server, "touch")
    await until(lambda: first.heard and second.heard)
    ends[0]()
    await second.call(server, "touch")
    await until(lambda: second.heard > 1)
    assert await second.subscriptions(server) == "count 1"
    ends[1]()
    await until(lambda: has_none(first, server, SESSION))


async def test_a_second_host_opens_no_second_stream_at_a_modern_server(
    start: Start, server: Server
) -> None:
    process = await start("modern")
    ends = [await process.watch(server) for _ in range(3)]
    connection = process.pool.sessions.list_slots()[0].connection
    assert connection is not None
    streams: list[object] = []
    client = connection._client
    listen = client.listen
    client.listen = lambda **options: streams.append(options) or listen(**options)
    for end in ends[1:]:
        end()
    followers = process.pool.watches.get_watched(server.pk, SESSION)._followers
    await until(lambda: not any(each.changed.is_set() for each in followers))
    ends.append(await process.watch(server))
    await process.watch(server, uri="repo://me/issues/7")
    assert [each["resource_subscriptions"] for each in streams] == [[URI, "repo://me/issues/7"]]


@ERAS
async def test_a_watch_is_made_again_when_the_owner_has_died(
    start: Start, server: Server, era: str
) -> None:
    first, second = [await start(era) for _ in range(2)]
    await first.call(server, "count")
    end = await second.watch(server)
    assert await first.subscriptions(server) == "count 1"
    await first.die()
    await until(lambda: second.heard)  # what changed in the meantime was not heard
    assert await second.subscriptions(server) == "count 1"
    before = second.heard
    await second.call(server, "touch")
    await until(lambda: second.heard > before)
    end()
    await until(lambda: has_none(second, server, SESSION))


async def test_a_watch_is_made_again_when_its_server_has_died(start: Start, server: Server) -> None:
    first, second = [await start("legacy") for _ in range(2)]
    await first.call(server, "count")
    await second.watch(server)
    with pytest.raises(Exception, match=r"ended|lost|closed"):
        await first.call(server, "die")
    await until(lambda: second.heard)
    before = second.heard
    await first.call(server, "touch")
    await until(lambda: second.heard > before)


async def test_a_process_that_starts_later_is_followed(start: Start, server: Server) -> None:
    first = await start("legacy")
    await first.watch(server, "")
    later = await start("legacy")
    await until(lambda: watched_by_others(later, server))
    await later.call(server, "touch", session="")
    await until(lambda: first.heard)


async def test_changes_of_a_shared_server_are_heard_from_other_machines(
    start: Start, server: Server
) -> None:
    """Also those of a machine that starts later, and whose addresses are known to the database
    alone."""
    first = await start("legacy", is_alone=True)
    assert await first.watches.list_neighbours() == []
    await first.watch(server, "")
    later = await start("legacy", is_alone=True)
    assert await later.watches.list_neighbours() == [first.placement.address]
    await until(lambda: watched_by_others(later, server))
    await first.hears_touch_by(later, server, "")


async def test_processes_on_other_machines_are_remembered_while_the_database_fails(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [await start("legacy", is_alone=True) for _ in range(2)]
    monkeypatch.setattr("mcpregistry.calls.resource_watches.KNOWN_SECONDS", 0.0)
    assert await first.watches.list_neighbours() == [second.placement.address]
    monkeypatch.setattr(SiteProcess.objects, "filter", fail)
    assert await first.watches.list_neighbours() == [second.placement.address]


def fail(**_: Any) -> None:
    raise OperationalError


def watched_by_others(process: Watching, server: Server) -> bool:
    return URI in process.pool.watches.get_watched(server.pk).wanted


async def test_a_process_that_dies_leaves_no_watch_at_others(start: Start, server: Server) -> None:
    first, second = [await start("legacy") for _ in range(2)]
    await first.call(server, "count")
    for session in (SESSION, ""):
        await second.watch(server, session)
    await until(lambda: watched_by_others(first, server))
    await second.die()
    await until(lambda: not watched_by_others(first, server))
    await until(lambda: has_none(first, server, SESSION))


async def test_a_shared_server_is_not_started_for_watches_of_others(
    start: Start, server: Server
) -> None:
    first, second = [await start("legacy") for _ in range(2)]
    await second.watch(server, "")
    assert watched_by_others(first, server)
    assert first.pool.list_states() == {}


async def test_the_end_of_a_session_ends_its_watches(start: Start, server: Server) -> None:
    first, second = [await start("legacy") for _ in range(2)]
    await first.call(server, "count")
    await second.watch(server)
    watched = [each.pool.watches.get_watched(server.pk, SESSION) for each in (first, second)]
    for each in (first, second):
        each.placement.end_session("http:1")
    await until(lambda: all(each.keeper is not None and each.keeper.done() for each in watched))
    await until(lambda: not first.pool.sessions.list_slots())
    assert [each.wanted for each in watched] == [{}, {}]
    assert not second.pool.sessions.list_slots()


async def test_a_refusal_of_the_server_reaches_the_host(start: Start, server: Server) -> None:
    first, second = [await start("legacy", "crash") for _ in range(2)]
    await first.call(server, "pid")
    with pytest.raises(ToolRefused):
        await second.watch(server)
    assert not second.pool.watches.get_watched(server.pk, SESSION)


async def test_a_connection_that_a_watch_opens_is_told_of_its_host(
    start: Start, server: Server
) -> None:
    process = await start("legacy")
    asking = Forwarding({"elicitation": {}})
    opener = Opener(SESSION, asking, asking.questions)
    await process.pool.watches.add(
        server.pk, URI, lambda: None, patience=HANG_LIMIT, session=SESSION, opener=opener
    )
    (slot,) = process.pool.sessions.list_slots()
    assert slot.bears == {"elicitation"}


def test_neighbours_are_the_living_processes_of_the_same_machine(tmp_path: Path) -> None:
    mine = f"a-{os.getpid()}"
    parent = f"a-{os.getppid()}"
    dead = f"a-{2**22 + 1}"
    other = f"b-{os.getppid()}"
    for name in (mine, parent, dead, other):
        announce(tmp_path / f"{name}.peer", f"address of {name}")
    assert list_neighbours(tmp_path / f"{mine}.peer") == [f"address of {parent}"]
    assert not (tmp_path / f"{dead}.peer").exists()
    assert (tmp_path / f"{other}.peer").exists()
