"""The queue of a headend: agents take turns, and each agent's requests keep their order."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpregistry.db import db_call
from mcpregistry.models import Agent, Endpoint
from mcpregistry.services.access import agents
from subagents.models import ExpertTool, Headend, HeadendRequest
from subagents.services.headends import queue_places
from subagents.services.headends.queue_places import QueueFull, QueuePlace
from tests.calls.conftest import ACTOR
from tests.subagents.headends.conftest import headend, token
from tests.subagents.headends.test_endings import CHAT, _blocking_place, _queue_is, asked
from tests.subagents.headends.test_openai import prepared
from tests.subagents.kit import Bench
from tests.waiting import until

pytestmark = pytest.mark.both_databases


@pytest.fixture
def row(db: None) -> Headend:
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    return headend()


def join(
    row: Headend, agent: str, concurrency: int = 1, longest_queue: int = 100, process: str = "p"
) -> QueuePlace:
    return queue_places.join_queue(
        headend=row.pk,
        agent=agent,
        fingerprint="x",
        process=process,
        concurrency=concurrency,
        longest_queue=longest_queue,
    )


def order(row: Headend) -> list[str]:
    """The agents of the active places, in their order."""
    return list(queue_places.query_active_places(row.pk).values_list("agent_slug", flat=True))


def run_next(row: Headend) -> str:
    """End the first request, and return the agent that runs then."""
    place = queue_places.query_active_places(row.pk).first()
    assert place is not None
    queue_places.release(place.pk)
    return order(row)[0]


def test_the_first_request_of_an_agent_does_not_wait_for_all_of_another(row: Headend) -> None:
    for _ in range(31):
        join(row, "ann")
    join(row, "bob")
    assert order(row)[:3] == ["ann", "bob", "ann"]


def test_waiting_agents_take_turns(row: Headend) -> None:
    for agent in ["ann"] * 6 + ["bob"] * 3 + ["eve"] * 2:
        join(row, agent)
    assert order(row) == [
        "ann",
        "bob",
        "eve",
        "ann",
        "bob",
        "eve",
        "ann",
        "bob",
        "ann",
        "ann",
        "ann",
    ]


def test_requests_of_one_agent_keep_their_order(row: Headend) -> None:
    made = [join(row, "ann").id for _ in range(5)]
    join(row, "bob")
    mine = queue_places.query_active_places(row.pk).filter(agent_slug="ann")
    assert list(mine.values_list("pk", flat=True)) == made


def test_an_agent_that_asks_again_and_again_does_not_pass_one_that_waits(row: Headend) -> None:
    """Each of its requests is the only one, so it is always the first of its agent."""
    join(row, "ann")
    for _ in range(5):
        join(row, "bob")
    ran = []
    for _ in range(8):
        ran.append(run_next(row))
        if ran[-1] == "ann" or "ann" not in order(row):
            join(row, "ann")
    assert max(len(list(group)) for group in _groups(ran)) <= 2
    assert ran.count("bob") >= 3


def _groups(names: list[str]) -> list[list[str]]:
    groups: list[list[str]] = []
    for name in names:
        if groups and groups[-1][0] == name:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def test_a_full_queue_has_room_for_an_agent_without_a_request(row: Headend) -> None:
    for _ in range(3):
        join(row, "ann", longest_queue=2)
    with pytest.raises(QueueFull):
        join(row, "ann", longest_queue=2)
    join(row, "bob", longest_queue=2)
    with pytest.raises(QueueFull):
        join(row, "bob", longest_queue=2)
    with pytest.raises(QueueFull):
        join(row, "eve", longest_queue=0)  # a headend without a queue


@pytest.mark.one_database
@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.one_of(st.sampled_from(["ann", "bob", "eve"]), st.integers(0, 9)), max_size=40),
)
def test_what_may_run_stays_so_whatever_happens(concurrency: int, acts: list[str | int]) -> None:
    """The rounds of ``join_queue`` without rows. A place that may run does so until it is
    released."""
    queue: list[tuple[int, int, str]] = []
    running: set[int] = set()
    # per waiting place: how many requests of other agents went before it
    waited: dict[int, dict[str, int]] = {}
    for number, act in enumerate(acts):
        if isinstance(act, str):
            own = [each[0] for each in queue if each[2] == act]
            round_ = queue_places._next_round([each[0] for each in queue], own, concurrency)
            if not own:
                waited[number] = {}
            queue = sorted([*queue, (round_, number, act)])
        elif queue:
            queue.pop(act % min(concurrency, len(queue)))
        now = {each[1] for each in queue[:concurrency]}
        present = {each[1] for each in queue}
        assert running & present <= now, "a place that runs lost its turn"
        for _, _, agent in (each for each in queue if each[1] in now - running):
            for first in waited.keys() & (present - now):
                waited[first][agent] = waited[first].get(agent, 0) + 1
                assert waited[first][agent] <= 1, (
                    "an agent went twice before another's first request"
                )
        running = now


@pytest.mark.exhaustive(but=("1",))
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.usefixtures("live_db")
def test_places_that_are_assigned_at_the_same_time_take_turns(concurrency: int) -> None:
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    row = headend()

    def many(agent: str) -> None:
        for _ in range(8):
            join(row, agent, concurrency, process=agent)
        connection.close()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(many, ["ann", "bob", "eve"]))
    for agent in ("ann", "bob", "eve"):
        rounds = list(
            HeadendRequest.objects.filter(agent_slug=agent)
            .order_by("id")
            .values_list("queue_round", flat=True)
        )
        assert rounds == sorted(set(rounds)), (
            "one request of an agent in each round, in the order of arrival"
        )


@pytest.mark.exhaustive
async def test_a_second_agents_client_is_answered_before_the_first_ones_backlog(
    bench: Bench, serving: Any
) -> None:
    """Over HTTP, with two processes that wait in one queue."""

    def prepare() -> tuple[str, str]:
        key = prepared(bench)
        bob = agents.save_agent(agent=Agent(slug="bob"), actor="test")
        ExpertTool.objects.get().users.add(bob)
        Headend.objects.update(concurrency=1)
        return key, token("bob")

    ann, bob = await db_call(prepare)
    one = await serving()
    two = await serving()
    blocked = await db_call(_blocking_place)
    async with one.client(ann) as hers, two.client(bob) as his:
        asking = []
        for number in range(4):
            asking.append(asyncio.ensure_future(hers.post(CHAT, json=asked(f"ann{number}"))))
            await until(lambda n=number: _queue_is(n + 2))
        asking.append(asyncio.ensure_future(his.post(CHAT, json=asked("bob"))))
        await until(lambda: _queue_is(6))
        await db_call(queue_places.release, blocked)
        answers = await asyncio.gather(*asking)
    assert {each.status_code for each in answers} == {200}
    sent = [each["arguments"]["text"] for each in bench.sent()]
    assert sent.index("bob") <= 1, sent
    assert [text for text in sent if text != "bob"] == ["ann0", "ann1", "ann2", "ann3"]
