"""``subscriptions/listen`` with ``taskIds``: own ids only, each task at once, each change, and a
graceful end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.services.servers import lifecycle
from tests.fakes.hosts import FORM, TASKS, Host, http_host
from tests.fakes.stage import ACTOR, listed, outside
from tests.gateway.tasks.play import ask, begin
from tests.waiting import HANG_LIMIT, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@contextlib.asynccontextmanager
async def listening(host: Host, **wanted: Any) -> AsyncIterator[asyncio.Task[dict[str, Any]]]:
    """The running request; what it tells is in ``host.heard``."""
    params = {"notifications": wanted, "_meta": host.meta()}
    stream = asyncio.create_task(host.request("subscriptions/listen", params))
    try:
        await until(lambda: host.heard or stream.done())
        yield stream
    finally:
        stream.cancel()
        with contextlib.suppress(BaseException):
            await stream


def told(host: Host, task_id: str) -> list[str]:
    """The statuses of a task, in the order in which the host heard them."""
    frames = [m["params"] for m in host.heard if m["method"] == "notifications/tasks"]
    return [frame["status"] for frame in frames if frame["taskId"] == task_id]


@pytest.mark.exhaustive(but=("http",))
async def test_the_ack_names_own_tasks_and_each_is_told_to_its_end(opened, door, tmp_path):
    async with opened(door) as host:
        task_id = await begin(host, "remote__slow_compute", until=str(tmp_path / "done"))
        async with listening(host, taskIds=[task_id, "never-was"]) as stream:
            await until(lambda: told(host, task_id))
            (tmp_path / "done").touch()
            async with asyncio.timeout(HANG_LIMIT):
                end = await stream
            # on a pipe the end may be noted first
            await until(lambda: "completed" in told(host, task_id))
    first, *frames = host.heard
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert first["params"]["notifications"] == {"taskIds": [task_id]}
    assert {frame["method"] for frame in frames} == {"notifications/tasks"}
    assert len({frame["params"]["_meta"][SUBSCRIPTION] for frame in [first, *frames]}) == 1
    assert told(host, task_id)[0] == "working"
    assert told(host, task_id)[-1] == "completed"
    assert told(host, task_id).count("completed") == 1
    assert "resultType" not in frames[-1]["params"]
    assert frames[-1]["params"]["result"]["content"]
    assert "result" in end


@pytest.mark.exhaustive(one_in=2)
async def test_a_question_is_told_and_its_answer_ends_it(opened, door):
    async with opened(door) as host:
        task_id = await begin(host, "remote__confirm_delete", filename="a")
        async with listening(host, taskIds=[task_id]) as stream:
            await until(lambda: "input_required" in told(host, task_id))
            said = {"confirm": {"action": "decline"}}
            await ask(host, "tasks/update", task_id, inputResponses=said)
            async with asyncio.timeout(HANG_LIMIT):
                await stream
            # on a pipe the end may be noted first
            await until(lambda: "completed" in told(host, task_id))
    assert told(host, task_id)[-1] == "completed"


async def test_a_strangers_task_is_not_told(opened, stage, site):
    async with opened() as host:
        task_id = await begin(host, "remote__slow_compute", seconds=3600)
        async with http_host(site, stage.tokens["eve"], abilities=TASKS) as eve:
            async with listening(eve, taskIds=[task_id]) as stream:
                async with asyncio.timeout(HANG_LIMIT):
                    await stream  # nothing of hers is left to wait for
            assert [m["method"] for m in eve.heard] == ["notifications/subscriptions/acknowledged"]
            assert eve.heard[0]["params"]["notifications"] == {"taskIds": []}
        await ask(host, "tasks/cancel", task_id)


@pytest.mark.exhaustive(one_in=2)
async def test_changes_of_the_list_come_by_the_same_stream_which_stays_open(opened, stage, door):
    async with opened(door) as host:
        task_id = await begin(host, "remote__slow_compute", seconds=0.1)
        async with listening(host, taskIds=[task_id], toolsListChanged=True) as stream:
            await until(lambda: "completed" in told(host, task_id))
            late = await outside(stage.fake, "echo", listed("late"), f"late-{door}")
            await outside(_grant, late)
            await until(
                lambda: [m for m in host.heard if m["method"] == "notifications/tools/list_changed"]
            )
            assert not stream.done()
        await outside(lifecycle.delete_server, server=late, actor=ACTOR, rights=grant_all_rights)


def _grant(server: Any) -> None:
    from mcpregistry.models import Agent
    from mcpregistry.services.access import grants

    grants.grant_access(agent=Agent.objects.get(slug="local"), server=server, actor=ACTOR)


async def test_without_the_extension_no_task_is_told(opened, door):
    async with opened(door, abilities=FORM) as host:
        params = {"notifications": {"taskIds": ["any"]}, "_meta": host.meta()}
        answer = await host.request("subscriptions/listen", params)
    assert answer["error"]["code"] == -32021
    assert answer["error"]["data"] == {"requiredCapabilities": TASKS}


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("ids", ["text", [7], [f"id-{n}" for n in range(1001)]])
async def test_unusable_ids_are_refused(opened, ids):
    async with opened() as host:
        params = {"notifications": {"taskIds": ids}, "_meta": host.meta()}
        assert (await host.request("subscriptions/listen", params))["error"]["code"] == -32602
