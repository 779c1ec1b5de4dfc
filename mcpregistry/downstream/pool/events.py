"""What the pool tells the outside: events as they happen, states and test reports on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.servers.health import State
from mcpregistry.downstream.pool.discovery import Discovery, Era

EventKind = Literal["state", "session", "tools_changed", "stderr", "log", "secrets", "call_failed"]


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A fact for the outside. ``discovery`` comes with state connected and with tools_changed.

    ``detail`` is the reason of a state, the tail of standard error of a server that ended, its
    newest log lines, or which answer held secrets, or how a call failed. ``attempts`` are the
    failures in a row. ``at`` is seconds since the epoch. ``session``: the own connection of an
    agent or host session opened or closed; ``sessions`` says how many are open, and ``state`` stays
    the server's.
    """

    server_id: int
    kind: EventKind
    state: State
    detail: str
    code: str
    pid: int | None
    era: Era | None
    at: float
    discovery: Discovery | None = None
    attempts: int = 0
    sessions: int = 0


@dataclass(frozen=True, slots=True)
class ServerState:
    """One row of ``Pool.list_states()``. ``retry_in`` and ``for_seconds`` are seconds."""

    state: State
    detail: str
    code: str
    pid: int | None
    era: Era | None
    in_flight: int
    failures: int
    retry_in: float
    for_seconds: float
    sessions: int = 0


@dataclass(frozen=True, slots=True)
class TestReport:
    """One test with a connection of its own. Timings are milliseconds."""

    __test__ = False

    ok: bool
    error: SlipsnisseError | None
    discovery: Discovery | None
    result: dict[str, Any] | None
    stderr: str
    timings: dict[str, float]

    @property
    def listed(self) -> bool:
        """The server told its tools, whatever happened afterwards."""
        return self.discovery is not None and "list" in self.discovery.timings
