"""Expert tools over REST: list them, look at one, and what they have saved."""

from __future__ import annotations

from typing import Annotated

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Path, Query

from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.permissions import TABLE, OperationRule
from mcpregistry.api.schemas.basics import Page, Text
from mcpregistry.api.v1 import api
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import NotFound
from subagents.api.schemas import (
    ExpertOut,
    SavingsOut,
    expert_out,
)
from subagents.models import ExpertTool
from subagents.queries import compute_expert_figures, run_totals

TABLE.update(
    {
        "GET /experts": OperationRule("subagents.view_experttool"),
        "GET /experts/{name}": OperationRule("subagents.view_experttool"),
        "GET /savings": OperationRule("subagents.view_run"),
    }
)
router = PermissionRouter(tags=["expert tools"])

Name = Annotated[Text, Path(min_length=1, max_length=60)]


def _query_experts() -> QuerySet[ExpertTool]:
    related = "users", "endpoints", "ordered_targets__model__provider"
    return ExpertTool.objects.with_newest().select_related("agent").prefetch_related(*related)


@router.get("/experts", response=Page[ExpertOut])
def list_experts(
    request: HttpRequest,
    *,
    q: Annotated[
        Text | None, Query(max_length=200, description="Text in the name or description.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ExpertOut]:
    """List expert tools by name."""
    rows = _query_experts()
    if q:
        rows = rows.filter(name__icontains=q) | rows.filter(description__icontains=q)
    return read_page(rows, order=("name",), limit=limit, cursor=cursor, show=expert_out)


@router.get("/experts/{name}", response=ExpertOut)
def get_expert(request: HttpRequest, name: Name) -> ExpertOut:
    """Get one expert tool with its figures of the last 30 days."""
    expert = _query_experts().filter(name=name).first()
    if expert is None:
        raise NotFound(
            error_texts.say_not_found("expert tool", name),
            remedy="List them with GET /api/v1/experts.",
        )
    return expert_out(expert, compute_expert_figures(expert))


@router.get("/savings", response=SavingsOut)
def get_savings(
    request: HttpRequest,
    *,
    days: Annotated[int, Query(ge=1, le=365, description="Number of past days.")] = 30,
) -> SavingsOut:
    """Get what all expert tools together and each of them have used and saved. The figures are
    estimates."""
    return SavingsOut(**run_totals(days=days))


api.add_router("", router)
