"""Everything that one process needs to make calls: configuration, recorder, connections, pipeline.

There is one engine per process. Web and runmcp run it on their event loop, the worker on a loop
thread. It starts in a moment (no server is contacted) and stops in this order: no new calls, calls
in flight drained, records written, connections closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog
from django.conf import settings

from mcpregistry.calls.approvals.approvals import Approvals
from mcpregistry.calls.approvals.background_writes import BackgroundWrites
from mcpregistry.calls.approvals.caller_waiting import CallHolder
from mcpregistry.calls.approvals.permit_uses import PermitUses
from mcpregistry.calls.approvals.status_tool import ApprovalStatus
from mcpregistry.calls.call import CallOutcome, CallRequest, JudgedCall
from mcpregistry.calls.catalog import Catalogue, Catalogues, DownstreamTools, ToolSource
from mcpregistry.calls.completion import ArgumentCompletions
from mcpregistry.calls.connection_placement import Placement
from mcpregistry.calls.dispatch import DownstreamDispatcher
from mcpregistry.calls.execution import Dispatcher, Execution
from mcpregistry.calls.in_flight import DRAIN_SECONDS, InFlight
from mcpregistry.calls.live_policy import LivePolicy
from mcpregistry.calls.peer_addresses import choose_peer_address, get_marker_path
from mcpregistry.calls.pipeline import Pipeline
from mcpregistry.calls.project_status import ProjectStatus
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.refusal_records import RefusalRecords
from mcpregistry.calls.remote_tasks.adoption import Adoption
from mcpregistry.calls.resource_watches import ResourceWatches
from mcpregistry.calls.token_uses import TokenUses
from mcpregistry.calls.watch.changes import Feed, FeedState
from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.calls.outcome_texts import LOOK_FIRST
from mcpregistry.domain.errors import DownstreamError, NotFound, QueueFullError, SlipsnisseError
from mcpregistry.domain.policy.decision import CallPolicy
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import RUNS, AgentSpec, EndpointSpec
from mcpregistry.downstream.peers.sockets import PeerAddress
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.extensions import make_sampler, make_tool_sources
from mcpregistry.services.configuration.snapshot import set_followed_store
from mcpregistry.services.servers.connections import ConnectionLog, make_process_name
from mcpregistry.services.servers.targets import build_target
from mcpregistry.services.upkeep.process_lease import ProcessLease

log = structlog.get_logger(__name__)


class Engine:
    """``process`` names the kind: web, runmcp or worker."""

    def __init__(self, process: str, *, policy: CallPolicy | None = None) -> None:
        self.feed = Feed()
        self.live = LiveConfiguration(self.feed)
        self.recorder = Recorder(process)
        self.process = make_process_name(process)
        self.connections = ConnectionLog(self.process)
        self.pool = Pool(
            _load_target,
            self.connections.record,
            most=settings.MAX_CONNECTIONS,
            on_session_over=self._release_session,
        )
        self.placement = Placement(self.pool, self.process)
        self.watches = ResourceWatches(self.pool, self.placement)
        self.token_uses = TokenUses()
        self._is_shared = process != "runmcp"  # it serves one host, whose sessions are its own
        policy = policy or LivePolicy(self.live)
        self._in_flight = InFlight()
        writes = BackgroundWrites()
        permits = PermitUses(self.live, writes)
        dispatchers: dict[str, Dispatcher] = {}  # filled below: some need what is made here
        execution = Execution(
            recorder=self.recorder,
            dispatchers=dispatchers,
            permits=permits,
            in_flight=self._in_flight,
        )
        self.approvals = Approvals(
            recorder=self.recorder,
            feed=self.feed,
            live=self.live,
            catalogue_of=self._get_recorded_catalogue,
            policy=policy,
            execution=execution,
            writes=writes,
        )
        self.adoption = Adoption(self.pool, self.feed)
        own: tuple[ToolSource, Dispatcher] = (
            DownstreamTools(),
            DownstreamDispatcher(self.placement, self.adoption, make_sampler(self)),
        )
        status = ApprovalStatus(self.approvals)
        projects = ProjectStatus()
        sources = [own, (status, status), (projects, projects), *make_tool_sources(self)]
        self.catalogues = Catalogues(source for source, _ in sources)
        dispatchers.update({source.kind: dispatcher for source, dispatcher in sources})
        self.refusals = RefusalRecords(self.recorder, self._in_flight)
        self.pipeline = Pipeline(
            recorder=self.recorder,
            policy=policy,
            permits=permits,
            holder=CallHolder(self.approvals.requests, self.approvals.runner),
            execution=execution,
            refusals=self.refusals,
        )
        self.completions = ArgumentCompletions(self.pool, self.pipeline.rates, policy)
        self._background: set[asyncio.Task[None]] = set()
        self._revisions: dict[int, int] = {}
        self._connects = process != "worker"  # which serves no host: it connects when a call comes
        self._stopping = False
        self._draining: asyncio.Task[None] | None = None
        self._lease: ProcessLease | None = None

    def _release_session(self, server_id: int, session: str, is_lost: bool) -> None:
        self.placement.release(server_id, session, is_lost=is_lost)

    async def start(self) -> None:
        """Load the configuration and begin to watch it. Raises when the database cannot be read."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.live.start)
        self.feed.start()
        self._lease = await loop.run_in_executor(None, ProcessLease.hold, self.recorder.process)
        self.recorder.start(loop)

        def schedule_snapshot(snapshot: Snapshot) -> None:
            loop.call_soon_threadsafe(self._apply_snapshot, snapshot)

        self.live.listeners.append(schedule_snapshot)
        self.adoption.start()
        self.token_uses.start()
        if self._is_shared:
            place = choose_peer_address()
            await self.placement.start(place)
            if isinstance(place, PeerAddress):
                await db_call(ProcessLease.announce, self._lease, self.placement.address)
            await self.watches.start(get_marker_path())
        self._revisions = {
            server.id: server.revision for server in self.live.current.servers.values()
        }
        for server in self.live.current.servers.values():
            if server.connect_mode == "eager":
                self._spawn_connect(server.id)

    async def stop(self) -> None:
        """No new calls, calls in flight drained, records written, connections closed; in this
        order."""
        self.begin_stop()
        assert self._draining is not None
        await self._draining
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.approvals.close()
        await self.adoption.close()
        await self.watches.close()
        await self.placement.close()
        await self.token_uses.close()
        self.refusals.close()
        await self.pipeline.rates.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.recorder.close)
        await self.pool.close()
        await loop.run_in_executor(None, self.connections.close)
        if self._lease is not None:
            await loop.run_in_executor(None, self._lease.release)
        await loop.run_in_executor(None, self.feed.stop)

    def begin_stop(self, grace: float = DRAIN_SECONDS) -> None:
        """No new calls from now on, and held ones are told "pending" at once: their requests
        outlive this process.

        Calls in flight may end for ``grace`` seconds; then they are cut, and their callers and
        records told so. A web process calls this when it is told to stop, long before its server
        gives up on open requests: those would end as a bare error 500. Call it on the event loop;
        again does nothing.
        """
        if self._draining is None:
            self._stopping = True
            self.approvals.stop()
            self._draining = asyncio.ensure_future(self._drain(grace))

    async def _drain(self, grace: float) -> None:
        """Let calls in flight end; after a while, end them."""
        await self._in_flight.end_within(grace)
        await self._in_flight.cancel_all()

    def find_agent(self, token_hash: str) -> AgentSpec | None:
        """The agent that a live token (its hash) belongs to, from the snapshot."""
        return self.live.current.find_agent_by_token(token_hash, time.time())

    def get_catalogue(self, endpoint_slug: str, agent_slug: str) -> Catalogue:
        """What the agent sees there. Raises NotFound when either does not exist or is switched
        off."""
        return self._get_catalogue(
            self.live.current.endpoints.get(endpoint_slug), endpoint_slug, agent_slug
        )

    def get_run_catalogue(self, agent_slug: str) -> Catalogue:
        """What the runs of an expert tool may use: all that its agent is granted. Raises
        NotFound."""
        return self._get_catalogue(RUNS, RUNS.slug, agent_slug)

    def _get_recorded_catalogue(self, endpoint_slug: str, agent_slug: str) -> Catalogue:
        """For calls on record, whose endpoint nobody outside has named."""
        return self._get_catalogue(
            self.live.current.find_recorded_endpoint(endpoint_slug), endpoint_slug, agent_slug
        )

    def _get_catalogue(
        self, endpoint: EndpointSpec | None, endpoint_slug: str, agent_slug: str
    ) -> Catalogue:
        snapshot = self.live.current
        agent = snapshot.agents.get(agent_slug)
        if endpoint is None or agent is None:
            thing, slug = ("endpoint", endpoint_slug) if endpoint is None else ("agent", agent_slug)
            raise NotFound(
                error_texts.say_not_found(f"enabled {thing}", slug),
                remedy=f"Check the name, or enable the {thing}.",
            )
        return self.catalogues.get(snapshot, endpoint, agent, time.time())

    async def call(self, request: CallRequest) -> CallOutcome:
        """Run one call to its end. Cancelling the awaiting task cancels the call downstream.

        In a task of its own: the SDK's cancel scopes would cancel it again at every step of its
        end.
        """
        task = asyncio.ensure_future(self.proceed(self.judge(request)))
        self._in_flight.track_task(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                # Not at once: a task that never took its first step would leave no record of the
                # call.
                asyncio.get_running_loop().call_soon(task.cancel)
            raise

    def judge(self, request: CallRequest) -> JudgedCall:
        """What would become of the call; nothing is recorded. Raises Busy when stopping, or blind
        to changes."""
        self.check_open()
        return self.pipeline.judge(request)

    def can_server_ask(self, judged: JudgedCall) -> bool:
        """Whether the call's server may have a question while the call waits. Where it is known to
        have none, the call needs no task of its own. A server that changes its era at this very
        moment has its question declined."""
        if judged.refusal is not None:
            return False  # it is not sent at all, and perhaps nobody knows its server
        offer = judged.call.entry.offer
        key = (offer.by.kind, offer.by.name) if offer.by else (offer.tool.kind, offer.tool.name)
        return offer.server.shared_by != "everybody" or not self.pool.is_asking_in_answers(
            offer.server.id, key
        )

    def check_open(self) -> None:
        """Raises Busy when no calls are made: the process stops, or is blind to changes of its
        configuration."""
        if self._stopping:
            raise QueueFullError("The site is shutting down.", remedy=error_texts.TRY_AGAIN_SOON)
        if self.feed.state is FeedState.BLIND:
            raise QueueFullError(
                "The site makes no calls now: the database is unavailable, so the configuration may be out of date.",
                remedy=error_texts.TRY_AGAIN,
            )

    async def proceed(self, judged: JudgedCall) -> CallOutcome:
        """Go on with a judged call, in the caller's own task. Cancelling that cancels the call
        downstream."""
        task = asyncio.current_task()
        assert task is not None
        with self._in_flight.track_block(task):
            try:
                return await self.pipeline.proceed(judged)
            except asyncio.CancelledError:
                if not self._in_flight.was_cut(task):
                    raise
                raise DownstreamError(
                    "The site stopped before the answer arrived.", remedy=LOOK_FIRST, sent=True
                ) from None

    async def call_tool(
        self,
        *,
        agent_slug: str,
        endpoint_slug: str,
        name: str,
        arguments: Mapping[str, Any],
        origin: str = "rest",
        request_id: str = "",
    ) -> CallOutcome:
        """A call by names, for REST. Raises NotFound for the endpoint or agent, Busy when
        stopping."""
        catalogue = self.get_catalogue(endpoint_slug, agent_slug)
        return await self.call(
            CallRequest(catalogue, name, arguments, origin, request_id=request_id)
        )

    def _apply_snapshot(self, snapshot: Snapshot) -> None:
        before = self._revisions
        self._revisions = {s.id: s.revision for s in snapshot.servers.values()}
        self.pool.reconfigure(self._revisions)
        known = self.pool.list_states()
        for server in snapshot.servers.values():
            # Pressing Reconnect raises the revision: that is how a person tells a manual server to
            # connect.
            told = server.connect_mode == "manual" and before.get(server.id) not in (
                None,
                server.revision,
            )
            if self._connects and (
                told or (server.connect_mode == "eager" and server.id not in known)
            ):
                self._spawn_connect(server.id)

    def connect_ahead(self, catalogue: Catalogue, most: int) -> None:
        """Begin to connect to the servers of these tools as their first calls would, ``most`` of
        them.

        Runs of expert tools ask for it while they wait for something else. Call it on the event
        loop.
        """
        servers = {
            entry.offer.server.id
            for entry in catalogue.entries.values()
            if not entry.offer.own and entry.offer.server.shared_by == "everybody"
        }
        for server_id in sorted(servers)[:most]:
            self._spawn_connect(server_id, by_hand=False)

    def _spawn_connect(self, server_id: int, *, by_hand: bool = True) -> None:
        task = asyncio.ensure_future(self._connect(server_id, by_hand))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _connect(self, server_id: int, by_hand: bool) -> None:
        try:
            await self.pool.connect(server_id, by_hand=by_hand)
        except SlipsnisseError as error:  # its state and reason are on the server's page
            log.info("server.not_connected", server=server_id, code=error.code)


async def _load_target(server_id: int) -> Any:
    return await db_call(build_target, server_id)


_current: Engine | None = None


def get_current_engine() -> Engine:
    """The engine of this process. Raises Busy until it has started."""
    if _current is None:
        raise QueueFullError("This process is still starting.", remedy=error_texts.TRY_AGAIN_SOON)
    return _current


def set_current_engine(engine: Engine | None) -> None:
    """Make this the engine of the process, or none; for the doors, when they start and stop."""
    global _current  # noqa: PLW0603 - one engine per process is the point
    _current = engine
    set_followed_store(None if engine is None else lambda: engine.live.current)
