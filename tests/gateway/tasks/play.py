"""What hosts with tasks do: call, look, answer, wait."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fakes.hosts import Host
from tests.waiting import HANG_LIMIT

DONE = {"completed", "failed", "cancelled"}


async def call(host: Host, tool: str, **arguments: Any) -> dict[str, Any]:
    """The result of one ``tools/call``, whatever its type."""
    answer = await host.request(
        "tools/call", {"name": tool, "arguments": arguments, "_meta": host.meta()}
    )
    assert "result" in answer, answer
    return answer["result"]


async def begin(host: Host, tool: str, **arguments: Any) -> str:
    """The id of the task that the call became."""
    made = await call(host, tool, **arguments)
    assert made["resultType"] == "task", made
    assert not {"result", "error", "inputRequests", "requestState", "task"} & made.keys()
    return str(made["taskId"])


async def ask(host: Host, method: str, task_id: str, **params: Any) -> dict[str, Any]:
    return await host.request(method, {"taskId": task_id, "_meta": host.meta(), **params})


async def look(host: Host, task_id: str) -> dict[str, Any]:
    answer = await ask(host, "tasks/get", task_id)
    assert answer["result"]["resultType"] == "complete", answer
    return answer["result"]


async def until(
    host: Host, task_id: str, *statuses: str, patience: float = HANG_LIMIT
) -> dict[str, Any]:
    """The task once it has one of these statuses (by default: has ended)."""
    wanted = set(statuses) or DONE
    async with asyncio.timeout(patience):
        while (seen := await look(host, task_id))["status"] not in wanted:
            assert wanted <= DONE or seen["status"] not in DONE, seen
            await asyncio.sleep(0.05)
    return seen


def text_of(result: dict[str, Any]) -> str:
    return " ".join(part["text"] for part in result["content"] if part["type"] == "text")
