"""A server that makes tasks of its own (``io.modelcontextprotocol/tasks``, 2026-07-28), on the
SDK's public hooks.

Its tools are those that the official suite's ``tasks-*`` scenarios name, and a few for what the
suite does not ask. Run it for stdio, or use ``make_server()`` behind HTTP
(``tests.fakes.sdk.serving``). FAKE_JOURNAL names a file that gets one JSON line ``{"method",
"params"}`` for each request received. FAKE_POLL_MS is the poll interval it asks for (100). Tasks
live in the process: a new one knows none.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mcp import MCPError
from mcp import types as t
from mcp.server.lowlevel import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

TASKS = "io.modelcontextprotocol/tasks"
NEEDED = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
TERMINAL = {"completed", "failed", "cancelled"}
TTL_MS = 600_000


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": value}], **more}


def question(message: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class Job:
    """One task and what is known of it."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    status: str = "working"
    message: str = "at work"
    created: str = field(default_factory=_now)
    updated: str = field(default_factory=_now)
    outcome: dict[str, Any] = field(default_factory=dict)  # result or error
    asked: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    work: asyncio.Task[None] | None = None

    def become(self, status: str, **outcome: Any) -> None:
        if self.status not in TERMINAL:
            self.status = status
            self.outcome = outcome
            self.updated = _now()

    async def ask(self, **requests: Any) -> dict[str, Any]:
        self.asked = requests
        self.become("input_required")
        while self.asked:
            self.answered.clear()
            await self.answered.wait()
        return self.answers

    def answer(self, responses: Mapping[str, Any]) -> None:
        for key in [key for key in responses if key in self.asked]:
            self.answers[key] = responses[key]
            del self.asked[key]
        if not self.asked and self.status == "input_required":
            self.become("working")
        self.answered.set()

    def shown(self) -> dict[str, Any]:
        view: dict[str, Any] = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.updated,
            "ttlMs": TTL_MS,
            "pollIntervalMs": int(os.environ.get("FAKE_POLL_MS", "100")),
            "statusMessage": self.message,
        }
        return (
            view
            | self.outcome
            | ({"inputRequests": self.asked} if self.status == "input_required" else {})
        )


Work = Callable[[Job, dict[str, Any]], Awaitable[dict[str, Any]]]


