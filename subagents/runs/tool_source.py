"""Expert tools as tools of an endpoint: offered to those who may use them, served by starting a run.

The process that was called only starts the run; a worker does the work. A caller that takes tasks gets a
handle, and the run's end is written into the call by whoever ends the run, so nobody has to wait. For any
other this process watches the run's row; if such a caller goes away, the run is cancelled, down to the
call that is out at a server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import Error, transaction
from django.utils import timezone

from mcpregistry.calls.call import Call
from mcpregistry.calls.catalog import Offer, Source
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.pipeline import Dispatcher
from mcpregistry.calls.watch.waiting import Watch
from mcpregistry.database_errors import unheard
from mcpregistry.db import db_call
from mcpregistry.domain.errors import Conflict, DownstreamError, SlipsnisseError
from mcpregistry.domain.policy.access import may_see
from mcpregistry.domain.policy.risk import risk_of
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.specs import RUNS, AgentSpec, EndpointSpec, ServerSpec, ToolSpec
from mcpregistry.domain.text.canonical import digest, stored
from mcpregistry.failpoints import failpoint
from mcpregistry.models import HostTask
from mcpregistry.services.tasks import host_tasks, long_calls
from subagents.models import RUN_TOPIC, Run
from subagents.runs.answers import Seen, answer_of, given_again, seen
from subagents.runs.toolbox import Toolbox
from subagents.services import runs
from subagents.services.offers import SECTION, SERVER, Offered

KIND = "expert"
_RENEW_EVERY = 20.0  # seconds between signs that this process waits still, see ``long_calls.KEEP``
_POLL_MS = 1_000
_SERVER = ServerSpec(
    id=-2, slug=SERVER, title="Expert tools", revision=0, transport="none", connect_mode="none", request_timeout=30.0,
    max_message_bytes=0, available=True,
)  # fmt: skip


class ExpertTools:
    """The source of expert tools for the registry's catalogue."""

    kind = KIND

    def offers(self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float) -> Iterable[Offer]:
        """The expert tools that this agent may call on this endpoint."""
        for expert in snapshot.sections.get(SECTION, ()):
            here = endpoint.slug == RUNS.slug or endpoint.slug in expert.endpoints
            if here and agent.slug in expert.users and expert.agent in snapshot.agents:
                yield Offer(KIND, _SERVER, _tool(expert, snapshot, now), own=True, spends=True)


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
    """The tool's annotations, derived from its whitelist and never claimed.

    Read-only only if all of that is, destructive if any of it is.
    """
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
    """The source and its dispatcher for an engine; registered with ``calls.more_sources.add_source``."""
    return ExpertTools(), ExpertDispatcher(engine)


@dataclass(frozen=True, slots=True)
class Begun:
    """A run, and the handle of a caller that does not wait for it."""

    run: str
    task: str = ""


