"""Tasks towards hosts: ``tasks/get``, ``tasks/update``, ``tasks/cancel``
(``io.modelcontextprotocol/tasks``, 2026-07-28).

On the SDK's public hooks; it has no tasks of its own. Checked in this order: the method exists in
this era, its parameters, the ``Mcp-Name`` header, the capability (said with each request), whose
task it is. ``tasks/list`` and ``tasks/result`` are gone from the protocol: nobody can enumerate.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog
from django.db import Error
from mcp import types as t
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import Field

from mcpregistry.calls import energy
from mcpregistry.calls.call import CallOutcome
from mcpregistry.calls.engine import Engine
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.calls.forwarding import TASKS
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.gateway.caller_identity import Caller, find_caller
from mcpregistry.gateway.host_answers import CAPABILITY_MISSING, add_record_notes
from mcpregistry.gateway.host_questions import can_use_tasks
from mcpregistry.models import HostTask
from mcpregistry.services.energy import reservations
from mcpregistry.services.energy.reservations import Charged
from mcpregistry.services.tasks import host_tasks

log = structlog.get_logger(__name__)

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")

HEADER_MISMATCH = -32020
_NEEDED: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
_COMPLETE = {"resultType": "complete"}
_SIGHT_SECONDS = 1.0


class TaskParams(t.RequestParams):
    """The parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str = Field(max_length=1024)


class UpdateParams(TaskParams):
    """The parameters of ``tasks/update``: answers to the server's questions, by key."""

    input_responses: dict[str, Any] = Field(default_factory=dict, max_length=100)


class Tasks:
    """The handlers, bound to an engine. ``caller`` is fixed for stdio and None behind the HTTP
    door."""

    def __init__(self, engine: Engine, caller: Caller | None) -> None:
        self._engine = engine
        self._caller = caller
        self._sights: set[str] = set()
        self._noting: asyncio.Task[None] | None = None

    def install(self, server: Server[Any]) -> None:
        """Register the handlers on the SDK's server."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", UpdateParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def build_handle(self, task_id: str, caller: Caller) -> dict[str, Any]:
        """The answer to a call that goes on as a task.

        The task is there, whether or not it can be read now: told of an error, the host would make
        the call again.
        """
        try:
            made = await db_call(self._find_task, task_id, caller, host_tasks.build_task_handle)
        except Error:
            log.exception("tasks.handle_not_read", task=task_id[:8])
            return host_tasks.build_bare_handle(task_id, datetime.now(UTC))
        if made is None:
            raise MCPError(
                t.INTERNAL_ERROR, f"The task could not be read. {error_texts.TRY_AGAIN_SOON}"
            )
        return made

    async def get(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        """``tasks/get``: the task as it stands, with its result once it has ended."""
        view = await self._load_own_task(ctx, params, self.build_view)
        self._note_poll(params.task_id)
        return _COMPLETE | view

    async def update(self, ctx: Context, params: UpdateParams) -> dict[str, Any]:
        """``tasks/update``: keep the host's answers for whoever follows the server's task.

        Answers to questions that are not open (any more) are ignored and acknowledged, as the
        protocol says.
        """
        task = await self._load_own_task(ctx, params, _return_task)
        if params.input_responses:
            await db_call(
                host_tasks.store_answers, task_id=task.pk, responses=params.input_responses
            )
        return dict(_COMPLETE)

    async def cancel(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        """``tasks/cancel``: withdraw a held call, or tell a server's task to end; a call that is
        out takes its course."""
        task = await self._load_own_task(ctx, params, _return_task)
        await db_call(host_tasks.withdraw_task, task_id=task.pk)
        if task.call.state in (InvocationState.PENDING, InvocationState.READY):
            await self._withdraw(task)
        return dict(_COMPLETE)

    async def _withdraw(self, task: HostTask) -> None:
        held = self._engine.approvals.requests
        if ticket := await held.find(task.call_id, task.agent_slug):
            await held.cancel(ticket, "The host cancelled the call before it was made.")

    def build_view(self, task: HostTask) -> dict[str, Any]:
        """The task in wire shape. To be called in a database thread: what an approver edited takes
        another look."""
        shown = host_tasks.build_task_view(task, typed=self._has_output_schema(task))
        if "result" in shown:
            shown["result"] = add_record_notes(shown["result"], energy=self._load_charge(task))
        return shown

    def _load_charge(self, task: HostTask) -> Charged | None:
        """What the call has cost, where the endpoint tells that."""
        now = self._engine.live.current
        pool = energy.find_reported_pool(
            now.endpoints.get(task.endpoint_slug), now.agents.get(task.agent_slug)
        )
        return (
            None if pool is None else reservations.load_charge(call_id=task.call_id, pool_id=pool)
        )

    def _has_output_schema(self, task: HostTask) -> bool:
        with contextlib.suppress(Exception):  # the endpoint, the agent or the tool may be gone
            entry = self._engine.get_catalogue(task.endpoint_slug, task.agent_slug).find(
                task.call.exposed_name
            )
            return entry is not None and "outputSchema" in entry.listing
        return False

    async def _load_own_task(
        self, ctx: Context, params: TaskParams, seen_as: Callable[[HostTask], T]
    ) -> T:
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            raise MCPError(t.METHOD_NOT_FOUND, "Method not found", ctx.method)
        _check_name(ctx, params.task_id)
        require_tasks(ctx)
        found = await db_call(
            self._find_task, params.task_id, find_caller(ctx, self._caller), seen_as
        )
        if found is None:
            raise MCPError(t.INVALID_PARAMS, "The task does not exist, or is no longer stored.")
        return found

    @staticmethod
    def _find_task(task_id: str, caller: Caller, seen_as: Callable[[HostTask], T]) -> T | None:
        task = host_tasks.find_task(task_id, agent=caller.agent, endpoint=caller.endpoint)
        return seen_as(task) if task is not None else None

    def _note_poll(self, task_id: str) -> None:
        """Noted in one write a second for all: polling must not cost a write each."""
        self._sights.add(task_id)
        if self._noting is None or self._noting.done():
            self._noting = asyncio.ensure_future(self._record_polls())

    async def _record_polls(self) -> None:
        while self._sights:
            seen = self._sights
            self._sights = set()
            try:
                await db_call(host_tasks.note_task_polls, seen, datetime.now(UTC))
            except Exception:  # a hint, nothing more
                log.exception("tasks.poll_not_recorded")
            await asyncio.sleep(_SIGHT_SECONDS)


def _return_task(task: HostTask) -> HostTask:
    return task


def find_task_id(outcome: CallOutcome) -> str:
    """The id of the task that a call goes on as (a server's, or a held call's whose host polls);
    else ""."""
    if (
        outcome.ticket is not None
        and outcome.ticket.task_id
        and outcome.state is InvocationState.PENDING
    ):
        return outcome.ticket.task_id
    return outcome.task_id


def require_tasks(ctx: Context) -> None:
    """Raise MCPError unless this very request declares the Tasks extension."""
    if not can_use_tasks(ctx):
        raise MCPError(
            CAPABILITY_MISSING,
            f"This method requires a client that declares the extension {TASKS}.",
            _NEEDED,
        )


def _check_name(ctx: Context, task_id: str) -> None:
    """Over HTTP ``Mcp-Name`` must be the task's id, so that a proxy can route without reading
    bodies."""
    if ctx.request is None:
        return
    given = ctx.request.headers.get(MCP_NAME_HEADER)
    if given is None or decode_header_value(given) != task_id:
        raise MCPError(
            HEADER_MISMATCH, "The Mcp-Name header must contain the taskId of the request."
        )
