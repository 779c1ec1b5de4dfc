"""What ``downstream`` needs to start or reach one server: plain values, secrets resolved.

A ``ServerTarget`` is built at the moment of connecting and thrown away with the connection, so that
a secret lives no longer in memory than the process or request that needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

TransportKind = Literal["stdio", "http", "sse", "websocket"]
ProtocolMode = Literal["auto", "legacy", "modern"]
Resend = Literal["never", "safe", "always"]
ConnectMode = Literal["lazy", "eager", "manual"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds for one server. Times in seconds (0 = none, request_timeout only), sizes in bytes."""

    connect_timeout: float = 30.0
    request_timeout: float = 30.0
    idle_timeout: float = 600.0
    message_bytes: int = 4 * MIB
    stderr_bytes: int = 64 * 1024
    max_tools: int = 2000
    definition_bytes: int = MIB  # all definitions of the server together
    max_description: int = 64 * 1024
    max_items: int = 10_000
    max_concurrency: int = 8
    max_sessions: int = 20


@dataclass(frozen=True, slots=True)
class ResourceBounds:
    """What one local server may use, all its processes together; files and open ones each. 0: as
    much as it likes."""

    memory_mb: int = 0
    processes: int = 0
    cpu_seconds: int = 0
    file_mb: int = 0
    open_files: int = 0

    def texts(self) -> list[str]:
        """Those that are set, for a page."""
        named = (
            (self.memory_mb, "{:,} MB of memory"),
            (self.processes, "{:,} processes"),
            (self.cpu_seconds, "{:,} seconds of processor time"),
            (self.file_mb, "files of {:,} MB"),
            (self.open_files, "{:,} open files per process"),
        )
        return [text.format(most) for most, text in named if most]


@dataclass(frozen=True, slots=True)
class Ports:
    """The TCP ports that a server may connect to, and those that it may listen on."""

    connect: tuple[int, ...] = ()
    listen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a local server may touch: its own folder (``home``), further paths, and the network,
    some ports or none of it.

    ``read`` and ``write`` are places without links; ``named`` are the paths that led there, and
    ``hidden`` what stays shut also where it lies in what every server may read. ``strict``: in
    namespaces of its own. ``written_by_others``: what other servers in a sandbox may write, so that
    nothing there is followed.
    """

    home: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = True
    ports: Ports | None = None  # with a network alone; None: all of it
    strict: bool = False
    named: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    written_by_others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """One server, ready to be connected to. ``repr`` never shows env, headers or secrets.

    ``secrets`` are the values that must not come back in the results of its tools.
    """

    server_id: int
    slug: str
    revision: int
    transport: TransportKind
    argv: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    allowed_networks: tuple[str, ...] = ()
    protocol: ProtocolMode = "auto"
    last_era: str = (
        # "legacy" or "modern": the handshake that a local server is opened with first, if it may be
        # either
        ""
    )
    connect: ConnectMode = "lazy"
    resend: Resend = "safe"
    # which of its questions may reach hosts: elicitation, sampling, roots
    questions: frozenset[str] = frozenset()
    limits: ServerLimits = ServerLimits()
    bounds: ResourceBounds = ResourceBounds()
    sandbox: Sandbox | None = None  # of a local server; None: it runs with the rights of this site
