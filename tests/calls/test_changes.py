"""The change feed: everything that others wait for is told, whoever writes it; a deaf process asks,
a blind one stops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from mcpregistry.calls.watch import changes, sources, state_watch
from mcpregistry.calls.watch.changes import Feed, FeedState
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, Configuration, HostTask, Invocation, Server
from mcpregistry.models.feed import topics
from mcpregistry.services.approvals import held_calls
from tests.calls.conftest import add_server, tool
from tests.calls.test_approvals import Make, calling, held, person, vote
from tests.waiting import HANG_LIMIT, eventually, until


class Ears:
    """What a feed has told of each topic; ``None`` stands for "any"."""

    def __init__(self, feed: Feed) -> None:
        self.heard: dict[str, list[frozenset[str] | None]] = {topic: [] for topic in topics()}
        for topic in topics():
            feed.subscribe(topic, self.heard[topic].append)

    def forget(self) -> None:
        for each in self.heard.values():
            each.clear()

    def told(self, topic: str, key: str) -> bool:
        return any(keys is None or key in keys for keys in self.heard[topic])


@pytest.fixture
def feed(live_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    """One that hears: proved on PostgreSQL, where all is told until then. As it begins it has told
    of everything."""
    # a sign that comes late on a slow machine counts as well
    monkeypatch.setattr(sources, "HEARD_WITHIN", HANG_LIMIT)
    feed = Feed()
    begun = threading.Event()
    forget = feed.subscribe(topics()[-1], lambda _: begun.set())
    feed.start()
    eventually(lambda: begun.is_set() and feed._source is not None and feed._source.delivers)
    forget()
    yield feed
    feed.stop()


def call(key: str, **fields: Any) -> Invocation:
    facts = {
        "state": InvocationState.PENDING,
        "agent_slug": "ann",
        "tool_name": "t",
        "outcome": "ask",
        "received_at": timezone.now(),
    }
    return Invocation.objects.create(id=key, **facts | fields)


def test_held_calls_tasks_and_the_configuration_are_told_of_with_their_keys(feed: Feed) -> None:
    one = call("one")
    other = call("other", state=InvocationState.DISPATCHED, outcome="allow")
    task = HostTask.objects.create(
        id="task", call=one, created_at=timezone.now(), updated_at=timezone.now()
    )
    ears = Ears(feed)
    Invocation.objects.filter(pk=one.pk).update(state=InvocationState.READY)
    eventually(lambda: ears.told("calls", "one"))
    HostTask.objects.filter(pk=task.pk).update(version=2)
    eventually(lambda: ears.told("tasks", "task"))
    assert ears.heard["configuration"] == []
    Agent.objects.create(slug="marker")
    eventually(lambda: ears.told("configuration", ""))
    ears.forget()
    # What nobody waits for is not told: of calls like this there are thousands a second.
    Invocation.objects.filter(pk=other.pk).update(state=InvocationState.SUCCEEDED)
    Agent.objects.create(slug="marker-2")
    eventually(lambda: ears.told("configuration", ""))
    assert ears.heard["calls"] == []
    if connection.vendor == "postgresql":
        Invocation.objects.filter(pk=one.pk).update(state=InvocationState.CANCELLED)
        eventually(lambda: ears.told("calls", "one"))
        assert ears.heard["calls"] == [frozenset({"one"})]


def test_what_is_rolled_back_is_told_to_nobody(feed: Feed) -> None:

    one = call("one")
    ears = Ears(feed)
    with transaction.atomic():
        Invocation.objects.filter(pk=one.pk).update(state=InvocationState.READY)
        transaction.set_rollback(True)
    Agent.objects.create(slug="marker")
    eventually(lambda: ears.told("configuration", ""))
    assert ears.heard["calls"] == []


async def test_whoever_waits_hears_of_a_decision_at_once_and_reads_nothing_while_nothing_happens(
    live_db: None, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_watch, "LOOK_ANYWAY", 3_600)  # only the feed can tell
    read: list[list[str]] = []

    def states(keys: list[str]) -> dict[str, InvocationState]:
        found = held_calls.load_call_states(keys)
        read.append(keys)  # when the database has answered: what changes now is read by the next
        return found

    await db_call(call, "one")
    await db_call(call, "two")
    watch: StateWatch[InvocationState] = StateWatch(feed, "calls", states)
    waits = [
        asyncio.ensure_future(watch.wait_for_change(key, InvocationState.PENDING, HANG_LIMIT))
        for key in ("one", "two")
    ]
    await until(lambda: sum(map(len, read)) >= 2)
    ears = Ears(feed)
    await db_call(Configuration.objects.update, default_outcome="deny")
    await until(lambda: ears.heard["configuration"])
    before = len(read)
    assert before <= 2  # the two first looks, and no other, although the feed has looked since
    await db_call(Invocation.objects.filter(pk="one").update, state=InvocationState.READY)
    assert await waits[0] is InvocationState.READY
    assert before < len(read)
    watch.stop()
    assert await waits[1] is InvocationState.PENDING


async def test_the_feed_forgets_who_waits_no_more(
    live_db: None, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_watch, "LOOK_ANYWAY", 0.1)
    await db_call(call, "one")
    for end in (InvocationState.READY, InvocationState.DISPATCHED):
        watch: StateWatch[InvocationState] = StateWatch(
            feed, "calls", held_calls.load_call_states, also=("tasks",)
        )
        before = (await db_call(held_calls.load_call_states, ["one"]))["one"]
        changed = asyncio.ensure_future(watch.wait_for_change("one", before, HANG_LIMIT))
        await until(lambda: feed._listeners["calls"] and feed._listeners["tasks"])
        await db_call(Invocation.objects.filter(pk="one").update, state=end)
        assert await changed is end
        await until(lambda: not feed._listeners["calls"] and not feed._listeners["tasks"])


# A process that does not hear


def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind PgBouncer in transaction mode: LISTEN is accepted, and nothing ever comes."""
    monkeypatch.setattr(sources.PostgresSource, "_read_notifications", lambda self: {})
    monkeypatch.setattr(sources, "HEARD_WITHIN", 0.2)
    monkeypatch.setattr(sources, "LOOK_EVERY", 0.2)


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database answers nothing any more."""

    def gone(_: object) -> dict[str, None]:
        raise OperationalError("the database is away")

    for source in (sources.PostgresSource, sources.SqliteSource):
        monkeypatch.setattr(source, "wait", gone)
    monkeypatch.setattr(changes, "open_source", lambda: gone(None))
    monkeypatch.setattr(changes, "BLIND_AFTER", 0.5)
    monkeypatch.setattr(changes, "_BREAK", 0.05)


async def test_a_process_that_notifications_do_not_reach_asks_instead_and_says_so(
    live_db: None, site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf(monkeypatch)
    here = await site()
    if connection.vendor == "postgresql":
        await until(
            lambda: here.engine.feed.state is FeedState.POLLING and here.engine.feed._source._warned
        )
    waiting = calling(here)
    await held()
    await vote(bob)
    assert (await waiting).state is InvocationState.SUCCEEDED

    await db_call(Agent.objects.update, enabled=False)
    await until(lambda: not here.engine.live.current.agents)


async def test_a_process_that_can_neither_hear_nor_ask_makes_no_calls(
    live_db: None, site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch
) -> None:

    await db_call(Configuration.objects.update, default_outcome="allow")
    here = await site()
    assert (await here.call("echo__echo", {"n": 1})).state is InvocationState.SUCCEEDED
    with monkeypatch.context() as away:
        silent(away)
        await until(lambda: here.engine.feed.state is FeedState.BLIND)
        with pytest.raises(QueueFullError, match="configuration may be out of date"):
            await here.call("echo__echo", {"n": 2})
    await until(lambda: here.engine.feed.state is not FeedState.BLIND)
    assert (await here.call("echo__echo", {"n": 3})).state is InvocationState.SUCCEEDED
    assert [sent["arguments"]["n"] for sent in here.sent()] == [1, 3]


@pytest.mark.exhaustive
def test_an_idle_process_costs_next_to_nothing(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks in a second, whatever the clock of a busy machine: their number is what an idle process
    costs."""
    looks: list[float] = []
    source = type(feed._source)
    monkeypatch.setattr(source, "wait", _counted(source.wait, looks))
    began = time.monotonic()
    time.sleep(2.0)
    # which may be more on a busy machine
    count = len(looks)
    seconds = time.monotonic() - began
    assert count <= (seconds / sources.TICK + 2 if connection.vendor == "sqlite" else 4 * seconds)


def _counted(real: Callable[[Any], Any], looks: list[float]) -> Callable[[Any], Any]:
    def wait(self: Any) -> Any:
        looks.append(time.monotonic())
        return real(self)

    return wait


@pytest.fixture
def asking(live_db: None, journal: Any) -> Server:
    server = add_server("echo", tool("echo"), env={"FAKE_JOURNAL": str(journal)})
    Configuration.objects.update(default_outcome="ask")
    return server


@pytest.fixture
def bob(live_db: None) -> User:
    return person("bob")
