"""A server makes a task of a call: the host gets one of ours, whatever becomes of the server's."""

from __future__ import annotations

import asyncio
import json

import pytest

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import AuditEntry, HostTask, Invocation
from tests.fakes.hosts import FORM, TASKS
from tests.fakes.stage import fresh, outside
from tests.gateway.tasks.play import ask, begin, call, look, text_of, until

pytestmark = pytest.mark.e2e
SERVERS = ["remote", "local"]


async def row(task_id: str) -> Invocation:
    return await outside(
        lambda: Invocation.objects.select_related("host_task").get(host_task__pk=task_id)
    )


@pytest.mark.exhaustive(but=("http-remote",))
@pytest.mark.parametrize("server", SERVERS)
async def test_a_servers_task_is_a_task_of_ours_with_its_whole_result(
    opened, door, server, maker, tmp_path
):
    label = fresh("label")
    async with opened(door) as host:
        made = await call(
            host, f"{server}__slow_compute", until=str(tmp_path / "done"), label=label
        )
        (tmp_path / "done").touch()
        seen = await until(host, made["taskId"])
    assert (made["resultType"], made["status"]) == ("task", "working")
    assert {"createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"} <= made.keys()
    assert seen["status"] == "completed"
    assert seen["result"]["structuredContent"] == {"label": label}
    assert "resultType" not in seen["result"]
    assert seen["ttlMs"] >= made["ttlMs"]
    record = await row(made["taskId"])
    assert (record.state, record.lease_until) == (InvocationState.SUCCEEDED, None)
    assert not {job for job in maker.jobs if job in json.dumps([made, seen])}, (
        "the server's id has leaked"
    )


@pytest.mark.exhaustive(but=("http-local",))
@pytest.mark.parametrize("server", SERVERS)
async def test_what_the_server_asks_reaches_the_host_and_the_answer_the_server(
    opened, door, server
):
    async with opened(door) as host:
        task_id = await begin(host, f"{server}__confirm_delete", filename="a.txt")
        asked = await until(host, task_id, "input_required")
        (key, question), *more = asked["inputRequests"].items()
        assert not more
        assert question["params"]["message"] == f"The server {server} asks: Delete a.txt?"
        said = {
            key: {"action": "accept", "content": {"confirm": True}},
            "unknown": {"action": "decline"},
        }
        assert (await ask(host, "tasks/update", task_id, inputResponses=said))["result"].keys() <= {
            "resultType",
            "_meta",
        }
        assert (await look(host, task_id)).get("inputRequests") is None
        seen = await until(host, task_id)
    assert text_of(seen["result"]) == "a.txt deleted"


async def test_one_answer_of_two_leaves_the_other_question_open(opened):
    async with opened() as host:
        task_id = await begin(host, "remote__multi_input")
        first, second = (await until(host, task_id, "input_required"))["inputRequests"]
        for key, left in ((first, {second}), (second, set())):
            said = {key: {"action": "accept", "content": {"name": key}}}
            await ask(host, "tasks/update", task_id, inputResponses=said)
            assert (await look(host, task_id)).get("inputRequests", {}).keys() == left
        seen = await until(host, task_id)
    assert json.loads(text_of(seen["result"])).keys() == {first, second}


@pytest.mark.exhaustive(but=("stdio-local",))
@pytest.mark.parametrize("server", SERVERS)
async def test_cancelling_reaches_the_server_and_the_task_is_cancelled(opened, door, server):
    async with opened(door) as host:
        task_id = await begin(host, f"{server}__slow_compute", seconds=3600)
        for _ in range(2):  # Claude Code sends it twice
            assert (await ask(host, "tasks/cancel", task_id))["result"]["resultType"] == "complete"
        seen = await until(host, task_id)
        assert seen["status"] == "cancelled"
        assert not {"result", "error"} & seen.keys()
        assert (await ask(host, "tasks/cancel", task_id))["result"]["resultType"] == "complete"
        assert (await look(host, task_id))["status"] == "cancelled"
    assert (
        await row(task_id)
    ).state == InvocationState.UNKNOWN  # who knows what it has done by then


