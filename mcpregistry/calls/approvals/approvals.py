"""Held calls in the life of one process: permits, callers, and the calls that run.

The database is the truth; nothing here knows the pipeline or the engine.
"""

from __future__ import annotations

from mcpregistry.calls.approvals.background_writes import BackgroundWrites
from mcpregistry.calls.approvals.held_call_runner import HeldCallRunner
from mcpregistry.calls.approvals.held_requests import HeldRequests
from mcpregistry.calls.approvals.revalidation import CatalogueOf
from mcpregistry.calls.execution import Execution
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.domain.policy.decision import CallPolicy
from mcpregistry.models.feed import CALLS
from mcpregistry.services.approvals import held_calls


class Approvals:
    """The parts that share one watch and one queue of writes: ``requests`` for callers, ``runner``
    for calls that may run. One per engine."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        feed: Feed,
        live: LiveConfiguration,
        catalogue_of: CatalogueOf,
        policy: CallPolicy,
        execution: Execution,
        writes: BackgroundWrites,
    ) -> None:
        self._writes = writes
        self._watch = StateWatch(feed, CALLS, held_calls.load_call_states)
        self.runner = HeldCallRunner(
            recorder=recorder,
            watch=self._watch,
            live=live,
            catalogue_of=catalogue_of,
            policy=policy,
            execution=execution,
        )
        self.requests = HeldRequests(recorder, self._watch, writes, self.runner.cancel_attempt)

    def stop(self) -> None:
        """End every wait at once. Calls that run go on until ``close``."""
        self._watch.stop()

    async def close(self) -> None:
        """End what still runs, and finish what was begun in the background."""
        await self.runner.close()
        await self._writes.close()
        await self.requests.close()

    async def wait_until_done(self) -> None:
        """Once what is done in the background is done."""
        await self._writes.wait_until_done()
