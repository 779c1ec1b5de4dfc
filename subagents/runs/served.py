"""Expert tools as tools of an endpoint: offered to those who may use them, served by starting a run.

The process that was called only starts the run and watches its row; a worker does the work. If the
caller goes away, the run is cancelled, down to the call that is out at a server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mcpregistry.calls.call import Call
from mcpregistry.calls.catalog import Offer, Source
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.pipeline import Dispatcher
from mcpregistry.db import db_call
from mcpregistry.domain.access import may_see
from mcpregistry.domain.canonical import digest, stored
from mcpregistry.domain.risk import risk_of
from mcpregistry.domain.snapshot import RUNS, AgentSpec, EndpointSpec, ServerSpec, Snapshot, ToolSpec
from subagents.domain.lifecycle import RunState
from subagents.models import Run, ToolCall
from subagents.services import runs
from subagents.services.offering import Offered

SECTION = "experts"
KIND = "expert"
_LOOK_EVERY = 0.15  # seconds
_SERVER = ServerSpec(
    id=-2, slug="expert", title="Expert tools", revision=0, transport="none", connect_mode="none", request_timeout=0.0,
    max_message_bytes=0, available=True,
)  # fmt: skip


class ExpertTools:
    kind = KIND

    def offers(self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float) -> Iterable[Offer]:
        for expert in snapshot.sections.get(SECTION, ()):
            here = endpoint.slug == RUNS.slug or endpoint.slug in expert.endpoints
            if here and agent.slug in expert.users and expert.agent in snapshot.agents:
                yield Offer(KIND, _SERVER, _tool(expert, snapshot, now), own=True)


def _tool(expert: Offered, snapshot: Snapshot, now: float) -> ToolSpec:
    listing: dict[str, Any] = {
        "name": expert.name,
        "description": expert.description,
        "inputSchema": dict(expert.input_schema),
        "annotations": derived_hints(expert, snapshot, now),
    }
    if expert.output_schema is not None:
        listing["outputSchema"] = dict(expert.output_schema)
    hashed = digest(stored(listing), expert.version)
    return ToolSpec(
        id=-1000 - expert.id, server_id=_SERVER.id, name=expert.name, definition_hash=hashed, data=listing,
        idempotent=False,
    )  # fmt: skip


def derived_hints(expert: Offered, snapshot: Snapshot, now: float) -> dict[str, bool]:
    """Derived from what it may use, never claimed: read-only only if all of that is, destructive if any is."""
    agent = snapshot.agents[expert.agent]
    risks = [
        risk_of(tool)
        for tool in snapshot.tools.values()
        if (server := snapshot.servers.get(tool.server_id)) and may_see(agent, RUNS, server, tool, now)
    ]
    return {
        "readOnlyHint": all(risk.read_only for risk in risks),
        "destructiveHint": any(risk.destructive for risk in risks),
        "idempotentHint": False,
        "openWorldHint": any(risk.open_world for risk in risks),
    }


def expert_source(engine: Engine) -> tuple[Source, Dispatcher]:
    return ExpertTools(), ExpertDispatcher()


class ExpertDispatcher:
    """Starts a run, tells its progress, and returns its answer as a tool result."""

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        catalogue = call.request.catalogue
        run = await db_call(
            runs.start, expert=call.entry.offer.tool.name, arguments=json.loads(call.arguments_json), origin="call",
            caller=catalogue.agent.slug, endpoint=catalogue.endpoint.slug, call_id=call.id,
            parent=_parent(call),
        )  # fmt: skip
        on_sent()
        try:
            return answer_of(await _ended(run.pk, call))
        except asyncio.CancelledError:
            await asyncio.shield(db_call(runs.cancel, run_id=run.pk, actor=catalogue.agent.slug, reason="caller left"))
            raise


def _parent(call: Call) -> str:
    """The run that makes this call, if one does."""
    return call.request.request_id if call.request.origin == "run" else ""


async def _ended(run_id: str, call: Call) -> Run:
    told, began = (-1, -1, ""), time.monotonic()
    while True:
        run, turns, calls, doing = await db_call(_look, run_id)
        if run.finished_at is not None:
            return run
        if (turns, calls, doing) != told and call.request.on_progress is not None:
            told = (turns, calls, doing)
            call.request.on_progress(float(turns + calls), None, f"Step {turns + 1}: {doing}")
        await asyncio.sleep(_LOOK_EVERY if time.monotonic() - began < 30 else 1.0)


def _look(run_id: str) -> tuple[Run, int, int, str]:
    """(the run, its turns, its calls that ended, what it does now in words)"""
    run = Run.objects.only(
        "state", "exit", "error", "answer", "structured", "finished_at", "expert_name"
    ).get(pk=run_id)  # fmt: skip
    ended = ToolCall.objects.filter(run_id=run_id, finished_at__isnull=False).count()
    return run, run.turns.count(), ended, doing(run)


def doing(run: Run) -> str:
    """What an open run does at this moment, in words for people."""
    open_calls = ToolCall.objects.filter(run=run, finished_at=None).values_list("name", flat=True)
    names = ", ".join(open_calls[:3])
    if run.state == RunState.WAITING:
        return f"a person is asked about {names}"
    if names:
        return f"calling {names}"
    return "waiting for a worker" if run.state == RunState.QUEUED else "thinking"


def answer_of(run: Run) -> dict[str, Any]:
    """The run's end as a tool result; what went wrong in the words that the first source design gives."""
    if run.state == RunState.DONE:
        result: dict[str, Any] = {"content": [{"type": "text", "text": run.answer}]}
        structured: Mapping[str, Any] | None = json.loads(run.structured) if run.structured else None
        return result | ({"structuredContent": structured} if structured is not None else {})
    text = run.error if run.error.startswith("ToolExecutionError:") else f"ToolExecutionError: {run.error}"
    said = {"error": "TOOL_EXECUTION_ERROR", "message": text, "exit": run.exit, "run": run.pk}
    return {"isError": True, "content": [{"type": "text", "text": f"{text} ({run.exit}, run {run.pk})"}],
            "structuredContent": said}  # fmt: skip
