"""Tasks towards hosts: ``tasks/get``, ``tasks/update``, ``tasks/cancel`` (``io.modelcontextprotocol/tasks``, 2026-07-28).

On the SDK's public hooks; it has no tasks of its own. Checked in this order: the method exists in this
era, its parameters, the ``Mcp-Name`` header, the capability (said with each request), whose task it is.
``tasks/list`` and ``tasks/result`` are gone from the protocol: nobody can enumerate.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog
from mcp import types as t
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import Field

from mcpregistry.calls.call import CallOutcome
from mcpregistry.calls.engine import Engine
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import State
from mcpregistry.domain.onward import TASKS
from mcpregistry.gateway.answers import CAPABILITY_MISSING
from mcpregistry.gateway.identity import Caller, caller_of
from mcpregistry.gateway.questions import speaks_tasks
from mcpregistry.models import Task
from mcpregistry.services import tasks

log = structlog.get_logger(__name__)

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")

HEADER_MISMATCH = -32020
_NEEDED: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
_COMPLETE = {"resultType": "complete"}
_SIGHT_SECONDS = 1.0


class TaskParams(t.RequestParams):
    task_id: str = Field(max_length=1024)


class UpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(default_factory=dict, max_length=100)


class Tasks:
    """The handlers, bound to an engine. ``caller`` is fixed for stdio and None behind the HTTP door."""

    def __init__(self, engine: Engine, caller: Caller | None) -> None:
        self._engine = engine
        self._caller = caller
        self._sights: set[str] = set()
        self._noting: asyncio.Task[None] | None = None

    def install(self, server: Server[Any]) -> None:
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", UpdateParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def made(self, task_id: str, caller: Caller) -> dict[str, Any]:
        """The answer to a call that goes on as a task."""
        made = await db_call(self._found, task_id, caller, tasks.handle)
        if made is None:
            raise MCPError(t.INTERNAL_ERROR, "The task could not be read. Call again in a moment.")
        return made

    async def get(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        view = await self._own(ctx, params, self.view)
        self._sight(params.task_id)
        return _COMPLETE | view

    async def update(self, ctx: Context, params: UpdateParams) -> dict[str, Any]:
        """Answers to questions that are not open (any more) are ignored and acknowledged, as the protocol says."""
        task = await self._own(ctx, params, _itself)
        if params.input_responses:
            await db_call(tasks.answer, task_id=task.pk, responses=params.input_responses)
        return dict(_COMPLETE)

    async def cancel(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        """A held call is withdrawn; a server's task is told to end; a call that is out already takes its course."""
        task = await self._own(ctx, params, _itself)
        await db_call(tasks.withdraw, task_id=task.pk)
        if task.call.state in (State.PENDING, State.READY):
            await self._withdraw(task)
        return dict(_COMPLETE)

    async def _withdraw(self, task: Task) -> None:
        approvals = self._engine.approvals
        if ticket := await approvals.find(task.call_id, task.agent_slug):
            await approvals.cancel(ticket, "The host withdrew it; the call was not made.")

    def view(self, task: Task) -> dict[str, Any]:
        """In a database thread: what an approver has edited is told, which takes another look."""
        return tasks.view(task, typed=self._typed(task))

    def _typed(self, task: Task) -> bool:
        with contextlib.suppress(Exception):  # the endpoint, the agent or the tool may be gone
            entry = self._engine.catalogue(task.endpoint_slug, task.agent_slug).find(task.call.exposed_name)
            return entry is not None and "outputSchema" in entry.listing
        return False

    async def _own(self, ctx: Context, params: TaskParams, seen_as: Callable[[Task], T]) -> T:
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            raise MCPError(t.METHOD_NOT_FOUND, "Method not found", ctx.method)
        _check_name(ctx, params.task_id)
        require_tasks(ctx)
        found = await db_call(self._found, params.task_id, caller_of(ctx, self._caller), seen_as)
        if found is None:
            raise MCPError(t.INVALID_PARAMS, "There is no such task, or it was forgotten.")
        return found

    @staticmethod
    def _found(task_id: str, caller: Caller, seen_as: Callable[[Task], T]) -> T | None:
        task = tasks.find(task_id, agent=caller.agent, endpoint=caller.endpoint)
        return seen_as(task) if task is not None else None

    def _sight(self, task_id: str) -> None:
        """Noted in one write a second for all: polling must not cost a write each."""
        self._sights.add(task_id)
        if self._noting is None or self._noting.done():
            self._noting = asyncio.ensure_future(self._note_sights())

    async def _note_sights(self) -> None:
        while self._sights:
            seen, self._sights = self._sights, set()
            try:
                await db_call(tasks.sighted, seen, datetime.now(UTC))
            except Exception:  # a hint, nothing more
                log.exception("tasks.sight_not_noted")
            await asyncio.sleep(_SIGHT_SECONDS)


def _itself(task: Task) -> Task:
    return task


def handle_of(outcome: CallOutcome) -> str:
    """Of a call that goes on as a task: a server's, or a held one whose host waits in this way. Else ""."""
    if outcome.ticket is not None and outcome.ticket.task_id and outcome.state is State.PENDING:
        return outcome.ticket.task_id
    return outcome.task_id


def require_tasks(ctx: Context) -> None:
    if not speaks_tasks(ctx):
        raise MCPError(CAPABILITY_MISSING, f"This needs a client that declares the extension {TASKS}.", _NEEDED)


def _check_name(ctx: Context, task_id: str) -> None:
    """Over HTTP ``Mcp-Name`` must be the task's id, so that a proxy can route without reading bodies."""
    if ctx.request is None:
        return
    given = ctx.request.headers.get(MCP_NAME_HEADER)
    if given is None or decode_header_value(given) != task_id:
        raise MCPError(HEADER_MISMATCH, "The Mcp-Name header must hold the taskId of the request.")
