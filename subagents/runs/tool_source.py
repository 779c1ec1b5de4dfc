"""Expert tools as tools of an endpoint: offered to those who may use them, served by starting a
run.

The process that was called only starts the run; a worker does the work. A caller that takes tasks
gets a handle, and the run's end is written into the call by whoever ends the run, so nobody has to
wait. For any other this process watches the run's row; if such a caller goes away, the run is
cancelled, down to the call that is out at a server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from django.db import Error, transaction
from django.utils import timezone

from mcpregistry.calls.call import Call
from mcpregistry.calls.catalog import Catalogue, CatalogueEntry, ToolOffer, ToolSource
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.execution import Dispatcher
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.database_errors import is_outcome_unknown
from mcpregistry.db import db_call
from mcpregistry.domain.errors import Conflict, DownstreamError, SlipsnisseError
from mcpregistry.domain.policy.access import may_see
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import RUNS, AgentSpec, EndpointSpec, ServerSpec, ToolSpec
from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts
from mcpregistry.failpoints import failpoint
from mcpregistry.models import HostTask
from mcpregistry.services.tasks import host_tasks, long_calls
from subagents.domain.formats import (
    FORMAT,
    FORMAT_SCHEMA,
    OWN_FORMAT,
    AnswerFormat,
    split_format,
    takes_formats,
    with_formats,
)
from subagents.leased.turn_queue import Queue
from subagents.models import RUN_TOPIC, Run
from subagents.runs.run_answers import RunProgress, answer_of, read_progress, repeat_answer
from subagents.runs.toolbox import Toolbox
from subagents.services import runs
from subagents.services.headends.configuring import HeadendSpec, find_mcp_headend
from subagents.services.headends.queue_places import QueuePlace
from subagents.services.offers import SECTION, SERVER, Offered

KIND = "expert"
_RENEW_EVERY = 20.0  # seconds between signs that this process waits still, see ``long_calls.KEEP``
_POLL_MS = 1_000
_SERVER = ServerSpec(
    id=-2,
    slug=SERVER,
    title="Expert tools",
    revision=0,
    transport="none",
    connect_mode="none",
    request_timeout=30.0,
    max_message_bytes=0,
    available=True,
)


class ExpertTools:
    """The source of expert tools for the registry's catalogue."""

    kind = KIND

    def list_offers(
        self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float
    ) -> Iterable[ToolOffer]:
        """The expert tools that this agent may call on this endpoint."""
        for expert in snapshot.sections.get(SECTION, ()):
            here = endpoint.slug == RUNS.slug or endpoint.slug in expert.endpoints
            if here and agent.slug in expert.users and expert.agent in snapshot.agents:
                formats = (
                    takes_formats(expert.input_schema)
                    and find_mcp_headend(snapshot, endpoint.slug) is not None
                )
                tool = _tool(expert, snapshot, now, formats=formats)
                yield ToolOffer(KIND, _SERVER, tool, own=True, spends=True)


def find_expert(snapshot: Snapshot, name: str) -> Offered | None:
    """Return the enabled expert tool with this name, or None."""
    return next((each for each in snapshot.sections.get(SECTION, ()) if each.name == name), None)


def with_any_format(catalogue: Catalogue, entry: CatalogueEntry, expert: Offered) -> Catalogue:
    """Return a catalogue with this entry only, which accepts a format but does not require one."""
    if not takes_formats(expert.input_schema):
        return Catalogue(
            catalogue.endpoint, catalogue.agent, {entry.name: entry}, catalogue.valid_until
        )
    shown = {key: value for key, value in entry.offer.tool.data.items() if key != "outputSchema"}
    shown["inputSchema"] = with_formats(expert.input_schema, required=False)
    hashed = hash_parts(encode_lossy_json(shown), expert.version)
    tool = replace(entry.offer.tool, data=shown, definition_hash=hashed)
    widened = CatalogueEntry(entry.name, replace(entry.offer, tool=tool), shown)
    return Catalogue(
        catalogue.endpoint, catalogue.agent, {entry.name: widened}, catalogue.valid_until
    )


def _tool(expert: Offered, snapshot: Snapshot, now: float, *, formats: bool) -> ToolSpec:
    schema = expert.input_schema
    listing: dict[str, Any] = {
        "name": expert.name,
        "description": expert.description,
        "inputSchema": with_formats(schema, required=True) if formats else dict(schema),
        "annotations": derive_hints(expert, snapshot, now),
    }
    if expert.output_schema is not None and not formats:  # each call has its own schema
        listing["outputSchema"] = dict(expert.output_schema)
    hashed = hash_parts(encode_lossy_json(listing), expert.version)
    return ToolSpec(
        id=-1000 - expert.id,
        server_id=_SERVER.id,
        name=expert.name,
        definition_hash=hashed,
        data=listing,
        idempotent=False,
    )