async def test_failed_is_for_protocol_errors_alone(opened):
    async with opened() as host:
        failed = await until(host, await begin(host, "remote__protocol_error_job"))
        completed = await until(host, await begin(host, "remote__failing_job"))
    assert failed["status"] == "failed"
    assert failed["error"] == {
        "code": -32603,
        "message": "protocol fault on purpose",
        "data": {"why": "test"},
    }
    assert completed["status"] == "completed"
    assert completed["result"]["isError"] is True


@pytest.mark.parametrize("server", SERVERS)
async def test_a_task_that_the_server_has_forgotten_ends_as_unknown(opened, server):
    async with opened() as host:
        seen = await until(host, await begin(host, f"{server}__vanish", seconds=0.3))
    assert seen["status"] == "completed"
    assert seen["result"]["isError"] is True
    assert "Check what it has done" in text_of(seen["result"])
    assert seen["result"]["structuredContent"]["state"] == "unknown"


async def test_the_extension_is_declared_to_servers_only_with_calls_of_hosts_that_declare_it(
    opened,
):
    async with opened() as host:
        assert (await call(host, "remote__slow_compute", seconds=0.1))["resultType"] == "task"
        host.abilities = FORM
        assert (await call(host, "remote__slow_compute", seconds=0.1))["resultType"] == "complete"
        host.abilities = TASKS
        assert (await call(host, "remote__slow_compute", seconds=0.1))["resultType"] == "task"
    async with opened(era="2025-11-25") as host:
        result = await call(host, "remote__slow_compute", seconds=0.1)
        assert text_of(result).startswith("computed")


async def test_a_task_that_nobody_asked_for_is_no_answer(opened):
    async with opened(abilities={}) as host:
        result = await call(host, "remote__task_anyway")
    assert result["isError"] is True
    assert "PROTOCOL_ERROR" in text_of(result)


async def test_a_tool_that_needs_tasks_says_so_with_its_data(opened):
    async with opened(abilities=FORM) as host:
        answer = await host.request(
            "tools/call", {"name": "remote__failing_job", "arguments": {}, "_meta": host.meta()}
        )
    assert answer["error"]["code"] == -32021
    assert answer["error"]["data"] == {"requiredCapabilities": TASKS}
    async with opened(era="2025-11-25", abilities={}) as host:  # which has no such code
        result = await call(host, "remote__failing_job")
    assert result["isError"] is True


async def test_a_host_that_cannot_be_asked_gets_no_task_that_asks(opened):
    async with opened(abilities=TASKS) as host:
        seen = await until(host, await begin(host, "remote__confirm_delete", filename="a"))
    assert seen["result"]["isError"] is True
    assert "elicitation/create" in text_of(seen["result"])


@pytest.mark.exhaustive
async def test_a_servers_process_is_not_put_to_sleep_while_it_works_on_a_task(opened):
    """It asks to be polled less often than idle connections are closed."""
    async with opened() as host:
        seen = await until(
            host, await begin(host, "sleepy__slow_compute", seconds=3, label="awake")
        )
    assert seen["result"]["structuredContent"] == {"label": "awake"}


@pytest.mark.exhaustive
async def test_many_tasks_at_once_each_end_with_their_own_result(opened):
    labels = [fresh("many") for _ in range(40)]
    async with opened() as host:

        async def one(label: str) -> str:
            task_id = await begin(host, "remote__slow_compute", seconds=0.2, label=label)
            return (await until(host, task_id))["result"]["structuredContent"]["label"]

        assert await asyncio.gather(*(one(label) for label in labels)) == labels


@pytest.mark.exhaustive
async def test_taking_a_task_on_and_its_end_are_in_the_audit_log(opened):
    async with opened() as host:
        task_id = await begin(host, "remote__slow_compute", seconds=0.1)
        await until(host, task_id)
    record = await row(task_id)
    kinds = await outside(
        lambda: list(
            AuditEntry.objects.filter(subject=f"call:{record.pk}").values_list("kind", flat=True)
        )
    )
    assert sorted(kinds) == ["call.dispatched", "call.succeeded", "task.adopted"]
    assert (await outside(HostTask.objects.get, pk=task_id)).downstream_id
