"""Read the whole live configuration once, into one immutable value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import connection, transaction
from django.db.models import QuerySet

from mcpregistry.domain.snapshot import (
    AgentSpec,
    EndpointSpec,
    GrantSpec,
    ServerSpec,
    Snapshot,
    TokenSpec,
    ToolSpec,
    WorkspaceSpec,
)
from mcpregistry.models import Agent, Configuration, Endpoint, Grant, Server, Token, Tool, Workspace


def current_revision() -> int:
    """How often the configuration has changed; one small read."""
    return Configuration.objects.values_list("revision", flat=True).get(id=1)


def load_snapshot() -> Snapshot:
    """The configuration as of now: one consistent reading, in a fixed number of queries."""
    with _one_reading():
        return _read()


@contextmanager
def _one_reading() -> Iterator[None]:
    """A transaction that sees one moment. On SQLite not Django's own, which would take the write lock."""
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    else:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN DEFERRED")
            try:
                yield
            finally:
                cursor.execute("ROLLBACK")  # nothing was written


def _read() -> Snapshot:
    revision = current_revision()
    servers = {s.id: _server(s) for s in Server.objects.active()}
    by_agent, by_endpoint = _grants()
    return Snapshot(
        revision=revision,
        servers=servers,
        tools={t.id: _tool(t) for t in _servable().filter(server_id__in=servers)},
        agents={a.slug: _agent(a, by_agent[a.id]) for a in Agent.objects.filter(enabled=True)},
        tokens=dict(_tokens()),
        endpoints={e.slug: _endpoint(e, by_endpoint[e.id]) for e in Endpoint.objects.filter(enabled=True)},
        workspaces=tuple(_workspaces()),
    )


def _servable() -> QuerySet[Tool]:
    return Tool.objects.filter(present=True, enabled=True, pinned__isnull=False).select_related("pinned")


def _server(server: Server) -> ServerSpec:
    return ServerSpec(
        id=server.id,
        slug=server.slug,
        title=server.title,
        revision=server.revision,
        transport=server.transport,
        connect_mode=server.connect_mode,
        request_timeout=server.request_timeout,
        max_message_bytes=server.max_message_bytes,
        available=server.unavailable_since is None,
    )


def _tool(tool: Tool) -> ToolSpec:
    assert tool.pinned is not None
    return ToolSpec(
        id=tool.id,
        server_id=tool.server_id,
        name=tool.name,
        definition_hash=tool.pinned.hash,
        data=tool.pinned.data,
        idempotent=tool.idempotent,
    )


def _grants() -> tuple[dict[int, list[GrantSpec]], dict[int, list[GrantSpec]]]:
    by_agent: dict[int, list[GrantSpec]] = defaultdict(list)
    by_endpoint: dict[int, list[GrantSpec]] = defaultdict(list)
    for grant in Grant.objects.order_by("id"):
        spec = GrantSpec(grant.server_id, grant.tool_id, grant.argument_pins, _epoch(grant.expires_at))
        if grant.agent_id is not None:
            by_agent[grant.agent_id].append(spec)
        elif grant.endpoint_id is not None:
            by_endpoint[grant.endpoint_id].append(spec)
    return by_agent, by_endpoint


def _agent(agent: Agent, grants: list[GrantSpec]) -> AgentSpec:
    return AgentSpec(agent.id, agent.slug, frozenset(agent.capabilities), agent.calls_per_minute, tuple(grants))


def _endpoint(endpoint: Endpoint, grants: list[GrantSpec]) -> EndpointSpec:
    return EndpointSpec(
        slug=endpoint.slug,
        title=endpoint.name or endpoint.slug,
        instructions=endpoint.instructions,
        naming_style=endpoint.naming_style,
        description_style=endpoint.description_style,
        lists_only=endpoint.scope == Endpoint.Scope.LISTED,
        hide_unavailable=endpoint.hide_unavailable,
        grants=tuple(grants),
    )


def _tokens() -> Iterable[tuple[str, TokenSpec]]:
    live = Token.objects.filter(agent__enabled=True, revoked_at__isnull=True)
    for digest, agent, expires_at in live.values_list("hash", "agent__slug", "expires_at"):
        yield digest, TokenSpec(agent, _epoch(expires_at))


def _workspaces() -> Iterable[WorkspaceSpec]:
    rows = Workspace.objects.filter(endpoint__enabled=True, agent__enabled=True)
    for directory, endpoint, agent in rows.values_list("directory", "endpoint__slug", "agent__slug"):
        yield WorkspaceSpec(directory, endpoint, agent)


def _epoch(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