class ExpertDispatcher:
    """Starts a run. A caller that takes tasks gets a handle at once; for others this tells progress and waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch: Watch[Seen] = Watch(engine.feed, RUN_TOPIC, seen)
        self._background: set[asyncio.Task[None]] = set()

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        """Start a run for the call, and wait for its end unless the host took a task."""
        if (known := await self._known(call)) is not None:
            on_sent()
            return known
        beginning = asyncio.ensure_future(db_call(_begin, call))
        try:
            # The transaction that begins the run ends by itself; only then is it known what has to be cancelled.
            begun = await _heard(beginning, call)
        except asyncio.CancelledError:
            on_sent()  # perhaps it was begun already
            self._spawn(_given_up(beginning, call))
            raise
        on_sent()
        if begun.task:
            return {"resultType": "task", "taskId": begun.task}
        try:
            return answer_of(await self._ended(begun.run, call))
        except (asyncio.CancelledError, DownstreamError):
            await asyncio.shield(_given_up(beginning, call))
            raise

    async def _known(self, call: Call) -> dict[str, Any] | None:
        """An answer that may be given again; it costs nothing."""
        name, experts = call.entry.offer.tool.name, self._engine.live.current.sections.get(SECTION, ())
        expert = next((each for each in experts if each.name == name), None)
        if expert is None or not expert.cache_seconds:
            return None
        tools = Toolbox(self._engine, self._engine.run_catalogue(expert.agent), run="", expert=name).fingerprint
        run = await db_call(
            runs.answered, expert=name, arguments=json.loads(call.arguments_json), tools=tools,
            caller=call.request.catalogue.agent.slug, seconds=expert.cache_seconds, now=timezone.now(),
        )  # fmt: skip
        return given_again(run) if run is not None else None

    async def _ended(self, run_id: str, call: Call) -> Run:
        now, renewed = Seen(False, -1, -1, ""), time.monotonic()
        while not now.ended:
            before, now = now, await self._watch.until_not(run_id, now, _RENEW_EVERY)
            if now != before and call.request.on_progress is not None:
                call.request.on_progress(float(now.turns + now.calls), None, f"Step {now.turns + 1}: {now.doing}")
            if time.monotonic() - renewed >= _RENEW_EVERY:
                renewed = time.monotonic()
                await _keep(call)
        return await db_call(Run.objects.get, pk=run_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _keep(call: Call) -> None:
    if not await db_call(long_calls.keep, call_id=call.id, fence=call.fence):
        raise DownstreamError(
            "The call was given up while its run went on: this process had not been heard of for too long.",
            sent=True,
        )


@transaction.atomic
def _begin(call: Call) -> Begun:
    """The run, and where the host takes tasks the handle, together or not at all."""
    catalogue, request = call.request.catalogue, call.request
    run = runs.start(
        expert=call.entry.offer.tool.name, arguments=json.loads(call.arguments_json), origin=runs.CALL,
        caller=catalogue.agent.slug, endpoint=catalogue.endpoint.slug, call_id=call.id,
        parent=request.request_id if request.origin == "run" else "", requester=request.requester,
        conversation=request.conversation,
    )  # fmt: skip
    if not request.host.tasks:
        return Begun(run.pk)
    task = long_calls.hand_over(
        call_id=call.id, fence=call.fence, agent=catalogue.agent.slug, endpoint=catalogue.endpoint.slug,
        ttl_ms=host_tasks.KEPT_MS, poll_ms=_POLL_MS, message="Waiting for a worker.",
    )  # fmt: skip
    if task is None:
        raise Conflict("The call has ended before its run began.", remedy="Call again.")
    failpoint("run_begun")
    return Begun(run.pk, task.pk)


async def _heard(beginning: asyncio.Future[Begun], call: Call) -> Begun:
    """What was begun, also where its commit was not heard of: that is looked up before anything is said.

    Raises Error when nothing was begun, DownstreamError (sent) when nobody knows.
    """
    try:
        return await asyncio.shield(beginning)
    except Error as error:
        try:
            found = await db_call(_begun, call.id)
        except Error:
            if not unheard(error):
                raise error from None
            doubt = "It is not known whether its run has begun: the database did not say, and cannot be asked."
            raise DownstreamError(doubt, remedy="Look for a run of this call in a moment.", sent=True) from error
        if found is None:
            raise
        return found


def _begun(call_id: str) -> Begun | None:
    run = Run.objects.filter(call_id=call_id).values_list("pk", flat=True).first()
    task = HostTask.objects.filter(call_id=call_id).values_list("pk", flat=True).first()
    return Begun(run, task or "") if run else None


async def _given_up(beginning: asyncio.Future[Begun], call: Call) -> None:
    """The caller is gone: what it has begun is cancelled, down to the call that is out at a server."""
    caller = call.request.catalogue.agent.slug
    with suppress(SlipsnisseError):  # then nothing was begun
        begun = await _heard(beginning, call)
        await db_call(runs.cancel, run_id=begun.run, actor=caller, reason="caller left")
