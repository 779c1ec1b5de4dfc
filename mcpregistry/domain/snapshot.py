"""The live configuration as immutable values: what the hot path reads instead of the database.

Times are seconds since the epoch. Nothing in a snapshot is secret: environment and headers of a
server stay sealed in the database until the moment of connecting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mcpregistry.domain.policy import Outcome
from mcpregistry.domain.rules import Rules, RuleSpec


@dataclass(frozen=True, slots=True)
class ServerSpec:
    id: int
    slug: str
    title: str
    revision: int
    transport: str
    connect_mode: str
    request_timeout: float
    max_message_bytes: int
    available: bool


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool with its approved definition (``data``: the fields that a model can see).

    ``read_only`` to ``open_world`` are what an operator has confirmed of its behaviour; None: nothing. Sources other
    than downstream servers give their tools negative ids, so that no rule about a tool means them.
    """

    id: int
    server_id: int
    name: str
    definition_hash: str
    data: Mapping[str, Any]
    idempotent: bool
    read_only: bool | None = None
    destructive: bool | None = None
    open_world: bool | None = None
    energy: float = 0.0  # of one call, as an operator estimates it
    instructions: str = ""  # what its server tells every model, as it was approved with this tool


@dataclass(frozen=True, slots=True)
class GrantSpec:
    server_id: int | None
    tool_id: int | None
    pins: Mapping[str, Any]
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class AgentSpec:
    id: int
    slug: str
    capabilities: frozenset[str]
    calls_per_minute: int | None
    grants: tuple[GrantSpec, ...]


@dataclass(frozen=True, slots=True)
class TokenSpec:
    agent: str
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    slug: str
    title: str
    instructions: str
    naming_style: str
    description_style: str
    lists_only: bool
    hide_unavailable: bool
    grants: tuple[GrantSpec, ...]


# What runs of expert tools see: everything that their agent is granted. No host can ask for it by name.
RUNS = EndpointSpec(
    slug="(runs)", title="Runs of expert tools", instructions="", naming_style="double", description_style="none",
    lists_only=False, hide_unavailable=False, grants=(),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkspaceSpec:
    directory: str
    endpoint: str
    agent: str


@dataclass(frozen=True, slots=True)
class PermitSpec:
    """An approval given ahead. How many uses are left is asked of the database when it is used."""

    id: int
    definition_hash: str
    server_revision: int
    pins: Mapping[str, Any]
    expires_at: float


@dataclass(frozen=True)
class Snapshot:
    """One consistent reading of the configuration at ``revision``.

    Only what may serve is in it: active servers, enabled tools whose server says now what
    was approved, enabled agents and endpoints, tokens that were not revoked.
    """

    revision: int
    sections: Mapping[str, Any] = field(default_factory=dict)  # what other apps have read, by their names
    servers: Mapping[int, ServerSpec] = field(default_factory=dict)
    tools: Mapping[int, ToolSpec] = field(default_factory=dict)
    agents: Mapping[str, AgentSpec] = field(default_factory=dict)
    tokens: Mapping[str, TokenSpec] = field(default_factory=dict)
    endpoints: Mapping[str, EndpointSpec] = field(default_factory=dict)
    workspaces: tuple[WorkspaceSpec, ...] = ()
    rules: tuple[RuleSpec, ...] = ()
    default_outcome: Outcome = Outcome.ASK
    permits: Mapping[tuple[int, int], tuple[PermitSpec, ...]] = field(default_factory=dict)  # by agent and tool

    @cached_property
    def policy(self) -> Rules:
        """The rules, compiled when first asked for."""
        return Rules(self.rules, self.default_outcome)

    def agent_of(self, token_hash: str, now: float) -> AgentSpec | None:
        """The agent that a live token belongs to."""
        token = self.tokens.get(token_hash)
        if token is None or (token.expires_at is not None and token.expires_at <= now):
            return None
        return self.agents.get(token.agent)

    def endpoint_of_record(self, slug: str) -> EndpointSpec | None:
        """The endpoint that a call on record came by."""
        return RUNS if slug == RUNS.slug else self.endpoints.get(slug)

    def workspace_for(self, directory: str) -> WorkspaceSpec | None:
        """The workspace with the longest directory that holds ``directory`` (an absolute path)."""
        inside = (w for w in self.workspaces if f"{directory}/".startswith(f"{w.directory.rstrip('/')}/"))
        return max(inside, key=lambda w: len(w.directory), default=None)
