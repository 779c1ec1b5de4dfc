"""The context bill: what the definitions that an agent is shown cost on every turn, and taking out
what is not needed."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Problem, Slug
from mcpregistry.api.schemas.context_bill import BillOut, Hidden, Hide, bill_out
from mcpregistry.calls.context_bill import DAYS, Bill, build_bill, choose_grant_holder
from mcpregistry.domain.errors import Conflict, NotFound
from mcpregistry.models import Agent, Endpoint, Tool
from mcpregistry.services.policy import hiding

router = PermissionRouter(tags=["policy"])


@router.get("/context-bill", response={200: BillOut, 404: Problem, 409: Problem})
def get_context_bill(
    request: HttpRequest,
    *,
    agent: Slug,
    endpoint: Slug = "default",
    hide_from: Annotated[
        Literal["agent", "endpoint"],
        Query(
            description="Where to hide tools: in the grants of the agent or in the list of the endpoint. The bill counts the calls of this agent, or the calls through this endpoint."
        ),
    ] = "agent",
    days: Annotated[
        int, Query(ge=1, le=365, description="Number of days for which calls are counted.")
    ] = DAYS,
    limit: Annotated[
        int,
        Query(
            ge=1,
            le=10_000,
            description="Maximum number of tools in the answer, most expensive first.",
        ),
    ] = 200,
) -> BillOut:
    """Tokens of the definitions that the agent's hosts get on the endpoint, at about four bytes
    each, and which tools are not used.
    """
    whose = lookup.find_agent(agent)
    door = lookup.find_endpoint(endpoint)
    holder = _holder(whose, door, hide_from)
    return bill_out(
        _bill(whose, door, holder, days),
        agent=whose,
        endpoint=door,
        hide_from=hide_from,
        limit=limit,
    )


@router.post("/context-bill/hide", response={200: Hidden, 404: Problem, 409: Problem})
@once()
def hide_tools(request: HttpRequest, payload: Hide) -> Status[Hidden]:
    """Remove tools from the agent's grants, or from the endpoint's list. The grant of a whole
    server is replaced by single grants for the remaining tools. If one of the tools is not on the
    bill, the whole request is refused (404)."""
    whose = lookup.find_agent(payload.agent)
    door = lookup.find_endpoint(payload.endpoint)
    holder = _holder(whose, door, payload.hide_from)
    found = _bill(whose, door, holder, DAYS)
    tools = _find_tools(payload.tools, found)
    gone, made = hiding.hide_tools(holder, tools, actor=actor(request), user=person(request))
    left = found.count_without({tool.pk for tool in tools})
    return Status(
        200, Hidden(withdrawn=gone, given=made, tokens_before=found.total, tokens_after=left)
    )


def _holder(agent: Agent, endpoint: Endpoint, hide_from: str) -> Agent | Endpoint:
    holder = choose_grant_holder(agent, endpoint, by_list=hide_from == "endpoint")
    if hide_from == "endpoint" and holder is not endpoint:
        raise Conflict(
            f'The endpoint "{endpoint}" shows every tool that the agent is granted, so no tool can be hidden on this endpoint.',
            remedy="Set 'hide_from' to 'agent', or first set the 'scope' of the endpoint to 'listed'.",
        )
    return holder


def _bill(agent: Agent, endpoint: Endpoint, holder: Agent | Endpoint, days: int) -> Bill:
    found = build_bill(agent, endpoint, now=timezone.now(), days=days, holder=holder)
    if found is None:
        raise Conflict(
            "The agent or the endpoint is disabled, so hosts see no tools.",
            remedy="Enable the agent and the endpoint.",
        )
    return found


def _find_tools(names: list[str], found: Bill) -> list[Tool]:
    wanted = {lookup.tool(name).pk: name for name in names}
    missing = wanted.keys() - {line.tool_id for line in found.lines if not line.own}
    if missing:
        raise NotFound(
            f"These tools are not on the context bill: {', '.join(sorted(wanted[pk] for pk in missing))}.",
            remedy="Use only tools that GET /context-bill lists.",
        )
    return list(
        Tool.offers.filter(pk__in=wanted).select_related("server").order_by("server__slug", "name")
    )