def derive_hints(expert: Offered, snapshot: Snapshot, now: float) -> dict[str, bool]:
    """The tool's annotations, derived from its whitelist and never claimed.

    Read-only only if all of that is, destructive if any of it is.
    """
    agent = snapshot.agents[expert.agent]
    risks = [
        assess_risk(tool)
        for tool in snapshot.tools.values()
        if (server := snapshot.servers.get(tool.server_id))
        and may_see(agent, RUNS, server, tool, now)
    ]
    return {
        "readOnlyHint": all(risk.read_only for risk in risks),
        "destructiveHint": any(risk.destructive for risk in risks),
        "idempotentHint": False,
        "openWorldHint": any(risk.open_world for risk in risks),
    }


def expert_source(engine: Engine) -> tuple[ToolSource, Dispatcher]:
    """The source and its dispatcher for an engine; registered with
    ``subagents.extension``."""
    return ExpertTools(), ExpertDispatcher(engine)


@dataclass(frozen=True, slots=True)
class Begun:
    """A run, and the handle of a caller that does not wait for it."""

    run: str
    task: str = ""


class ExpertDispatcher:
    """Starts a run. A caller that takes tasks gets a handle at once; for others this tells progress
    and waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch: StateWatch[RunProgress] = StateWatch(engine.feed, RUN_TOPIC, read_progress)
        self._queue = Queue(engine.feed, engine.process)
        self._background: set[asyncio.Task[None]] = set()

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        """Start a run for the call, and wait for its end unless the host took a task."""
        if (known := await self._find_reusable_answer(call)) is not None:
            on_sent()
            return known
        headend = find_mcp_headend(self._engine.live.current, call.request.catalogue.endpoint.slug)
        if headend is None:
            return await self._start_and_wait(call, on_sent)
        place = await self._queue.join(
            headend, agent=call.request.catalogue.agent.slug, fingerprint=call.id
        )
        given_up = False
        try:
            await self._turn(headend, place, call)
            answer = await self._start_and_wait(call, on_sent)
            if answer.get("resultType") == "task":
                given_up = True
                self._spawn(self._keep_place(place, call))
            return answer
        finally:
            if not given_up:
                await asyncio.shield(self._queue.leave(place))

    async def _turn(self, headend: HeadendSpec, place: QueuePlace, call: Call) -> None:
        """Wait for the turn of the call in the queue of the MCP headend."""

        def on_position(ahead: int) -> None:
            if call.request.on_progress is not None:
                call.request.on_progress(0.0, None, f"Waiting in the queue, position {ahead}")

        waiting = asyncio.ensure_future(self._queue.wait_for_turn(headend, place, on_position))
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=_RENEW_EVERY)
                await _keep(call)
            await waiting
        finally:
            waiting.cancel()

    async def _keep_place(self, place: QueuePlace, call: Call) -> None:
        """Keep the place until the end of the run, for a host that uses tasks."""
        try:
            begun = await db_call(_find_begun_run, call.id)
            now = RunProgress(begun is None, -1, -1, "")
            while begun is not None and not now.ended and not self._watch.stopping:
                now = await self._watch.wait_for_change(begun.run, now, _RENEW_EVERY)
        finally:
            await asyncio.shield(self._queue.leave(place))

    async def _start_and_wait(self, call: Call, on_sent: Callable[[], None]) -> dict[str, Any]:
        # compiling a schema may take a moment
        arguments, answer_format = await asyncio.to_thread(_split, call)
        beginning = asyncio.ensure_future(db_call(_begin, call, arguments, answer_format))
        try:
            # The transaction that begins the run ends by itself; only then is it known what has to
            # be cancelled.
            begun = await _await_beginning(beginning, call)
        except asyncio.CancelledError:
            on_sent()  # perhaps it was begun already
            self._spawn(_cancel_begun_run(beginning, call))
            raise
        on_sent()
        if begun.task:
            return {"resultType": "task", "taskId": begun.task}
        try:
            return answer_of(await self._wait_for_end(begun.run, call))
        except (asyncio.CancelledError, DownstreamError):
            await asyncio.shield(_cancel_begun_run(beginning, call))
            raise

    async def _find_reusable_answer(self, call: Call) -> dict[str, Any] | None:
        """An answer that may be given again; it costs nothing."""
        name = call.entry.offer.tool.name
        expert = find_expert(self._engine.live.current, name)
        if expert is None or not expert.cache_seconds:
            return None
        arguments, answer_format = _split(call)
        tools = Toolbox(
            self._engine, self._engine.get_run_catalogue(expert.agent), run="", expert=name
        ).fingerprint
        run = await db_call(
            runs.find_reusable_run,
            expert=name,
            arguments=arguments,
            tools=tools,
            answer_format=answer_format,
            caller=call.request.catalogue.agent.slug,
            seconds=expert.cache_seconds,
            now=timezone.now(),
        )
        return repeat_answer(run) if run is not None else None

    async def _wait_for_end(self, run_id: str, call: Call) -> Run:
        now = RunProgress(False, -1, -1, "")
        renewed = time.monotonic()
        while not now.ended:
            before = now
            now = await self._watch.wait_for_change(run_id, now, _RENEW_EVERY)
            if now != before and call.request.on_progress is not None:
                call.request.on_progress(
                    float(now.turns + now.calls), None, f"Step {now.turns + 1}: {now.doing}"
                )
            if time.monotonic() - renewed >= _RENEW_EVERY:
                renewed = time.monotonic()
                await _keep(call)
        return await db_call(Run.objects.get, pk=run_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _keep(call: Call) -> None:
    if not await db_call(long_calls.renew_call_lease, call_id=call.id, fence=call.fence):
        raise DownstreamError(
            "This process did not report for too long, so the call was ended. The run of this call may have continued.",
            remedy="Check under Expert tools, Runs what the run has done before you repeat the call.",
            sent=True,
        )


def _split(call: Call) -> tuple[dict[str, Any], AnswerFormat]:
    """Split the arguments into those of the expert tool and the format of the answer."""
    arguments = json.loads(call.arguments_json)
    offered = call.entry.offer.tool.data["inputSchema"].get("properties") or {}
    return (
        split_format(arguments) if offered.get(FORMAT) is FORMAT_SCHEMA else (arguments, OWN_FORMAT)
    )


@transaction.atomic
def _begin(call: Call, arguments: Mapping[str, Any], answer_format: AnswerFormat) -> Begun:
    """The run, and where the host takes tasks the handle, together or not at all."""
    catalogue = call.request.catalogue
    request = call.request
    run = runs.start(
        expert=call.entry.offer.tool.name,
        arguments=arguments,
        answer_format=answer_format,
        origin=runs.CALL,
        caller=catalogue.agent.slug,
        endpoint=catalogue.endpoint.slug,
        call_id=call.id,
        parent=request.request_id if request.origin == "run" else "",
        requester=request.requester,
        conversation=request.conversation,
    )
    if not request.host.tasks:
        return Begun(run.pk)
    task = long_calls.hand_over_call(
        call_id=call.id,
        fence=call.fence,
        agent=catalogue.agent.slug,
        endpoint=catalogue.endpoint.slug,
        ttl_ms=host_tasks.KEPT_MS,
        poll_ms=_POLL_MS,
        message="Waiting for a worker.",
    )
    if task is None:
        raise Conflict("The call ended before its run was started.", remedy="Repeat the call.")
    failpoint("run_begun")
    return Begun(run.pk, task.pk)


async def _await_beginning(beginning: asyncio.Future[Begun], call: Call) -> Begun:
    """What was begun, also where its commit was not heard of: that is looked up before anything is
    said.

    Raises Error when nothing was begun, DownstreamError (sent) when nobody knows.
    """
    try:
        return await asyncio.shield(beginning)
    except Error as error:
        try:
            found = await db_call(_find_begun_run, call.id)
        except Error:
            if not is_outcome_unknown(error):
                raise error from None
            doubt = (
                "It is not known whether the run was started, because the database is unavailable."
            )
            raise DownstreamError(
                doubt,
                remedy="In a moment, check under Expert tools, Runs whether this call has a run.",
                sent=True,
            ) from error
        if found is None:
            raise
        return found


def _find_begun_run(call_id: str) -> Begun | None:
    run = Run.objects.filter(call_id=call_id).values_list("pk", flat=True).first()
    task = HostTask.objects.filter(call_id=call_id).values_list("pk", flat=True).first()
    return Begun(run, task or "") if run else None


async def _cancel_begun_run(beginning: asyncio.Future[Begun], call: Call) -> None:
    """The caller is gone: what it has begun is cancelled, down to the call that is out at a
    server."""
    caller = call.request.catalogue.agent.slug
    with suppress(SlipsnisseError):  # then nothing was begun
        begun = await _await_beginning(beginning, call)
        await db_call(runs.cancel, run_id=begun.run, actor=caller, reason="caller left")
