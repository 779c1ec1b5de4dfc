"""A hosted agent answers in its conversations by runs, as its energy allows, with built-in tools
and those of servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.db import db_call
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Agent, Conversation, EnergyPool, Invocation, Message
from mcpregistry.models.conversation import MessageKind
from mcpregistry.services.conversations import lifecycle, messages
from mcpregistry.services.energy import pools
from subagents.domain.maintenance import ControlRequest, Kind, State
from subagents.domain.maintenance import RequestMessageKind as Told
from subagents.effort import agents, cycle
from subagents.effort.driver import Loops
from subagents.effort.tools import _run_tool
from subagents.maintenance import manager, queue, request_lease
from subagents.models import CycleLog, EffortAgent, Exchange, ExpertTool, MaintenanceRequest, Run
from tests.calls.conftest import journal
from tests.fault.database import until
from tests.subagents.kit import Bench, calls
from tests.subagents.runs.conftest import bench, worker, working

__all__ = ["bench", "journal", "worker", "working"]  # fixtures

ACTOR = "test"
FEW = 30  # statements of the database; how long they take is measured by benchmarks.responsiveness


def hosted(bench: Bench, *turns: Any, **fields: Any) -> EffortAgent:
    server = bench.server("echo", "echo")
    expert = bench.expert(bench.model("m", *turns), uses=[server], **fields)
    return agents.save_effort_agent(row=EffortAgent(expert=expert, cycle_seconds=0.2), actor=ACTOR)


def begun() -> Conversation:
    row = Conversation(agent=ExpertTool.objects.get().agent)
    return lifecycle.save_conversation(conversation=row, actor=ACTOR)


def write(row: Conversation, text: str, user: User | None = None) -> Message:
    return messages.add_message(
        conversation=row, kind=MessageKind.IN, text=text, author="user:ann", user=user
    )


def said(row: Conversation) -> list[tuple[str, str]]:
    return list(Message.objects.filter(conversation=row).values_list("kind", "text"))


def held(row: EffortAgent) -> Any:
    taken = cycle.take(row.pk, worker="test")
    assert taken is not None
    return taken


@pytest.fixture
async def talking(working: Any) -> AsyncIterator[Callable[..., Any]]:
    """``await talking(row)``: a worker that drives the agent, and its runs, and is woken by a
    clock."""
    made: list[Loops] = []
    clocks: list[asyncio.Task[None]] = []

    async def clock(here: Loops) -> None:
        """As the site's: a worker on a busy machine gives the agent back when its lease could not
        be renewed in time."""
        while True:
            for key in await db_call(cycle.list_due_agents, timezone.now()):
                here.wake(key)
            await asyncio.sleep(1)

    async def start(row: EffortAgent) -> Loops:
        here = await working()
        made.append(Loops(here.engine, f"loop-{len(made)}"))
        clocks.append(asyncio.ensure_future(clock(made[-1])))
        return made[-1]

    yield start
    for each in clocks:
        each.cancel()
    ends = await asyncio.gather(*clocks, return_exceptions=True)
    assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []
    for each in made:
        await each.stop()


@pytest.mark.exhaustive
async def test_it_answers_what_people_write_with_its_tools_and_knows_what_was_said(
    bench: Bench, talking: Any
) -> None:
    turns = [
        calls(
            ("echo__echo", {"text": "clock"}),
            ("think", {"text": "Look first."}),
            ("respond", {"text": "One moment."}),
        ),
        {"text": "It is noon."},
    ]
    row = await db_call(hosted, bench, *turns)
    ann = await db_call(User.objects.create_user, "ann")
    talk = await db_call(begun)
    await talking(row)
    await db_call(write, talk, "How late is it?", ann)
    await until(lambda: len(said(talk)) == 4)
    assert sorted(await db_call(said, talk)) == sorted(
        [
            ("in", "How late is it?"),
            ("thought", "Look first."),
            ("out", "One moment."),
            ("out", "It is noon."),
        ]
    )
    runs = await db_call(
        lambda: list(Run.objects.values_list("origin", "conversation", "requester_id"))
    )
    assert runs == [("talk", talk.pk, ann.pk)]
    inner = await db_call(
        lambda: set(Invocation.objects.values_list("exposed_name", "conversation"))
    )
    assert inner == {(name, talk.pk) for name in ("echo__echo", "think", "respond")}
    await db_call(write, talk, "Really?")
    await until(lambda: Exchange.objects.filter(told_at__isnull=False).count() == 2)
    asked = await db_call(lambda: Run.objects.latest("created_at").arguments)
    for each in (
        "Person: How late is it?",
        "You, to yourself: Look first.",
        "You: It is noon.",
        "Person: Really?",
    ):
        assert each in asked


def test_an_answer_is_made_and_told_once_whoever_takes_over(bench: Bench) -> None:
    row = hosted(bench, {"text": "x"})
    talk = begun()
    write(talk, "a")
    cycle.turn(taken := held(row))
    cycle.turn(taken)
    assert Run.objects.count() == 1
    cycle.AGENTS.release(taken)
    cycle.turn(taken := held(row))
    write(talk, "b")
    cycle.turn(taken)
    assert Run.objects.count() == 1, "one answer after the other"
    Run.objects.update(state="done", answer="Yes.", finished_at=timezone.now())
    cycle.turn(taken)
    assert said(talk) == [("in", "a"), ("in", "b"), ("out", "Yes.")]
    assert Run.objects.count() == 2, "what was written meanwhile is answered next"
    assert cycle.take(row.pk, worker="other") is None
    assert [each.decision.split(": ")[1][:8] for each in CycleLog.objects.order_by("id")] == [
        "started ",
        "answered",
    ]


def test_below_the_critical_level_nothing_is_begun_and_awaiting_a_level_ends_by_itself(
    bench: Bench,
) -> None:
    row = hosted(bench, {"text": "x"})
    talk = begun()
    pool = pools.save_pool(pool=EnergyPool(slug="p", capacity=100, regeneration=0), actor=ACTOR)
    Agent.objects.filter(pk=row.expert.agent_id).update(energy_pool=pool)
    EnergyPool.objects.update(level=9.9)
    write(talk, "a")
    taken = held(row)
    for _ in range(3):
        cycle.turn(taken)
    assert (Run.objects.count(), CycleLog.objects.get().decision) == (
        0,
        "1 conversation waits for energy",
    )
    EnergyPool.objects.update(level=10.0)
    assert (
        _run_tool("await_energy", row.expert.agent.slug, talk.pk, {"level": 50})
        == "Answers are paused until your energy pool has reached 50 units."
    )
    cycle.turn(taken)
    assert Run.objects.count() == 0
    EnergyPool.objects.update(level=50)
    cycle.turn(taken)
    row.refresh_from_db()
    assert (Run.objects.count(), row.awaits_level) == (1, None)
    assert CycleLog.objects.latest("id").level == 50


def test_snoozed_ended_and_unselected_conversations_are_left_alone(bench: Bench) -> None:
    row = hosted(bench, {"text": "x"})
    talks = [begun() for _ in range(4)]
    for each in talks:
        write(each, "a")
    _run_tool("snooze_conversation", row.expert.agent.slug, talks[0].pk, {"seconds": 3600})
    lifecycle.end_conversation(conversation=talks[1], actor=ACTOR)
    _run_tool("select_conversation", row.expert.agent.slug, talks[3].pk, {"id": talks[2].pk})
    cycle.turn(taken := held(row))
    assert [each.conversation_id for each in Exchange.objects.all()] == [talks[2].pk]
    _run_tool("select_conversation", row.expert.agent.slug, talks[2].pk, {"id": ""})
    Conversation.objects.filter(pk=talks[0].pk).update(
        snoozed_until=timezone.now() - timedelta(seconds=1)
    )
    cycle.turn(taken)
    assert {each.conversation_id for each in Exchange.objects.all()} == {
        talks[0].pk,
        talks[2].pk,
        talks[3].pk,
    }


def test_others_are_told_once_of_the_selected_conversation_and_answered_when_it_has_ended(
    bench: Bench,
) -> None:
    row = hosted(bench, {"text": "x"})
    selected = begun()
    other = begun()
    _run_tool("select_conversation", row.expert.agent.slug, selected.pk, {"id": selected.pk})
    write(other, "Hello?")
    taken = held(row)
    for _ in range(2):
        cycle.turn(taken)
    assert [kind for kind, _ in said(other)] == ["in", "out"]
    assert "I answer only" in said(other)[-1][1]
    assert not Exchange.objects.exists()
    lifecycle.end_conversation(conversation=selected, actor=ACTOR)
    cycle.turn(taken)
    assert [each.conversation_id for each in Exchange.objects.all()] == [other.pk]
    assert EffortAgent.objects.get().focus == ""


def test_what_cannot_be_begun_is_said_once(bench: Bench) -> None:
    row = hosted(bench, {"text": "x"})
    talk = begun()
    bench.provider.enabled = False
    bench.provider.save()
    write(talk, "a")
    taken = held(row)
    for _ in range(2):
        cycle.turn(taken)
    kinds = [kind for kind, _ in said(talk)]
    assert (kinds, "I could not answer: " in said(talk)[-1][1]) == (["in", "out"], True)


async def test_its_own_acts(bench: Bench, talking: Any) -> None:
    row = await db_call(
        hosted,
        bench,
        calls(
            ("await_energy", {"level": 20}),
            ("select_conversation", {"id": "nope"}),
            ("snooze_conversation", {"seconds": 60}),
            ("end_conversation", {}),
        ),
        {"text": "Bye."},
    )
    talk = await db_call(begun)
    await db_call(write, talk, "Go away.")
    await talking(row)
    await until(lambda: Exchange.objects.filter(told_at__isnull=False).exists())
    talk = await db_call(Conversation.objects.get, pk=talk.pk)
    assert (talk.state, talk.snoozed_until is not None) == ("ended", True)
    told = dict(
        await db_call(lambda: list(Invocation.objects.values_list("exposed_name", "result")))
    )
    assert "You do not have an energy pool" in told["await_energy"]
    assert "no open conversation with this id" in told["select_conversation"]
    assert (await db_call(said, talk)) == [("in", "Go away.")], "nothing is written after the end"


def test_each_cycle_polls_the_sub_agent_decides_on_its_work_and_writes_that_down(
    bench: Bench, monkeypatch: Any
) -> None:
    monkeypatch.setattr("subagents.maintenance.queue.send_task", lambda task: True)
    row = hosted(bench, {"text": "x"})
    talk = begun()
    pool = pools.save_pool(
        pool=EnergyPool(slug="p", regeneration=0, low_policy="auto"), actor=ACTOR
    )
    Agent.objects.filter(pk=row.expert.agent_id).update(energy_pool=pool)
    EnergyPool.objects.update(level=12)
    asked = queue.ask(
        kind=Kind.SEARCH,
        params={"query": "git", "limit": 1},
        actor=ACTOR,
        agent=row.expert.agent,
        conversation=talk.pk,
    )
    work = MaintenanceRequest.objects.filter(pk=asked.pk)
    work.update(state="in_progress", energy_total=3, energy_unreported=3)
    taken = held(row)

    def logged() -> tuple[float | None, float, float | None, str]:
        cycle.turn(taken)
        log = CycleLog.objects.first()
        assert log is not None
        return log.level, log.polled, log.level_after, log.decision

    assert logged() == (12, 3, 9, f"paused {asked}")
    cycle.turn(taken)
    assert CycleLog.objects.count() == 1, "a cycle that finds nothing leaves no row"
    EnergyPool.objects.update(level=29.9)
    cycle.turn(taken)
    assert work.get().wish == ControlRequest.PAUSE
    EnergyPool.objects.update(level=30)
    assert logged() == (30, 0, 30, f"resumed {asked}")
    queue.tell(asked, Told.STATUS, progress=40, message="Looking.")
    assert logged()[3] == "received 1 message from the sub-agent"
    assert said(talk) == []
    queue.end(work.get(), State.COMPLETED, result={"servers": []})
    assert f"{talk.pk}: started an answer" in logged()[3]
    assert "completion" in said(talk)[0][1]
    assert "The background sub-agent: " in Run.objects.get().arguments
    assert all(took > 0 for took in CycleLog.objects.values_list("took_ms", flat=True))
    with CaptureQueriesContext(connection) as asked_of_database:
        cycle.turn(taken)
    assert len(asked_of_database) <= FEW, (
        "a cycle that finds nothing is quick: it is made of a few reads of few rows"
    )


def test_what_it_asked_of_the_sub_agent_stands_still_while_its_cycles_do(
    bench: Bench, monkeypatch: Any
) -> None:
    monkeypatch.setattr("subagents.maintenance.queue.send_task", lambda task: True)
    row = hosted(bench, {"text": "x"})
    asked = queue.ask(
        kind=Kind.SEARCH, params={"query": "git", "limit": 1}, actor=ACTOR, agent=row.expert.agent
    )
    other = queue.ask(kind=Kind.SEARCH, params={"query": "git", "limit": 1}, actor=ACTOR)
    assert queue.list_due_requests(timezone.now(), 9) == [other.pk]
    taken = held(row)
    assert set(queue.list_due_requests(timezone.now(), 9)) == {asked.pk, other.pk}
    work = request_lease.take(asked.pk, worker="w")
    assert work is not None
    cycle.AGENTS.release(taken)
    meter = request_lease.Meter()
    assert manager._begin(work, meter) == ControlRequest.HALT, "it stops at its next step"
    request_lease.halt_request(work, meter)
    asked.refresh_from_db()
    assert (asked.lease_until, asked.finished_at) == (None, None)
    assert queue.list_due_requests(timezone.now(), 9) == [other.pk]
    held(row)
    assert asked.pk in queue.list_due_requests(timezone.now(), 9)


@pytest.mark.one_database
def test_an_expert_tool_that_takes_no_single_text_cannot_speak(bench: Bench) -> None:
    two = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "required": ["a", "b"],
    }
    with pytest.raises(ConfigInvalid, match="only required argument is not a text argument"):
        hosted(bench, {"text": "x"}, arguments=two)


async def test_switched_off_it_stops_and_another_worker_may_go_on(
    bench: Bench, talking: Any
) -> None:
    row = await db_call(hosted, bench, {"text": "x"})
    await talking(row)
    await until(lambda: EffortAgent.objects.filter(lease_until__isnull=False).exists())
    await db_call(EffortAgent.objects.filter(pk=row.pk).update, enabled=False)
    await until(lambda: EffortAgent.objects.filter(lease_until=None).exists())
    assert await db_call(cycle.list_due_agents, timezone.now()) == []


@pytest.mark.exhaustive
async def test_a_narrowed_conversation_narrows_what_its_own_agent_may_use(
    bench: Bench, talking: Any
) -> None:
    row = await db_call(hosted, bench, calls(("echo__echo", {})), {"text": "No echo here."})
    await db_call(bench.server, "multi", "all")
    talk = await db_call(begun)
    await db_call(Conversation.objects.filter(pk=talk.pk).update, servers=["multi"])
    await db_call(write, talk, "Call it.")
    await talking(row)
    await until(lambda: Exchange.objects.filter(told_at__isnull=False).exists())
    assert (await db_call(said, talk))[-1] == ("out", "No echo here.")
    assert not await db_call(Invocation.objects.filter(server_slug="echo").exists)
