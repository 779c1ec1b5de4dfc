"""Energy pools and their books. An agent sees the pool that it draws on, and its own entries."""

from __future__ import annotations

from functools import partial
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
from mcpregistry.api.schemas.energy import (
    EnergyEntryOut,
    GrantEnergy,
    PoolChange,
    PoolNew,
    PoolOut,
    entry_out,
    pool_out,
)
from mcpregistry.models import EnergyEntry, EnergyPool
from mcpregistry.services.energy import pools

router = PermissionRouter(tags=["energy"])


@router.get("/energy", response=Page[PoolOut])
def list_pools(request: HttpRequest, *, limit: Limit = 50, cursor: Cursor = None) -> Page[PoolOut]:
    """Energy pools by slug, with their current level."""
    return read_page(
        _query_visible(request),
        order=("slug",),
        limit=limit,
        cursor=cursor,
        show=partial(pool_out, to=_agent(request)),
    )


@router.post("/energy", response={201: PoolOut})
@once()
def create_pool(request: HttpRequest, payload: PoolNew) -> Status[PoolOut]:
    """Add an energy pool. To use it, set it as the `energy_pool` of an agent."""
    made = pools.save_pool(pool=EnergyPool(**payload.get_sent_values()), actor=actor(request))
    return Status(201, pool_out(_one(request, made.slug)))


@router.get("/energy/{slug}", response=PoolOut)
def get_pool(request: HttpRequest, slug: Slug) -> PoolOut:
    """One energy pool with its current level."""
    return pool_out(_one(request, slug), to=_agent(request))


@router.patch("/energy/{slug}", response=PoolOut)
def change_pool(request: HttpRequest, slug: Slug, payload: PoolChange) -> PoolOut:
    """Change the fields that are sent. The others and the level stay as they are."""
    row = _one(request, slug).change(**payload.get_sent_values())
    pools.save_pool(pool=row, actor=actor(request))
    return pool_out(_one(request, row.slug))


@router.delete("/energy/{slug}", response={204: None, 409: Problem})
def delete_pool(request: HttpRequest, slug: Slug) -> Status[None]:
    """Delete an energy pool with its entries. This is refused while agents use it."""
    pools.delete_pool(pool=_one(request, slug), actor=actor(request))
    return Status(204, None)


@router.get("/energy/{slug}/entries", response=Page[EnergyEntryOut])
def list_entries(
    request: HttpRequest,
    slug: Slug,
    *,
    since: Annotated[
        int | None, Query(ge=0, lt=2**63, description="Only entries with a higher id.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[EnergyEntryOut]:
    """Energy entries, newest first. An agent sees only its own."""
    rows = EnergyEntry.objects.filter(pool=_one(request, slug))
    if agent := _agent(request):
        rows = rows.filter(agent_slug=agent)
    if since is not None:
        rows = rows.filter(pk__gt=since)
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=entry_out)


@router.post("/energy/{slug}/grant", response={201: EnergyEntryOut})
@once()
def grant_energy(request: HttpRequest, slug: Slug, payload: GrantEnergy) -> Status[EnergyEntryOut]:
    """Add units of energy, up to the pool's capacity."""
    row = _one(request, slug)
    return Status(
        201, entry_out(pools.grant(pool_id=row.pk, amount=payload.amount, actor=actor(request)))
    )


def _agent(request: HttpRequest) -> str:
    """The slug of the agent that asks; empty for a person."""
    agent = principal(request).agent
    return agent.slug if agent else ""


def _query_visible(request: HttpRequest) -> QuerySet[EnergyPool]:
    return (
        EnergyPool.objects.visible_to(principal(request).who)
        .with_reserved()
        .prefetch_related("agents")
    )


def _one(request: HttpRequest, slug: str) -> EnergyPool:
    return lookup.one(_query_visible(request), "energy pool", slug=slug)
