"""Agents and their tokens. A token's text is answered once, when it is made."""

from __future__ import annotations

from typing import Annotated, Any

from django.db.models import Q
from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, rights
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.access import (
    AgentChange,
    AgentNew,
    AgentOut,
    TokenIssued,
    TokenNew,
    TokenOut,
    agent_out,
    token_issued,
    token_out,
)
from mcpregistry.api.schemas.basics import Page, Problem, Slug, Text
from mcpregistry.domain.errors import Conflict
from mcpregistry.models import Agent, EnergyPool, Token
from mcpregistry.services.access import agents, tokens

router = PermissionRouter(tags=["agents"])


def _make_issued_conflict(answer: Status[TokenIssued]) -> Conflict:
    token = answer.value
    return Conflict(
        f"An earlier request with this Idempotency-Key has created the token {token.id} ({token.prefix}…). "
        "The text of a token cannot be shown again.",
        remedy="If you did not receive the text, revoke this token, then create another token with a new Idempotency-Key.",
    )


@router.get("/agents", response=Page[AgentOut])
def list_agents(
    request: HttpRequest,
    *,
    q: Annotated[
        Text | None,
        Query(max_length=200, description="Text that the slug, name or description contains."),
    ] = None,
    enabled: bool | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AgentOut]:
    """Agents by slug."""
    rows = Agent.objects.select_related("energy_pool")
    if q:
        rows = rows.filter(
            Q(slug__icontains=q) | Q(name__icontains=q) | Q(description__icontains=q)
        )
    if enabled is not None:
        rows = rows.filter(enabled=enabled)
    return read_page(rows, order=("slug",), limit=limit, cursor=cursor, show=agent_out)


@router.post("/agents", response={201: AgentOut, 404: Problem})
@once()
def create_agent(request: HttpRequest, payload: AgentNew) -> Status[AgentOut]:
    """Add an agent. It cannot use anything until you add grants."""
    return Status(
        201,
        agent_out(agents.save_agent(agent=Agent(**_read_columns(payload)), actor=actor(request))),
    )


@router.get("/agents/{slug}", response=AgentOut)
def get_agent(request: HttpRequest, slug: Slug) -> AgentOut:
    """One agent."""
    return agent_out(lookup.find_agent(slug))


@router.patch("/agents/{slug}", response=AgentOut)
def change_agent(request: HttpRequest, slug: Slug, payload: AgentChange) -> AgentOut:
    """Change the fields that are sent. The others stay as they are."""
    row = lookup.find_agent(slug).change(**_read_columns(payload))
    return agent_out(agents.save_agent(agent=row, actor=actor(request), rights=rights(request)))


def _read_columns(payload: AgentChange) -> dict[str, Any]:
    """What was sent, with the pool that it names."""
    given = payload.get_sent_values()
    if slug := given.get("energy_pool"):
        given["energy_pool"] = lookup.one(EnergyPool.objects.all(), "energy pool", slug=slug)
    return given


@router.delete("/agents/{slug}", response={204: None, 409: Problem})
def delete_agent(request: HttpRequest, slug: Slug) -> Status[None]:
    """Delete an agent with its tokens and grants. The records of its calls stay."""
    agents.delete_agent(agent=lookup.find_agent(slug), actor=actor(request), rights=rights(request))
    return Status(204, None)


@router.get("/agents/{slug}/tokens", response=Page[TokenOut])
def list_tokens(
    request: HttpRequest, slug: Slug, limit: Limit = 50, cursor: Cursor = None
) -> Page[TokenOut]:
    """The agent's tokens, including revoked ones. Their text is never returned."""
    rows = Token.objects.filter(agent=lookup.find_agent(slug))
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=token_out)


@router.post("/agents/{slug}/tokens", response={201: TokenIssued})
@once(again=_make_issued_conflict)
def issue_token(request: HttpRequest, slug: Slug, payload: TokenNew) -> Status[TokenIssued]:
    """Issue a token. Its text is returned only once. It expires after 90 days unless the request
    sets another time.

    If the request is repeated with the same Idempotency-Key, the answer is 409 and names the token
    that was issued.
    """
    token, raw = tokens.issue_token(
        agent=lookup.find_agent(slug),
        name=payload.name,
        expires_at=payload.expires_at,
        actor=actor(request),
    )
    return Status(201, token_issued(token, raw))


@router.delete("/agents/{slug}/tokens/{token_id}", response={204: None})
def revoke_token(request: HttpRequest, slug: Slug, token_id: lookup.Id) -> Status[None]:
    """Revoke a token. It stops working everywhere within a second. Its record stays."""
    token = lookup.one(
        Token.objects.filter(agent=lookup.find_agent(slug)).select_related("agent"),
        "token",
        pk=token_id,
    )
    tokens.revoke_token(token=token, actor=actor(request))
    return Status(204, None)
