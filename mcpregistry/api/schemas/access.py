"""Endpoints, agents, tokens and grants."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Input, Object, OfferKind, Slug, Text, When
from mcpregistry.models import Agent, Endpoint, Grant, Token

Name = Annotated[Text, Field(max_length=200)]
Long = Annotated[Text, Field(max_length=20_000)]
Capabilities = Annotated[list[Annotated[Text, Field(min_length=1, max_length=600)]], Field(max_length=1000)]

Hold = Annotated[
    int,
    Field(ge=0, le=3600, description="Seconds before a held call is told pending. Null: as long as the host bears."),
]


class EndpointChange(Input):
    """What may change of an endpoint; every key may be left out."""

    nullable = frozenset({"hold_seconds"})

    slug: Slug | None = None
    name: Name | None = None
    instructions: Long | None = None
    enabled: bool | None = None
    scope: Literal["granted", "listed"] | None = None
    naming_style: Literal["double", "single", "mcp_single", "mcp_double", "plain"] | None = None
    description_style: Literal["none", "bracket", "mcp_bracket"] | None = None
    hide_unavailable: bool | None = None
    maintenance_tools: bool | None = None
    tell_energy: bool | None = None
    instructions_limit: Annotated[int, Field(ge=0, le=100_000)] | None = None
    hold_seconds: Hold | None = None


class EndpointNew(EndpointChange):
    """A new endpoint; only the slug is needed."""

    slug: Slug


class EndpointOut(Schema):
    """An endpoint."""

    slug: str
    name: str
    instructions: str
    enabled: bool
    scope: str
    naming_style: str
    description_style: str
    hide_unavailable: bool
    maintenance_tools: bool = Field(description="Whether agents can ask the background sub-agent for servers here.")
    tell_energy: bool = Field(description="Whether results say what their calls cost of the agent's energy pool.")
    instructions_limit: int = Field(
        description="Characters of the servers' instructions, which follow its own. 0: none."
    )
    hold_seconds: int | None
    created_at: datetime


class ListedTool(Schema):
    """``definition`` is exactly what a host is told about the tool."""

    name: str
    server: str
    original_name: str
    definition: dict[str, Any]


class Listing(Schema):
    """What hosts of one agent are shown on one endpoint."""

    endpoint: str
    agent: str
    instructions: str = Field(description="Exactly what a host is told to tell its model.")
    tools: list[ListedTool]


class AgentChange(Input):
    """What may change of an agent; every key may be left out."""

    nullable = frozenset({"calls_per_minute", "energy_pool", "hold_seconds"})

    slug: Slug | None = None
    name: Name | None = None
    description: Long | None = None
    enabled: bool | None = None
    capabilities: Capabilities | None = None
    calls_per_minute: Annotated[int, Field(ge=0, le=1_000_000, description="Null: no limit.")] | None = None
    energy_pool: Annotated[Slug, Field(description="The pool that its calls are charged to. Null: none.")] | None = None
    hold_seconds: Hold | None = None


class AgentNew(AgentChange):
    """A new agent; only the slug is needed."""

    slug: Slug


class AgentOut(Schema):
    """An agent."""

    slug: str
    name: str
    description: str
    enabled: bool
    capabilities: list[str]
    calls_per_minute: int | None
    energy_pool: str | None
    hold_seconds: int | None
    created_at: datetime


class TokenNew(Input):
    """What the token is for, and when it ends."""

    name: Annotated[Text, Field(min_length=1, max_length=200, description="What it is for.")]
    expires_at: When | None = None


class TokenOut(Schema):
    """A token without its text; ``prefix`` is there to recognise it by."""

    id: int
    name: str
    prefix: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class TokenIssued(TokenOut):
    """A new token with its text, which is answered this once."""

    token: str = Field(description="Shown this once; only its hash is kept.")


_URI = "Of the server's resources only those whose URI is like this; * stands for anything. Empty: all."
_KIND = "What of the server is granted: its tools, prompts, fixed resources, templates of resources; empty: everything. Means nothing with `tool`."


class GrantNew(Input):
    """Exactly one of agent and endpoint, exactly one of server and tool."""

    agent: Slug | None = None
    endpoint: Slug | None = None
    server: Slug | None = None
    tool: Annotated[
        Text, Field(min_length=1, max_length=600, description="server::tool, its exposed name, or server::prompt:name.")
    ] | (None) = None
    kind: Annotated[OfferKind | Literal[""], Field(description=_KIND)] = "tool"
    uri: Annotated[Text, Field(max_length=500, description=_URI)] = ""
    argument_pins: Object = {}
    expires_at: When | None = None
    note: Annotated[Text, Field(max_length=500)] = ""


class GrantOut(Schema):
    """A grant."""

    id: int
    agent: str | None
    endpoint: str | None
    server: str | None
    kind: OfferKind | Literal[""] = Field(description=_KIND)
    uri: str = Field(description=_URI)
    tool: str | None
    argument_pins: dict[str, Any]
    expires_at: datetime | None
    note: str
    created_at: datetime


def endpoint_out(row: Endpoint) -> EndpointOut:
    """The row as its answer."""
    return EndpointOut(**{name: getattr(row, name) for name in EndpointOut.model_fields})


def agent_out(row: Agent) -> AgentOut:
    """The row as its answer."""
    told = {name: getattr(row, name) for name in AgentOut.model_fields}
    return AgentOut(**told | {"energy_pool": row.energy_pool.slug if row.energy_pool else None})


def token_out(row: Token) -> TokenOut:
    """The row as its answer."""
    return TokenOut(**{name: getattr(row, name) for name in TokenOut.model_fields})


def token_issued(row: Token, raw: str) -> TokenIssued:
    """The row as its answer, with the text ``raw`` of the token."""
    return TokenIssued(**token_out(row).model_dump(), token=raw)


def grant_out(row: Grant) -> GrantOut:
    """The row as its answer."""
    return GrantOut(
        id=row.id, agent=row.agent.slug if row.agent else None, endpoint=row.endpoint.slug if row.endpoint else None,
        server=row.server.slug if row.server else None, kind=cast("Any", row.kind), uri=row.uri, tool=str(row.tool) if row.tool else None,
        argument_pins=row.argument_pins, expires_at=row.expires_at, note=row.note, created_at=row.created_at,
    )  # fmt: skip
