"""Expert tools at the real doors: the host takes a task, and its answer outlives every process that
had to do with it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from mcpregistry.calls.background_engine import BackgroundEngine
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, Endpoint, Invocation, Server
from mcpregistry.services.access import grants
from subagents.domain.lifecycle import RunState
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import load
from subagents.models import ExpertTool, LanguageModel, Provider, Run
from subagents.runs.engine import RunEngine
from subagents.services import experts, runs
from tests.calls.conftest import broken
from tests.fakes.hosts import http_host
from tests.fakes.stage import ACTOR, Stage, fresh, listed, outside, web
from tests.gateway.tasks.conftest import ABLE
from tests.gateway.tasks.play import ask, begin, call, look, text_of, until
from tests.subagents.kit import ready_provider
from tests.waiting import HANG_LIMIT

pytestmark = pytest.mark.e2e

SCRIPT = {
    "asks": {
        "turns": [
            {"calls": [{"name": "said__echo", "arguments": {"text": "{{ user.json.text }}"}}]},
            {"text": "It said {{ last.json.arguments.text }}."},
        ]
    },
    "counts": {
        "turns": [{"calls": [{"name": "slow__count", "arguments": {"steps": 1000, "pause": 0.1}}]}]
    },
}
WORDS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture(scope="module")
def knowing(stage: Stage, token: str) -> Iterator[None]:
    """Two expert tools of the agent "local": one that answers, one that would count for minutes."""
    models = ScriptedModels(load(SCRIPT))
    with run_server(models) as base:
        provider = ready_provider("scripts", base_url=f"{base}/v1", timeout=HANG_LIMIT)
        said = stage.fake("echo", listed("echo"), slug="said")
        slow = stage.fake("slow", listed("count"))
        _expert(provider, "asks", said)
        _expert(provider, "counts", slow)
        yield


def _expert(provider: Provider, name: str, server: Server) -> None:
    model = LanguageModel.objects.create(
        provider=provider, name=name, free=True, tokenizer="gemini"
    )
    tool = ExpertTool(name=name, description="Knows.", arguments=WORDS, max_seconds=600)
    expert = experts.save_expert(expert=tool, targets=[model], actor=ACTOR)
    grants.grant_access(agent=expert.agent, server=server, actor=ACTOR)
    users = Agent.objects.filter(slug="local")
    endpoints = Endpoint.objects.filter(slug="default")
    experts.offer(expert=expert, agents=users, endpoints=endpoints, actor=ACTOR)


@pytest.fixture
def clock(worker: BackgroundEngine) -> Iterator[threading.Event]:
    """A worker that looks for runs as the clock does, from the moment that the event is set."""
    engine = RunEngine(worker.engine, "worker-test")
    begins = threading.Event()
    stops = threading.Event()

    def tick() -> None:
        begins.wait()
        while not stops.wait(0.05):
            for run_id in [*runs.list_due_runs(timezone.now()), *runs.wake_decided_runs()]:
                worker.call_on_loop(engine.wake, run_id)
        connections.close_all()

    thread = threading.Thread(target=tick)
    thread.start()
    yield begins
    stops.set()
    begins.set()
    thread.join()
    worker._thread.run(engine.stop(), HANG_LIMIT)


async def known(host: Any) -> None:
    """Until the gateway has heard of the expert tools."""
    async with asyncio.timeout(HANG_LIMIT):
        while True:
            answer = await host.request("tools/list", {"_meta": host.meta()})
            if "counts" in {tool["name"] for tool in answer["result"]["tools"]}:
                return
            await asyncio.sleep(0.1)


async def run_of(task_id: str) -> Run:
    record = await outside(Invocation.objects.get, host_task__pk=task_id)
    return await outside(Run.objects.get, call_id=record.pk)


@pytest.mark.exhaustive(but=("http",))
async def test_a_host_with_tasks_gets_one_and_reads_the_answer_later(opened, door, knowing, clock):
    clock.set()
    text = fresh("text")
    async with opened(door) as host:
        await known(host)
        task_id = await begin(host, "asks", text=text)
        seen = await until(host, task_id)
    assert (seen["status"], text_of(seen["result"])) == ("completed", f"It said {text}.")
    assert "isError" not in seen["result"]


@pytest.mark.exhaustive(one_in=2)
async def test_a_host_without_tasks_waits_for_the_answer(opened, door, knowing, clock):
    clock.set()
    text = fresh("text")
    async with opened(door, abilities={}) as host:
        await known(host)
        assert text_of(await call(host, "asks", text=text)) == f"It said {text}."


@pytest.mark.exhaustive
async def test_the_answer_outlives_the_process_that_took_the_call(
    stage, site, token, knowing, clock
):
    text = fresh("text")
    with web(stage.env) as doomed:
        async with http_host(doomed, token, abilities=ABLE) as host:
            await known(host)
            task_id = await begin(host, "asks", text=text)
        doomed.processes[0].send_signal(signal.SIGKILL)
        doomed.processes[0].wait(HANG_LIMIT)
    async with http_host(site, token, abilities=ABLE) as host:
        assert (await look(host, task_id))["status"] == "working"
        clock.set()
        seen = await until(host, task_id)
    assert text_of(seen["result"]) == f"It said {text}."
    with web(stage.env) as restarted:
        async with http_host(restarted, token, abilities=ABLE) as host:
            assert await look(host, task_id) == seen
    assert await outside(broken) == []


async def test_a_host_on_stdio_that_was_killed_finds_its_answer(opened, knowing, clock):
    text = fresh("text")
    async with opened("stdio") as host:
        await known(host)
        task_id = await begin(host, "asks", text=text)
        await host.kill()
    clock.set()
    async with opened("stdio") as again:
        seen = await until(again, task_id)
    assert text_of(seen["result"]) == f"It said {text}."


@pytest.mark.exhaustive(but=("stdio",))
async def test_cancelling_the_task_ends_the_run(opened, door, knowing, clock):
    clock.set()
    async with opened(door) as host:
        await known(host)
        task_id = await begin(host, "counts", text="slowly")
        async with asyncio.timeout(HANG_LIMIT):
            while (await look(host, task_id)).get("statusMessage") != "Calling slow__count.":
                await asyncio.sleep(0.05)
        await ask(host, "tasks/cancel", task_id)
        assert (await until(host, task_id))["status"] == "cancelled"
    run = await run_of(task_id)
    assert run.state == RunState.CANCELLED
    assert (await outside(Invocation.objects.get, pk=run.call_id)).state == InvocationState.UNKNOWN
