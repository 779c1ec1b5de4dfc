"""Budgets of agents and endpoints, and their books. An agent sees its own, and what was spent of
them."""

from __future__ import annotations

from typing import Annotated

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, principal
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Problem, Slug
from mcpregistry.api.schemas.budgets import (
    BudgetChange,
    BudgetNew,
    BudgetOut,
    SpentOut,
    budget_out,
    build_spent_out,
)
from mcpregistry.domain.budgets import Unit
from mcpregistry.models import Agent, Budget, BudgetEntry, Endpoint
from mcpregistry.services.budgets import books

router = PermissionRouter(tags=["budgets"])


@router.get("/budgets", response=Page[BudgetOut])
def list_budgets(
    request: HttpRequest,
    *,
    agent: Annotated[Slug | None, Query(description="Only budgets of this agent.")] = None,
    endpoint: Annotated[Slug | None, Query(description="Only budgets of this endpoint.")] = None,
    unit: Unit | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[BudgetOut]:
    """Budgets by name, with their current balance."""
    rows = _query_visible(request)
    if agent is not None:
        rows = rows.filter(agent__slug=agent)
    if endpoint is not None:
        rows = rows.filter(endpoint__slug=endpoint)
    if unit is not None:
        rows = rows.filter(unit=unit)
    found = read_page(rows, order=("slug",), limit=limit, cursor=cursor, show=lambda row: row)
    stand = books.load_standings(found.items)
    return Page[BudgetOut](
        items=[budget_out(row, stand[row.pk]) for row in found.items], next=found.next
    )


@router.post("/budgets", response={201: BudgetOut, 404: Problem})
@once()
def create_budget(request: HttpRequest, payload: BudgetNew) -> Status[BudgetOut]:
    """Add a budget. It counts from now on."""
    given = payload.columns()
    for name, model in (("agent", Agent), ("endpoint", Endpoint)):
        if (slug := given.get(name)) is not None:
            given[name] = lookup.one(model._default_manager.all(), name, slug=slug)
    made = books.save_budget(budget=Budget(**given), actor=actor(request))
    return Status(201, _out(made))


@router.get("/budgets/{slug}", response=BudgetOut)
def get_budget(request: HttpRequest, slug: Slug) -> BudgetOut:
    """One budget with its current balance."""
    return _out(_one(request, slug))


@router.patch("/budgets/{slug}", response=BudgetOut)
def change_budget(request: HttpRequest, slug: Slug, payload: BudgetChange) -> BudgetOut:
    """Change the fields that are sent. The others and the used amount stay as they are."""
    row = _one(request, slug).change(**payload.columns())
    books.save_budget(budget=row, actor=actor(request))
    return _out(_one(request, row.slug))


@router.delete("/budgets/{slug}", response={204: None})
def delete_budget(request: HttpRequest, slug: Slug) -> Status[None]:
    """Delete a budget with its entries."""
    books.delete_budget(budget=_one(request, slug), actor=actor(request))
    return Status(204, None)


@router.get("/budgets/{slug}/entries", response=Page[SpentOut])
def list_budget_entries(
    request: HttpRequest,
    slug: Slug,
    *,
    since: Annotated[
        int | None, Query(ge=0, lt=2**63, description="Only entries with a higher id.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[SpentOut]:
    """Budget entries, newest first."""
    rows = BudgetEntry.objects.filter(budget=_one(request, slug)).select_related("budget")
    if since is not None:
        rows = rows.filter(pk__gt=since)
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=build_spent_out)


def _query_visible(request: HttpRequest) -> QuerySet[Budget]:
    return Budget.objects.visible_to(principal(request).who).select_related("agent", "endpoint")


def _one(request: HttpRequest, slug: str) -> Budget:
    return lookup.one(_query_visible(request), "budget", slug=slug)


def _out(row: Budget) -> BudgetOut:
    return budget_out(row, books.load_standings([row])[row.pk])
