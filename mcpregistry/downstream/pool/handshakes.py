"""Which handshake opens a server: the one that worked last time first. A local server that refuses
it is started again with the other.

Some local servers end, or fall silent for good, at any message before ``initialize``. Others ignore
``server/discover``, and the wait for its answer costs ten seconds. So the handshake that worked is
remembered.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT
from mcp_types.version import LATEST_MODERN_VERSION

from mcpregistry.domain.errors import ConnectionFailed, DownstreamError
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.pool.failures import iterate_leaves
from mcpregistry.downstream.transports.wire import ChannelClosedError, EndedUnreadError

REMEMBERED_FOR = 600.0  # seconds; longer than the pause between two tries of a server that fails
OTHER = {"auto": "legacy", "legacy": "auto"}


def choose_first_mode(target: ServerTarget) -> str:
    """The SDK client's mode for the first start of this server."""
    if target.protocol == "modern":
        return LATEST_MODERN_VERSION
    return "legacy" if "legacy" in (target.protocol, target.last_era) else "auto"


def can_start_again(target: ServerTarget) -> bool:
    """Whether a failed handshake may be tried again with the other one: its process is ours to
    start."""
    return target.transport == "stdio" and target.protocol == "auto"


def is_refusal(error: BaseException, broken: DownstreamError | None) -> bool:
    """Whether the server itself ended or refused this handshake. ``broken``: why its channel was
    lost."""
    if broken is not None and not isinstance(broken, ChannelClosedError):
        return isinstance(broken, ConnectionFailed) and not isinstance(broken, EndedUnreadError)
    return any(
        isinstance(leaf, MCPError) and leaf.code != REQUEST_TIMEOUT
        for leaf in iterate_leaves(error)
    )


@dataclass(frozen=True, slots=True)
class _NotedEra:
    """What a server spoke, or what is tried next. ``record``: its revision and the era on record
    when it was noted."""

    record: tuple[int, str]
    era: str
    until: float


class RememberedEras:
    """The targets of a pool, which know what each server spoke when this process last connected to
    it.

    This bridges the time until the server's record says so. A record that changes, or
    ``REMEMBERED_FOR``, ends it.
    """

    def __init__(
        self,
        targets: Callable[[int], Awaitable[ServerTarget]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._targets = targets
        self._clock = clock
        self._recorded: dict[int, tuple[int, str]] = {}
        self._noted: dict[int, _NotedEra] = {}

    async def __call__(self, server_id: int) -> ServerTarget:
        """Return the server's target. Raises SlipsnisseError if it has none."""
        target = await self._targets(server_id)
        record = (target.revision, target.last_era)
        self._recorded[server_id] = record
        noted = self._noted.get(server_id)
        if noted is None or noted.record != record or noted.until < self._clock():
            self._noted.pop(server_id, None)
            return target
        return replace(target, last_era=noted.era)

    def note(self, target: ServerTarget, last_era: str) -> None:
        """Remember what a local server spoke, or what is to be tried next."""
        if can_start_again(target):
            record = self._recorded.get(target.server_id, (target.revision, target.last_era))
            self._noted[target.server_id] = _NotedEra(
                record, last_era, self._clock() + REMEMBERED_FOR
            )
