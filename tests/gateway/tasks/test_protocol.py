"""Who may say what about a task, in which words, in which era (io.modelcontextprotocol/tasks,
2026-07-28)."""

from __future__ import annotations

import pytest

from mcpregistry.models import HostTask
from tests.fakes.hosts import FORM, TASKS, http_host
from tests.fakes.stage import outside
from tests.gateway.tasks.play import ask, begin, look

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
METHODS = ["tasks/get", "tasks/update", "tasks/cancel"]
EXTENSION = "io.modelcontextprotocol/tasks"


@pytest.mark.exhaustive(but=("http",))
async def test_discovery_shows_the_extension_and_the_older_handshake_does_not(opened, door):
    async with opened(door) as host:
        found = (await host.request("server/discover", {"_meta": host.meta()}))["result"][
            "capabilities"
        ]
    assert found["extensions"] == {EXTENSION: {}}
    assert "tasks" not in found
    async with opened(door, era="2025-11-25", abilities={}) as host:
        params = {"protocolVersion": host.era, "capabilities": {}, "clientInfo": host.info}
        legacy = (
            await host.request("initialize", params)
            if door == "http"
            else {"result": {"capabilities": {}}}
        )
    assert EXTENSION not in str(legacy["result"]["capabilities"])


@pytest.mark.exhaustive(one_in=10)
@pytest.mark.parametrize("method", [*METHODS, "tasks/list", "tasks/result"])
async def test_an_older_wire_has_no_such_methods_whatever_the_host_declares(opened, door, method):
    async with opened(door, era="2025-11-25", abilities=TASKS) as host:
        assert (await ask(host, method, "any"))["error"]["code"] == -32601


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
async def test_nobody_can_enumerate(opened, door, method):
    async with opened(door) as host:
        assert (await ask(host, method, "any"))["error"]["code"] == -32601


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize("method", METHODS)
async def test_without_the_extension_in_this_very_request_there_are_no_tasks(opened, door, method):
    async with opened(door) as host:
        task_id = await begin(host, "remote__slow_compute", seconds=0.1)
        host.abilities = FORM
        refused = (await ask(host, method, task_id))["error"]
        host.abilities = TASKS
        assert (await ask(host, method, task_id))["result"]["resultType"] == "complete"
    assert refused["code"] == -32021
    assert refused["data"] == {"requiredCapabilities": TASKS}


@pytest.mark.parametrize("method", METHODS)
async def test_a_strangers_task_is_as_absent_as_one_that_never_was(
    opened, stage, site, token, method
):
    async with opened() as host:
        task_id = await begin(host, "remote__slow_compute", seconds=3600)
        never = (await ask(host, method, "never-was"))["error"]
        async with http_host(site, stage.tokens["eve"], abilities=TASKS) as eve:
            foreign = (await ask(eve, method, task_id))["error"]
        async with http_host(site, token, "other", abilities=TASKS) as elsewhere:
            other_endpoint = (await ask(elsewhere, method, task_id))["error"]
        assert (await look(host, task_id))["status"] == "working"
        await ask(host, "tasks/cancel", task_id)
    assert never == foreign == other_endpoint
    assert never["code"] == -32602


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [None, "another", "=?base64?!!?="])
async def test_over_http_the_name_header_must_hold_the_id(opened, method, name):
    async with opened() as host:
        task_id = await begin(host, "remote__slow_compute", seconds=0.1)
        usual = host._headers

        def without(message):
            headers = {key: value for key, value in usual(message).items() if key != "mcp-name"}
            return headers | ({"mcp-name": name} if name is not None else {})

        host._headers = without
        assert (await ask(host, method, task_id))["error"]["code"] == -32020


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("params", [{}, {"taskId": "x" * 2000}, {"taskId": None}])
async def test_unusable_parameters_are_refused(opened, door, params):
    async with opened(door) as host:
        answer = await host.request("tasks/get", {"_meta": host.meta(), **params})
        assert answer["error"]["code"] == -32602


async def test_an_id_is_text(opened):
    async with opened("stdio") as host:
        answer = await host.request("tasks/get", {"_meta": host.meta(), "taskId": 7})
        assert answer["error"]["code"] == -32602


async def test_a_hint_of_the_draft_of_2025_is_ignored(opened):
    async with opened() as host:
        arguments = {
            "name": "remote__greet",
            "arguments": {"name": "Ann"},
            "task": {"ttl": 60000},
            "_meta": host.meta(),
        }
        result = (await host.request("tools/call", arguments))["result"]
    assert result["resultType"] == "complete"


async def test_an_answer_to_nothing_is_acknowledged_and_ignored(opened):
    async with opened() as host:
        task_id = await begin(host, "remote__slow_compute", seconds=0.1)
        answer = await ask(
            host, "tasks/update", task_id, inputResponses={"unknown": {"action": "accept"}}
        )
        assert answer["result"]["resultType"] == "complete"
    assert (await outside(HostTask.objects.get, pk=task_id)).input_responses == ""
