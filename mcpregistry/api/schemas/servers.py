"""Servers, their tests, events and status. Values of env and headers go in, only their names come
out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Object, Slug, StrictInput, Text, cap_text
from mcpregistry.domain.servers.redacted_env import mask_record_secrets, redact_env
from mcpregistry.domain.servers.sandbox import LAST_PORT, MOST_PATHS, MOST_PORTS
from mcpregistry.models import Connection, Server, ServerEvent, ServerTest
from mcpregistry.models.confinement import MOST_MB, MOST_SECONDS
from mcpregistry.models.server import MOST_DEFINITION_BYTES, MOST_TOOLS
from mcpregistry.services.servers.exposed_secrets import find_open_secrets
from mcpregistry.services.servers.lifecycle import BOUNDS, SANDBOX

TransportName = Literal["stdio", "http", "sse", "websocket"]
LifecycleName = Literal["draft", "active", "disabled"]
Verdict = Literal["queued", "running", "passed", "failed"]
Pairs = dict[Annotated[Text, Field(max_length=200)], Annotated[Text, Field(max_length=20_000)]]
SandboxName = Literal["off", "enforce", "strict"]
SandboxNetworkName = Literal["all", "ports", "none"]
Paths = Annotated[list[Annotated[Text, Field(max_length=1000)]], Field(max_length=MOST_PATHS)]
Port = Annotated[int, Field(ge=1, le=LAST_PORT)]
PortList = Annotated[list[Port], Field(max_length=MOST_PORTS)]
Seconds = Annotated[float, Field(ge=0.1, le=600, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1000)]


class ServerChange(StrictInput):
    """Changes of a server. You can leave out any key. If given, env and headers are replaced as a
    whole."""

    slug: Slug | None = None
    name: Annotated[Text, Field(max_length=200)] | None = None
    description: Annotated[Text, Field(max_length=10_000)] | None = None
    transport: TransportName | None = None
    command: (
        Annotated[list[Annotated[Text, Field(max_length=10_000)]], Field(max_length=200)] | None
    ) = None
    cwd: Annotated[Text, Field(max_length=1000)] | None = None
    env: Annotated[Pairs, Field(max_length=200)] | None = None
    sandbox: SandboxName | None = None
    sandbox_network: SandboxNetworkName | None = None
    sandbox_read: Paths | None = None
    sandbox_write: Paths | None = None
    sandbox_connect: PortList | None = None
    sandbox_listen: PortList | None = None
    max_memory_mb: (
        Annotated[
            int,
            Field(
                ge=0,
                le=MOST_MB,
                description="Maximum memory of all processes together, in MB. 0 for no limit.",
            ),
        ]
        | None
    ) = None
    max_processes: (
        Annotated[
            int, Field(ge=0, le=100_000, description="Maximum number of processes. 0 for no limit.")
        ]
        | None
    ) = None
    max_cpu_seconds: (
        Annotated[
            int,
            Field(
                ge=0,
                le=MOST_SECONDS,
                description="Maximum CPU seconds of all processes together. 0 for no limit.",
            ),
        ]
        | None
    ) = None
    max_file_mb: (
        Annotated[
            int,
            Field(
                ge=0,
                le=MOST_MB,
                description="Maximum size of a file in MB. 0 for the "
                "default: 4,096 in the sandbox, otherwise no limit.",
            ),
        ]
        | None
    ) = None
    max_open_files: (
        Annotated[
            int,
            Field(
                ge=0,
                le=1_000_000,
                description="Maximum number of open files of a process. 0 for the limit of the site.",
            ),
        ]
        | None
    ) = None
    url: Annotated[Text, Field(max_length=2000)] | None = None
    headers: Annotated[Pairs, Field(max_length=100)] | None = None
    allowed_networks: (
        Annotated[list[Annotated[Text, Field(max_length=50)]], Field(max_length=50)] | None
    ) = None
    connect_mode: Literal["lazy", "eager", "manual"] | None = None
    resend: Literal["never", "safe", "always"] | None = None
    protocol_mode: Literal["auto", "legacy", "modern"] | None = None
    connect_timeout: Seconds | None = None
    request_timeout: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] | None = None
    idle_timeout: Annotated[float, Field(ge=1, le=31_536_000, allow_inf_nan=False)] | None = None
    max_message_bytes: Annotated[int, Field(ge=1024, le=2**30)] | None = None
    max_concurrency: Count | None = None
    max_tools: Annotated[int, Field(ge=1, le=MOST_TOOLS)] | None = None
    max_definition_bytes: Annotated[int, Field(ge=1024, le=MOST_DEFINITION_BYTES)] | None = None
    shared_by: Literal["everybody", "agent", "session"] | None = None
    max_sessions: Count | None = None
    asks_elicitation: bool | None = None
    asks_sampling: bool | None = None
    sampling_expert: (
        Annotated[
            Text,
            Field(
                max_length=60,
                description="The expert tool whose model answers sampling requests. "
                "If empty, the host's model answers.",
            ),
        ]
        | None
    ) = None
    asks_roots: bool | None = None
    check_interval: Annotated[int, Field(ge=10, le=31_536_000)] | None = None
    trial_hours: (
        Annotated[
            int,
            Field(
                ge=0,
                le=8760,
                description="Hours between two trials. 0 disables trials on a schedule.",
            ),
        ]
        | None
    ) = None
    mcp_apps: bool | None = None


class ServerNew(ServerChange):
    """A new server: the slug and the values that its transport needs."""

    slug: Slug


class Confirmation(StrictInput):
    """The hash of the launch that was checked."""

    launch_hash: Annotated[
        Text,
        Field(
            min_length=64,
            max_length=64,
            description="The value of the hash that 'launch' returned.",
        ),
    ]


class TestOrder(StrictInput):
    """What the test does. It always tests the stored, confirmed server."""

    call_tool: Annotated[
        Text, Field(max_length=200, description="Name of a harmless tool to call, or empty.")
    ] = ""
    call_arguments: Object = {}
    in_sandbox: Annotated[bool, Field(description="Whether to run the test in the sandbox.")] = (
        False
    )


class ServerOut(Schema):
    """A server. Of env and headers only the names are shown."""

    slug: str
    name: str
    description: str
    transport: TransportName
    command: list[str]
    cwd: str
    env_names: list[str]
    sandbox: SandboxName
    sandbox_network: SandboxNetworkName
    sandbox_read: list[str]
    sandbox_write: list[str]
    sandbox_connect: list[int]
    sandbox_listen: list[int]
    max_memory_mb: int
    max_processes: int
    max_cpu_seconds: int
    max_file_mb: int
    max_open_files: int
    url: str
    open_secrets: list[str] = Field(
        description="Texts in the command or address that look like a secret, which all users who can change "
        "servers can read. ``POST /servers/{slug}/keep-secrets`` stores each as a credential of the server."
    )
    header_names: list[str]
    allowed_networks: list[str]
    connect_mode: str
    resend: str
    protocol_mode: str
    connect_timeout: float
    request_timeout: float
    idle_timeout: float
    max_message_bytes: int
    max_concurrency: int
    max_tools: int
    max_definition_bytes: int
    shared_by: str
    max_sessions: int
    asks_elicitation: bool
    asks_sampling: bool
    sampling_expert: str = Field(
        description="The expert tool whose model answers sampling requests. If empty, the host's model answers."
    )
    asks_roots: bool
    check_interval: int
    trial_hours: int
    mcp_apps: bool = Field(
        description="Whether tools can show pages of the server (ui:// resources) in hosts."
    )
    features: list[str] = Field(
        description="Features besides lists: completions, logging, subscriptions."
    )
    lifecycle: LifecycleName
    launch_confirmed: bool
    confirmed_at: datetime | None
    revision: int
    source: str
    created_at: datetime
    updated_at: datetime


class LaunchOut(Schema):
    """What a user confirms. The hash covers the secret values too, so only users who can confirm
    see it.

    ``env_values`` are the variables that decide where code comes from. Null if the value may be a
    secret.
    """

    facts: dict[str, Any]
    launch_hash: str
    confirmed: bool


class ConnectionOut(Schema):
    """The connection of one process to the server, as the process last reported it."""

    process: str
    state: str
    protocol_era: str
    pid: int | None
    since: datetime
    seen_at: datetime
    last_error: str
    last_connect_time: datetime | None = Field(description="When this process last connected.")
    reconnect_attempts: int = Field(
        description="Number of consecutive failures since the last answered call."
    )
    sessions: int = Field(
        description="Number of open connections of single agents and host sessions."
    )


class StatusOut(Schema):
    """Counters cover the last 90 days. ``last_error`` is kept until the next failure replaces
    it."""

    server_name: str = Field(description="Slug of the server.")
    name: str = Field(description="Name of the server on pages.")
    transport: TransportName
    lifecycle: LifecycleName
    connected: bool
    available: bool
    tools_discovered: int
    total_calls: int
    success_calls: int
    failed_calls: int
    last_error: str
    last_error_code: str
    last_error_time: datetime | None
    last_ok_time: datetime | None
    last_connect_time: datetime | None = Field(
        description="When a process last connected to make calls."
    )
    last_used_time: datetime | None = Field(
        description="Time of the last call that succeeded or failed, as long as calls are kept. Reading the list "
        "of tools does not count."
    )
    reconnect_attempts: int = Field(
        description="Highest number of consecutive attempts among the processes."
    )
    tools_left_out: list[str] = Field(
        description="Definitions that are left out or shown to hosts with changes, each with the reason."
    )
    processes: list[ConnectionOut]


class ErrorPatternOut(Schema):
    """Similar failures of one tool. ``shape`` is their text without names and numbers, which
    vary."""

    tool: str
    code: str
    shape: str
    count: int
    first: datetime
    last: datetime


class ToolFigures(Schema):
    """Calls of one tool in the last 90 days."""

    tool: str = Field(description="Name of the tool on its server.")
    total_calls: int = Field(description="Number of sent calls that have ended.")
    success_calls: int
    failed_calls: int
    refused_calls: int = Field(
        description="Number of calls that were never sent: denied, rejected, expired, cancelled or void."
    )
    mean_ms: float | None = Field(
        description="Average time from receiving a call to its end, of sent calls among the newest 5,000 of the server."
    )
    last_call: datetime | None


class StatusDetail(StatusOut):
    """The state of one server, with its connections, figures per tool and newest errors."""

    tools: list[ToolFigures]
    errors: list[str] = Field(description="Recent errors, newest first.")
    error_patterns: list[ErrorPatternOut] = Field(
        description="Similar errors among the newest 5,000 calls of the server, most frequent first."
    )


class EventOut(Schema):
    """Something that happened to a server."""

    id: int
    at: datetime
    kind: str
    message: str
    process: str


class ServerTestOut(Schema):
    """A test of a server; ``timings`` in milliseconds per step."""

    id: int
    server: str
    verdict: Verdict
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    call_tool: str
    in_sandbox: bool
    server_revision: int
    protocol_era: str
    timings: dict[str, Any]
    tool_count: int | None
    left_out: str
    error_code: str
    error: str
    stderr_tail: str


_SAME = (
    "slug",
    "name",
    "description",
    "transport",
    "command",
    "cwd",
    "url",
    "allowed_networks",
    "connect_mode",
    "resend",
    "protocol_mode",
    "connect_timeout",
    "request_timeout",
    "idle_timeout",
    "max_message_bytes",
    "max_concurrency",
    "max_tools",
    "max_definition_bytes",
    "shared_by",
    "max_sessions",
    "asks_elicitation",
    "asks_sampling",
    "asks_roots",
    "sampling_expert",
    "check_interval",
    "trial_hours",
    "mcp_apps",
    "features",
    *SANDBOX,
    *BOUNDS,
    "lifecycle",
    "launch_confirmed",
    "confirmed_at",
    "revision",
    "source",
    "created_at",
    "updated_at",
)


def server_out(server: Server, *, whole: bool = True) -> ServerOut:
    """The row as its answer; not ``whole``: without what is secret in its command and address."""
    same = {name: getattr(server, name) for name in _SAME}
    same = same if whole else mask_record_secrets(same)
    return ServerOut(
        **same,
        env_names=sorted(server.env),
        header_names=sorted(server.headers),
        open_secrets=find_open_secrets(server),
    )


def launch_out(server: Server, *, whole: bool = True) -> LaunchOut:
    """What a person confirms, with the hash to confirm it by; not ``whole``: as of
    ``server_out``."""
    launch = server.launch_facts()
    facts = (launch if whole else mask_record_secrets(launch)) | {
        "env_values": redact_env(server.env)
    }
    return LaunchOut(
        facts=facts, launch_hash=server.launch_hash(), confirmed=server.launch_confirmed
    )


def connection_out(row: Connection) -> ConnectionOut:
    """The row as its answer."""
    return ConnectionOut(
        process=row.process,
        state=row.state,
        protocol_era=row.protocol_era,
        pid=row.pid,
        since=row.since,
        seen_at=row.seen_at,
        last_error=cap_text(row.last_error),
        last_connect_time=row.connected_at,
        reconnect_attempts=row.attempts,
        sessions=row.sessions,
    )


def event_out(event: ServerEvent) -> EventOut:
    """The row as its answer."""
    return EventOut(
        id=event.id,
        at=event.at,
        kind=event.kind,
        message=cap_text(event.message),
        process=event.process,
    )


def test_out(test: ServerTest) -> ServerTestOut:
    """The row as its answer."""
    return ServerTestOut(
        id=test.id,
        server=test.server.slug,
        verdict=cast(Verdict, test.verdict),
        requested_at=test.requested_at,
        started_at=test.started_at,
        finished_at=test.finished_at,
        call_tool=test.call_tool,
        in_sandbox=test.in_sandbox,
        server_revision=test.server_revision,
        protocol_era=test.protocol_era,
        timings=test.timings,
        tool_count=test.tool_count,
        left_out=test.left_out,
        error_code=test.error_code,
        error=cap_text(test.error),
        stderr_tail=cap_text(test.stderr_tail, 64 * 1024),
    )
