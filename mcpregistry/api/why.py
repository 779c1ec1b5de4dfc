"""Why a call would run, wait or be refused; why a tool is not listed right now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query

from mcpregistry.api import lookup
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Problem, Slug, Text
from mcpregistry.api.schemas.policy import WhyIn, WhyOut, why_out
from mcpregistry.services.policy.explain import explain_decision, find_tool

router = PermissionRouter(tags=["policy"])


@router.get("/why", response={200: WhyOut, 404: Problem})
def explain(
    request: HttpRequest,
    *,
    agent: Slug,
    endpoint: Slug,
    tool: Annotated[
        Text,
        Query(
            min_length=1, max_length=600, description="`server::tool`, or the name that hosts use."
        ),
    ],
) -> WhyOut:
    """Every stage of the decision about a tool, as far as it does not depend on arguments."""
    return _explain_access(agent, endpoint, tool, None)


@router.post("/why", response={200: WhyOut, 404: Problem})
def explain_call(request: HttpRequest, payload: WhyIn) -> WhyOut:
    """Every stage of the decision about a call with these arguments. The tool is not called."""
    return _explain_access(payload.agent, payload.endpoint, payload.tool, payload.arguments)


def _explain_access(
    agent: str, endpoint: str, tool: str, arguments: Mapping[str, Any] | None
) -> WhyOut:
    where = lookup.find_endpoint(endpoint)
    found = explain_decision(
        agent=lookup.find_agent(agent),
        endpoint=where,
        tool=find_tool(tool, styles=(where.naming_style, "double")),
        now=timezone.now(),
        arguments=arguments,
    )
    return why_out(found)
