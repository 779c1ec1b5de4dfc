"""Endpoints, agents, tokens and grants."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Object, OfferKind, Slug, StrictInput, Text, When
from mcpregistry.models import Agent, Endpoint, Grant, Token

Name = Annotated[Text, Field(max_length=200)]
Long = Annotated[Text, Field(max_length=20_000)]
Capabilities = Annotated[
    list[Annotated[Text, Field(min_length=1, max_length=600)]], Field(max_length=1000)
]

Hold = Annotated[
    int,
    Field(
        ge=0,
        le=3600,
        description='Maximum number of seconds until a held call is answered with "pending". If '
        "null, the wait depends on the host.",
    ),
]


class EndpointChange(StrictInput):
    """Changes of an endpoint. You can leave out any key."""

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
    maintenance_tools: bool = Field(
        description="Whether agents can request servers from the background sub-agent on this endpoint."
    )
    tell_energy: bool = Field(
        description="Whether results include the energy that their calls have used, and the "
        "level of the agent's energy pool."
    )
    instructions_limit: int = Field(
        description="Maximum number of characters of the servers' instructions, which follow those of the "
        "endpoint. 0 adds none."
    )
    hold_seconds: int | None
    created_at: datetime


class ListedTool(Schema):
    """A listed tool. ``definition`` is exactly what a host gets about the tool."""

    name: str
    server: str
    original_name: str
    definition: dict[str, Any]


class Listing(Schema):
    """The tools that one agent sees on one endpoint."""

    endpoint: str
    agent: str
    instructions: str = Field(description="The instructions exactly as hosts get them.")
    tools: list[ListedTool]


class AgentChange(StrictInput):
    """Changes of an agent. You can leave out any key."""

    nullable = frozenset({"calls_per_minute", "energy_pool", "hold_seconds"})

    slug: Slug | None = None
    name: Name | None = None
    description: Long | None = None
    enabled: bool | None = None
    capabilities: Capabilities | None = None
    calls_per_minute: (
        Annotated[
            int,
            Field(
                ge=0,
                le=1_000_000,
                description="Maximum number of calls per minute. If null, there is no limit.",
            ),
        ]
        | None
    ) = None
    energy_pool: (
        Annotated[
            Slug,
            Field(
                description="The energy pool that pays for the calls of the agent. If null, calls cost no energy."
            ),
        ]
        | None
    ) = None
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


class TokenNew(StrictInput):
    """Purpose and end of a new token."""

    name: Annotated[Text, Field(min_length=1, max_length=200, description="What the token is for.")]
    expires_at: When | None = None


class TokenOut(Schema):
    """A token without its text. ``prefix`` identifies it."""

    id: int
    name: str
    prefix: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class TokenIssued(TokenOut):
    """A new token with its text, which is returned only once."""

    token: str = Field(
        description="The text of the token. It is shown only once, because only its hash is stored."
    )


_URI = (
    "Limits the grant to resources whose URI matches. The character * matches any text. If empty, all resources are "
    "included."
)
_KIND = (
    "What the grant of a server includes: its tools, prompts, fixed resources or resource templates. If empty, it includes "
    "everything. Ignored with `tool`."
)


class GrantNew(StrictInput):
    """A new grant of exactly one server or tool, to exactly one agent or endpoint."""

    agent: Slug | None = None
    endpoint: Slug | None = None
    server: Slug | None = None
    tool: Annotated[
        Text,
        Field(
            min_length=1,
            max_length=600,
            description="Name of the tool or prompt: server::tool, the exposed name, or server::prompt:name.",
        ),
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
        id=row.id,
        agent=row.agent.slug if row.agent else None,
        endpoint=row.endpoint.slug if row.endpoint else None,
        server=row.server.slug if row.server else None,
        kind=cast("Any", row.kind),
        uri=row.uri,
        tool=str(row.tool) if row.tool else None,
        argument_pins=row.argument_pins,
        expires_at=row.expires_at,
        note=row.note,
        created_at=row.created_at,
    )
