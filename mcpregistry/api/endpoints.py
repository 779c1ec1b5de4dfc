"""Endpoints, and what one agent sees on one of them."""

from __future__ import annotations

from typing import Annotated

from django.db.models import Q
from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, principal, rights
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.access import (
    EndpointChange,
    EndpointNew,
    EndpointOut,
    ListedTool,
    Listing,
    endpoint_out,
)
from mcpregistry.api.schemas.basics import ConversationId, Page, Problem, Slug, Text
from mcpregistry.calls.catalog import Catalogue
from mcpregistry.calls.conversations import narrow_to_conversation_sync
from mcpregistry.calls.engine import get_current_engine
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ArgumentsInvalid, NotFound
from mcpregistry.models import Endpoint
from mcpregistry.services.access import agents

router = PermissionRouter(tags=["endpoints"])


@router.get("/endpoints", response=Page[EndpointOut])
def list_endpoints(
    request: HttpRequest,
    *,
    q: Annotated[
        Text | None, Query(max_length=200, description="Text that the slug or name contains.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[EndpointOut]:
    """Endpoints by slug."""
    rows = (
        Endpoint.objects.filter(Q(slug__icontains=q) | Q(name__icontains=q))
        if q
        else Endpoint.objects.all()
    )
    return read_page(rows, order=("slug",), limit=limit, cursor=cursor, show=endpoint_out)


@router.post("/endpoints", response={201: EndpointOut})
@once()
def create_endpoint(request: HttpRequest, payload: EndpointNew) -> Status[EndpointOut]:
    """Add an endpoint."""
    row = agents.save_endpoint(endpoint=Endpoint(**payload.get_sent_values()), actor=actor(request))
    return Status(201, endpoint_out(row))


@router.get("/endpoints/{slug}", response=EndpointOut)
def get_endpoint(request: HttpRequest, slug: Slug) -> EndpointOut:
    """One endpoint."""
    return endpoint_out(lookup.find_endpoint(slug))


@router.patch("/endpoints/{slug}", response=EndpointOut)
def change_endpoint(request: HttpRequest, slug: Slug, payload: EndpointChange) -> EndpointOut:
    """Change the fields that are sent. The others stay as they are."""
    row = lookup.find_endpoint(slug).change(**payload.get_sent_values())
    return endpoint_out(
        agents.save_endpoint(endpoint=row, actor=actor(request), rights=rights(request))
    )


@router.delete("/endpoints/{slug}", response={204: None, 409: Problem})
def delete_endpoint(request: HttpRequest, slug: Slug) -> Status[None]:
    """Delete an endpoint with its grants. Hosts that use it get the answer that it does not exist.

    The answer is 409 if this would also delete rules, budgets or other records that the user has no
    permission to delete.
    """
    agents.delete_endpoint(
        endpoint=lookup.find_endpoint(slug), actor=actor(request), rights=rights(request)
    )
    return Status(204, None)


@router.get("/endpoints/{slug}/tools", response=Listing)
def list_endpoint_tools(
    request: HttpRequest,
    slug: Slug,
    agent: Slug | None = None,
    conversation: ConversationId | None = None,
) -> Listing:
    """The tools that the agent's hosts see on the endpoint, optionally within one of its
    conversations.

    With an agent's token, this is the agent's own list. A user must set `agent`.
    """
    who = principal(request).agent
    if who is None and agent is None:
        raise ArgumentsInvalid(
            error_texts.say_required("agent"), remedy="Add ?agent=SLUG to the address."
        )
    if who is not None and agent not in (None, who.slug):
        raise NotFound(
            error_texts.say_not_found("agent", agent),
            remedy="Leave out the parameter 'agent'. The token already identifies the agent.",
        )
    catalogue = get_current_engine().get_catalogue(slug, who.slug if who else str(agent))
    return _listing(narrow_to_conversation_sync(catalogue, conversation or ""))


def _listing(catalogue: Catalogue) -> Listing:
    tools = [
        ListedTool(
            name=name,
            server=entry.offer.server.slug,
            original_name=entry.offer.tool.name,
            definition=dict(entry.listing),
        )
        for name, entry in catalogue.entries.items()
    ]
    return Listing(
        endpoint=catalogue.endpoint.slug,
        agent=catalogue.agent.slug,
        instructions=catalogue.merge_instructions(),
        tools=tools,
    )
