"""The database fails once, at each place where a task needs it: the host hears of one end, and that
is the call's.

Tasks that a server has made of a call (followed, answered, cancelled, handed over to another
process), and the handlers by which hosts ask for them. A request that fails is repeated, as hosts
do; nothing is made twice for that.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from django.db import OperationalError
from django.utils import timezone
from mcp import types as t
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPError

from mcpregistry.calls.call import CallHost, CallOutcome
from mcpregistry.calls.remote_tasks import adoption
from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import TASKS, Forwarding
from mcpregistry.domain.calls.task_view import DONE
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.gateway import host_questions
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.tasks.task_handlers import TaskParams, Tasks, UpdateParams, find_task_id
from mcpregistry.gateway.tasks.task_streams import TaskStreams
from mcpregistry.models import Agent, Configuration, Endpoint, Invocation, Server
from mcpregistry.services.access import agents, grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import lifecycle
from tests.calls.conftest import ACTOR, Site, journal, site
from tests.fakes import sdk
from tests.fakes.servers import tasks_server
from tests.fakes.targets import LOOPBACK
from tests.fault.agreement import contradictions
from tests.fault.database import elsewhere, failing, reached, until
from tests.waiting import HANG_LIMIT

__all__ = ["journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
R = TypeVar("R")
DECLARED: dict[str, Any] = {"extensions": {TASKS: {}}, "elicitation": {"form": {}}}
ABLE = CallHost(name="x", transport="http", tasks=True, forwarding=Forwarding(DECLARED))
CALLER = Caller("ann", "default", "http")


@pytest.fixture(scope="module")
def maker() -> tasks_server.TasksServer:
    return tasks_server.TasksServer()


@pytest.fixture(scope="module")
def address(maker: tasks_server.TasksServer) -> Iterator[str]:
    with sdk.serving(maker.server.streamable_http_app()) as found:
        yield f"{found}/mcp"


@pytest.fixture
def remote(live_db: None, address: str, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server that makes tasks; our clocks run fast."""
    for name in ("_TICK", "RENEW", "SEARCH", "_FIRST_RETRY"):
        monkeypatch.setattr(adoption, name, 0.05)
    server = Server(slug="remote", transport="http", url=address, allowed_networks=list(LOOPBACK))
    server = lifecycle.save_server(server=server, actor=ACTOR)
    server = lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    observe.observe(server=server, listed=tasks_server.TOOLS)
    decisions.approve_waiting(server=server, actor=ACTOR)
    grants.grant_access(
        agent=agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR), server=server, actor=ACTOR
    )
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    Configuration.objects.update(default_outcome="allow")
    return server


class Play:
    """A host with tasks, in this process."""

    def __init__(self, here: Site, point: str, done: Path) -> None:
        self.here = here
        self.tasks = Tasks(here.engine, CALLER)
        self.point = point  # where the database fails
        self.done = done  # the file for which work with ``until`` waits
        self.notes: list[Any] = []
        session = SimpleNamespace(
            client_capabilities=t.ClientCapabilities(**DECLARED), send_notification=self._note
        )
        self.ctx: Any = SimpleNamespace(
            protocol_version="2026-07-28",
            request=None,
            request_id=1,
            method="tasks",
            session=session,
            params={},
        )

    async def _note(self, note: Any, **_: Any) -> None:
        self.notes.append(note)

    async def call(self, tool: str, **arguments: Any) -> CallOutcome:
        return await self.here.call(f"remote__{tool}", arguments, host=ABLE)

    async def begin(self, tool: str, **arguments: Any) -> str:
        """The id of the task, as the host is told it; empty where the call became none."""
        self.first = await self.call(tool, **arguments)
        if not (task_id := find_task_id(self.first)):
            return ""
        return str((await self.tasks.build_handle(task_id, CALLER))["taskId"])

    async def look(self, task_id: str) -> dict[str, Any]:
        return await again(lambda: self.tasks.get(self.ctx, TaskParams(task_id=task_id)))

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        wanted = set(statuses) or DONE
        async with asyncio.timeout(HANG_LIMIT):
            while (seen := await self.look(task_id))["status"] not in wanted:
                assert wanted <= DONE or seen["status"] not in DONE, seen
                await asyncio.sleep(0.02)
        return seen


async def again(ask: Callable[[], Awaitable[R]]) -> R:
    """As hosts do, once."""
    with suppress(OperationalError, MCPError):
        return await ask()
    return await ask()


def told_of(seen: dict[str, Any]) -> InvocationState:
    """What the end of a task says of its call."""
    if seen["status"] == "cancelled":
        return InvocationState.CANCELLED
    result = seen.get("result", {})
    if not result.get("isError"):
        return InvocationState.SUCCEEDED
    return InvocationState(
        (result.get("structuredContent") or {}).get("state", InvocationState.TOOL_ERROR)
    )


async def followed(play: Play) -> InvocationState:
    """It takes a moment, and its host asks until it has ended."""
    task_id = await play.begin("slow_compute", seconds=0.3)
    return told_of(await play.until(task_id)) if task_id else play.first.state


