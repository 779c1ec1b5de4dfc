"""Agents and their tokens. A token's text is answered once, when it is made."""

from __future__ import annotations

from typing import Annotated

from django.db.models import Q
from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor
from mcpregistry.api.paging import Cursor, Limit, page
from mcpregistry.api.routes import Routes
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
from mcpregistry.api.schemas.basics import Page, Slug, Text
from mcpregistry.models import Agent, Token
from mcpregistry.services import access, configuration

router = Routes(tags=["agents"])


@router.get("/agents", response=Page[AgentOut])
def list_agents(
    request: HttpRequest,
    *,
    q: Annotated[Text | None, Query(max_length=200, description="Part of slug, name or description.")] = None,
    enabled: bool | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AgentOut]:
    rows = Agent.objects.all()
    if q:
        rows = rows.filter(Q(slug__icontains=q) | Q(name__icontains=q) | Q(description__icontains=q))
    if enabled is not None:
        rows = rows.filter(enabled=enabled)
    return page(rows, order=("slug",), limit=limit, cursor=cursor, show=agent_out)


@router.post("/agents", response={201: AgentOut})
def create_agent(request: HttpRequest, payload: AgentNew) -> Status[AgentOut]:
    """It may do nothing yet: give it grants."""
    return Status(201, agent_out(access.save_agent(agent=Agent(**payload.given()), actor=actor(request))))


@router.get("/agents/{slug}", response=AgentOut)
def get_agent(request: HttpRequest, slug: Slug) -> AgentOut:
    return agent_out(lookup.agent(slug))


@router.patch("/agents/{slug}", response=AgentOut)
def change_agent(request: HttpRequest, slug: Slug, payload: AgentChange) -> AgentOut:
    row = lookup.agent(slug)
    for name, value in payload.given().items():
        setattr(row, name, value)
    return agent_out(access.save_agent(agent=row, actor=actor(request)))


@router.delete("/agents/{slug}", response={204: None})
def delete_agent(request: HttpRequest, slug: Slug) -> Status[None]:
    """Its tokens and grants go with it; the records of its calls stay."""
    configuration.delete_agent(agent=lookup.agent(slug), actor=actor(request))
    return Status(204, None)


@router.get("/agents/{slug}/tokens", response=Page[TokenOut])
def list_tokens(request: HttpRequest, slug: Slug, limit: Limit = 50, cursor: Cursor = None) -> Page[TokenOut]:
    rows = Token.objects.filter(agent=lookup.agent(slug))
    return page(rows, order=("-id",), limit=limit, cursor=cursor, show=token_out)


@router.post("/agents/{slug}/tokens", response={201: TokenIssued})
def issue_token(request: HttpRequest, slug: Slug, payload: TokenNew) -> Status[TokenIssued]:
    """Lives 90 days unless told otherwise."""
    token, raw = access.issue_token(
        agent=lookup.agent(slug), name=payload.name, expires_at=payload.expires_at, actor=actor(request)
    )
    return Status(201, token_issued(token, raw))


@router.delete("/agents/{slug}/tokens/{token_id}", response={204: None})
def revoke_token(request: HttpRequest, slug: Slug, token_id: lookup.Id) -> Status[None]:
    """It stops working everywhere within a second; the row stays."""
    token = lookup.one(Token.objects.filter(agent=lookup.agent(slug)).select_related("agent"), "token", pk=token_id)
    access.revoke_token(token=token, actor=actor(request))
    return Status(204, None)
