"""The live configuration as immutable values: what the hot path reads instead of the database.

Times are seconds since the epoch. Nothing in a snapshot is secret: environment and headers of a
server stay sealed in the database until the moment of connecting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mcpregistry.domain.budgets import list_endpoint_payers
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.policy.rules import Rules, RuleSpec
from mcpregistry.domain.snapshot_specs import (
    RUNS,
    AgentSpec,
    EndpointSpec,
    PermitSpec,
    ServerSpec,
    TokenSpec,
    ToolSpec,
    WorkspaceSpec,
)


@dataclass(frozen=True)
class Snapshot:
    """One consistent reading of the configuration at ``revision``.

    Only what may serve is in it: active servers, enabled tools whose server says now what
    was approved, enabled agents and endpoints, tokens that were not revoked.
    """

    revision: int
    # what other apps have read, by their names
    sections: Mapping[str, Any] = field(default_factory=dict)
    servers: Mapping[int, ServerSpec] = field(default_factory=dict)
    tools: Mapping[int, ToolSpec] = field(default_factory=dict)
    others: Mapping[int, ToolSpec] = field(default_factory=dict)  # prompts, resources, templates
    agents: Mapping[str, AgentSpec] = field(default_factory=dict)
    tokens: Mapping[str, TokenSpec] = field(default_factory=dict)
    endpoints: Mapping[str, EndpointSpec] = field(default_factory=dict)
    workspaces: tuple[WorkspaceSpec, ...] = ()
    rules: tuple[RuleSpec, ...] = ()
    default_outcome: RuleOutcome = RuleOutcome.ASK
    # by agent and tool
    permits: Mapping[tuple[int, int], tuple[PermitSpec, ...]] = field(default_factory=dict)

    @cached_property
    def policy(self) -> Rules:
        """The rules, compiled when first asked for."""
        return Rules(self.rules, self.default_outcome)

    def find_offer(self, tool_id: int) -> ToolSpec | None:
        """The tool, prompt or resource with this key; None if it does not serve."""
        return self.tools.get(tool_id) or self.others.get(tool_id)

    def find_agent_by_token(self, token_hash: str, now: float) -> AgentSpec | None:
        """The agent that an unexpired token belongs to; None for any other token."""
        token = self.tokens.get(token_hash)
        if token is None or (token.expires_at is not None and token.expires_at <= now):
            return None
        return self.agents.get(token.agent)

    def find_recorded_endpoint(self, slug: str) -> EndpointSpec | None:
        """The endpoint that a recorded call came through; ``RUNS`` for inner calls, None if it is
        gone."""
        return RUNS if slug == RUNS.slug else self.endpoints.get(slug)

    def list_payers(self, payers: Collection[str]) -> tuple[AgentSpec | EndpointSpec, ...]:
        """The agents and endpoints that these names mean, but for those that are gone."""
        doors = [self.endpoints.get(slug) for slug in list_endpoint_payers(payers)]
        return tuple(each for each in (*map(self.agents.get, payers), *doors) if each is not None)

    def find_workspace(self, directory: str) -> WorkspaceSpec | None:
        """The workspace with the longest directory that holds ``directory`` (an absolute path)."""
        inside = (
            w for w in self.workspaces if f"{directory}/".startswith(f"{w.directory.rstrip('/')}/")
        )
        return max(inside, key=lambda w: len(w.directory), default=None)