async def asks(play: Play) -> InvocationState:
    """The server asks, and the host answers."""
    task_id = await play.begin("confirm_delete", filename="a")
    asked = await play.until(task_id, "input_required")
    # the others come to it while nobody answers
    if play.point not in ("host_tasks.store_answers", "remote_tasks.record_passed_answers"):
        await reached()
    said = {
        key: {"action": "accept", "content": {"confirm": True}} for key in asked["inputRequests"]
    }
    answer = UpdateParams(task_id=task_id, input_responses=said)
    await again(lambda: play.tasks.update(play.ctx, answer))
    seen = await play.until(task_id)
    assert "a deleted" in str(seen["result"])
    return told_of(seen)


async def stops(play: Play) -> InvocationState:
    """The host cancels what is out: who knows what it has done by then."""
    task_id = await play.begin("slow_compute", seconds=10_000)
    await again(lambda: play.tasks.cancel(play.ctx, TaskParams(task_id=task_id)))
    assert (await play.until(task_id))["status"] == "cancelled"
    return InvocationState.UNKNOWN


async def hears(play: Play) -> InvocationState:
    """The host listens instead of asking; a stream that breaks off is opened again."""
    task_id = await play.begin("slow_compute", until=str(play.done))
    streams = TaskStreams(play.tasks, play.here.engine.feed)
    params = t.SubscriptionsListenRequestParams.model_validate(
        {"notifications": {"taskIds": [task_id]}}
    )
    async with asyncio.timeout(HANG_LIMIT):
        listening = asyncio.ensure_future(
            again(lambda: streams.listen(CALLER, play.ctx, params, InMemorySubscriptionBus()))
        )
        await reached()
        play.done.touch()
        await listening
    last = play.notes[-1].params
    assert (last["taskId"], last["status"]) == (task_id, "completed")
    return told_of(last)


async def moves(play: Play) -> InvocationState:
    """Its process stops, and another one goes on."""
    task_id = await play.begin("slow_compute", until=str(play.done))
    await play.here.engine.adoption.close()
    # what was not given up is free when its lease is over
    over = timezone.now() - timedelta(seconds=1)
    await elsewhere(lambda: Invocation.objects.filter(state="dispatched").update(lease_until=over))
    play.here.engine.adoption.start()
    await reached()
    play.done.touch()
    return told_of(await play.until(task_id))


async def held(play: Play) -> InvocationState:
    """People are asked, and the host takes it back."""
    task_id = await play.begin("slow_compute", seconds=0)
    if not task_id:
        return play.first.state
    await again(lambda: play.tasks.cancel(play.ctx, TaskParams(task_id=task_id)))
    return told_of(await play.until(task_id))


STORIES = {each.__name__: each for each in (followed, asks, stops, hears, moves, held)}
POINTS: dict[str, list[str]] = {
    "followed": [
        "remote_tasks.adopt_task",
        "task_handlers.Tasks._find_task@1",
        "task_handlers.Tasks._find_task@2",
        "remote_tasks.finish_task",
    ],
    "asks": [
        "remote_tasks.record_task_status",
        "remote_tasks.load_host_wishes",
        "remote_tasks.renew_task_leases",
        "remote_tasks.list_orphaned_tasks",
        "host_tasks.store_answers",
        "remote_tasks.record_passed_answers",
    ],
    "stops": ["host_tasks.withdraw_task"],
    "hears": [
        "host_tasks.filter_own_tasks",
        "host_tasks.load_task_versions",
        "task_streams.TaskStreams._build_views",
        "task_streams._load_versions",
    ],
    "moves": ["remote_tasks.release_task", "remote_tasks.take_over_task"],
    "held": [
        "held_calls.ask",
        "task_handlers.Tasks._find_task@1",
        "host_tasks.withdraw_task",
        "held_calls.cancel",
    ],
    "said": ["idempotency.claim"],
}
CELLS = [(story, point) for story in STORIES for point in POINTS[story]]


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.exhaustive(on="postgresql")
@pytest.mark.parametrize(("story", "point"), CELLS)
async def test_what_a_host_hears_of_a_task_is_the_end_of_its_call(
    site: Any,
    remote: Server,
    maker: tasks_server.TasksServer,
    tmp_path: Path,
    story: str,
    point: str,
) -> None:
    if story == "held":
        await db_call(Configuration.objects.update, default_outcome="ask")
    play = Play(await site(), point, tmp_path / "done")
    made = len(maker.jobs)
    with failing(point):
        told = await STORIES[story](play)
    call_id = play.first.invocation_id
    sent = len(maker.jobs) - made
    if await elsewhere(lambda: Invocation.objects.filter(pk=call_id).exists()):
        await until(lambda: Invocation.objects.filter(pk=call_id, state__in=TERMINAL).exists())
    assert await db_call(contradictions, told, call_id, sent) == []
    assert await db_call(lambda: Invocation.objects.filter(finished_at=None).count()) == 0


async def test_an_answer_that_could_not_be_noted_may_be_given_once_more(live_db: None) -> None:
    """What the person at the host said counts once: a fault has not used it up."""
    state = {"kind": "question", "request": "r1", "nonce": "n1", "asked": time.time()}
    params = {
        "requestState": json.dumps(state),
        "inputResponses": {host_questions._KEY: {"action": "accept", "content": {}}},
    }
    ctx: Any = SimpleNamespace(params=params)
    with failing("idempotency.claim"), pytest.raises(OperationalError):
        await host_questions._read_reply(ctx)
    assert await host_questions._read_reply(ctx) is not None
    with pytest.raises(MCPError):
        await host_questions._read_reply(ctx)