async def greet(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    return text(f"Hello, {arguments.get('name', 'world')}!")


async def slow_compute(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes ``seconds``, or until the file named ``until`` is there."""
    if path := arguments.get("until"):
        while not os.path.exists(path):
            await asyncio.sleep(0.02)
    else:
        await asyncio.sleep(float(arguments.get("seconds", 1)))
    return text(
        f"computed {arguments.get('label', '')}".strip(),
        structuredContent={"label": arguments.get("label")},
    )


async def failing_job(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.2)
    return text("the job failed, as it always does", isError=True)


async def protocol_error_job(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    raise MCPError(t.INTERNAL_ERROR, "protocol fault on purpose", {"why": "test"})


async def confirm_delete(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    asked = question(f"Delete {arguments.get('filename')}?", confirm={"type": "boolean"})
    answers = await job.ask(confirm=asked)
    given = answers["confirm"]
    yes = given.get("action") == "accept" and given.get("content", {}).get("confirm")
    return text(f"{arguments.get('filename')} deleted" if yes else "nothing deleted")


async def multi_input(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    name = {"type": "string"}
    answers = await job.ask(
        first=question("First name?", name=name), second=question("Second name?", name=name)
    )
    return text(json.dumps(answers))


async def vanish(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    """The server forgets the task, as one does that was started anew."""
    await asyncio.sleep(float(arguments.get("seconds", 0)))
    job.id = ""
    return text("nobody reads this")


JOBS: dict[str, Work] = {
    "slow_compute": slow_compute,
    "failing_job": failing_job,
    "protocol_error_job": protocol_error_job,
    "confirm_delete": confirm_delete,
    "multi_input": multi_input,
    "vanish": vanish,
}
SYNC: dict[str, Work] = {"greet": greet}
ONLY_AS_TASK = {"failing_job"}
ANY = {"type": "object"}
TOOLS = [
    {"name": name, "description": f"Test tool {name}.", "inputSchema": ANY}
    for name in [*SYNC, *JOBS, "test_tool_with_task", "task_anyway"]
]


class GetParams(t.RequestParams):
    task_id: str


class UpdateParams(GetParams):
    input_responses: dict[str, Any] = {}


class TasksServer:
    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        server: Server[Any] = Server(
            "tasks", version="1", on_list_tools=self._list, on_call_tool=self._call
        )
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", GetParams, self._get)
        server.add_request_handler("tasks/update", UpdateParams, self._update)
        server.add_request_handler("tasks/cancel", GetParams, self._cancel)
        server.middleware.append(self._journal)
        self.server = server

    async def _journal(self, ctx: Any, call_next: Any) -> Any:
        if path := os.environ.get("FAKE_JOURNAL"):
            line = json.dumps({"method": ctx.method, "params": dict(ctx.params or {})}, default=str)
            with open(path, "ab", buffering=0) as file:  # whoever reads it finds whole lines
                file.write(f"{line}\n".encode())
        return await call_next(ctx)

    async def _list(self, ctx: Any, params: Any) -> Any:
        return {"tools": TOOLS, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    async def _call(self, ctx: Any, params: t.CallToolRequestParams) -> Any:
        name = params.name
        arguments = params.arguments or {}
        declared = speaks_tasks(ctx)
        if name in ONLY_AS_TASK and not declared:
            raise MCPError(-32021, f"{name} runs only as a task", NEEDED)
        if name == "test_tool_with_task":
            return self._named_first(params, declared)
        if name == "task_anyway":
            return self._begin(slow_compute, {"seconds": 60})
        if name in JOBS and declared and arguments.get("seconds") != 0:
            return self._begin(JOBS[name], arguments)
        if name not in JOBS | SYNC:
            raise MCPError(t.INVALID_PARAMS, f"Unknown tool: {name}")
        return await self._at_once((JOBS | SYNC)[name], arguments)

    @staticmethod
    async def _at_once(work: Work, arguments: dict[str, Any]) -> dict[str, Any]:
        if work in (confirm_delete, multi_input):
            return text("this needs a host with tasks", isError=True)
        return await work(Job(), arguments)

    def _named_first(self, params: t.CallToolRequestParams, declared: bool) -> dict[str, Any]:
        """Round 1 asks for a name (MRTR); round 2 makes a task."""
        given = (params.input_responses or {}).get("user_name")
        content = (
            getattr(given, "content", None) or (given or {}).get("content")
            if given is not None
            else None
        )
        if not content:
            asked = {"user_name": question("What is your name?", name={"type": "string"})}
            return {"resultType": "input_required", "inputRequests": asked}
        if not declared:
            return text(f"Hello, {content['name']}!")
        return self._begin(greet, {"name": content["name"]})

    def _begin(self, work: Work, arguments: dict[str, Any]) -> dict[str, Any]:
        job = Job()
        self.jobs[job.id] = job
        job.work = asyncio.ensure_future(self._run(job, work, arguments))
        return {"resultType": "task"} | job.shown()

    async def _run(self, job: Job, work: Work, arguments: dict[str, Any]) -> None:
        own = job.id
        try:
            result = await work(job, arguments)
            if not job.id:
                del self.jobs[own]
            job.become(
                "completed",
                result={key: value for key, value in result.items() if key != "resultType"},
            )
        except MCPError as error:
            job.message = error.error.message
            job.become("failed", error=error.error.model_dump(exclude_none=True))

    async def _get(self, ctx: Any, params: GetParams) -> Any:
        return {"resultType": "complete"} | self._job(ctx, params).shown()

    async def _update(self, ctx: Any, params: UpdateParams) -> Any:
        self._job(ctx, params).answer(params.input_responses)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Any, params: GetParams) -> Any:
        job = self._job(ctx, params)
        job.become("cancelled")
        if job.work:
            job.work.cancel()
        return {"resultType": "complete"}

    def _job(self, ctx: Any, params: GetParams) -> Job:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(t.METHOD_NOT_FOUND, "Method not found")
        if not speaks_tasks(ctx):
            raise MCPError(-32021, "tasks/* needs the Tasks extension", NEEDED)
        if params.task_id not in self.jobs:
            raise MCPError(t.INVALID_PARAMS, "Unknown task")
        return self.jobs[params.task_id]


def speaks_tasks(ctx: Any) -> bool:
    capabilities = ctx.session.client_capabilities
    modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    return modern and capabilities is not None and TASKS in (capabilities.extensions or {})


def make_server() -> Server[Any]:
    return TasksServer().server


async def main() -> None:
    from mcp.server.stdio import stdio_server

    server = make_server()
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
