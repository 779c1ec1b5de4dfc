"""Public registries: which are read, have one read, and search in what they list."""

from __future__ import annotations

from typing import Annotated, cast

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person
from mcpregistry.api.once import once
from mcpregistry.api.paging import Cursor, Limit, page
from mcpregistry.api.routes import Routes
from mcpregistry.api.schemas.basics import Page, Problem, Slug, Text
from mcpregistry.api.schemas.registry import (
    EntryAdd,
    EntryAdded,
    EntryDigest,
    EntryWhole,
    RegistryChange,
    RegistryEntryOut,
    RegistryNew,
    RegistryOut,
    entry_added,
    entry_out,
    entry_whole,
    registry_out,
)
from mcpregistry.models import RegistryEntry, RegistrySource
from mcpregistry.services.registry import adding, images, sources

router = Routes(tags=["registries"])

_ENTRIES = RegistryEntry.objects.select_related("source")


@router.get("/registries", response=Page[RegistryOut])
def list_registries(request: HttpRequest, *, limit: Limit = 50, cursor: Cursor = None) -> Page[RegistryOut]:
    """Registries by slug."""
    return page(RegistrySource.objects.all(), order=("slug",), limit=limit, cursor=cursor, show=registry_out)


@router.post("/registries", response={201: RegistryOut})
@once()
def create_registry(request: HttpRequest, payload: RegistryNew) -> Status[RegistryOut]:
    """Name a registry. Nothing of it is read before somebody has it synced, or `by_clock` is set."""
    given = payload.given()
    token = given.pop("token", None)
    source = sources.save_source(source=RegistrySource(**given), actor=actor(request), token=token)
    return Status(201, registry_out(source))


@router.get("/registries/{slug}", response=RegistryOut)
def get_registry(request: HttpRequest, slug: Slug) -> RegistryOut:
    """One registry, and how its reading stands."""
    return registry_out(_one(slug))


@router.patch("/registries/{slug}", response=RegistryOut)
def change_registry(request: HttpRequest, slug: Slug, payload: RegistryChange) -> RegistryOut:
    """Change the keys that are sent; the others stay."""
    given = payload.given()
    token = given.pop("token", None)
    row = _one(slug).change(**given)
    return registry_out(sources.save_source(source=row, actor=actor(request), token=token))


@router.delete("/registries/{slug}", response={204: None})
def delete_registry(request: HttpRequest, slug: Slug) -> Status[None]:
    """Forget it with the copy of its list. Servers that were added from it stay."""
    sources.delete_source(source=_one(slug), actor=actor(request))
    return Status(204, None)


@router.post("/registries/{slug}/sync", response={202: RegistryOut})
def sync_registry(request: HttpRequest, slug: Slug) -> Status[RegistryOut]:
    """Have a worker read it now; poll until it is no longer `reading`. Asking twice is asking once."""
    return Status(202, registry_out(sources.ask(source=_one(slug), actor=actor(request))))


@router.get("/registry-entries", response=Page[RegistryEntryOut])
def list_registry_entries(
    request: HttpRequest,
    *,
    search: Annotated[Text | None, Query(max_length=200, description="Words of name, title or description.")] = None,
    registry: Slug | None = None,
    every_version: Annotated[bool, Query(description="Also older versions, and what was taken back.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RegistryEntryOut]:
    """Servers that registries list, by name."""
    rows = _ENTRIES.matching(search or "")
    if registry:
        rows = rows.filter(source__slug=registry)
    if not every_version:
        rows = rows.offered()
    return page(rows.defer("document"), order=("name", "id"), limit=limit, cursor=cursor, show=entry_out)


@router.get("/registry-entries/{entry_id}", response=EntryWhole)
def get_registry_entry(request: HttpRequest, entry_id: lookup.Id) -> EntryWhole:
    """One entry, with what it offers and asks for."""
    return entry_whole(lookup.one(_ENTRIES.all(), "entry", pk=entry_id))


@router.get("/registry-entries/{entry_id}/digest", response={200: EntryDigest, 404: Problem, 502: Problem})
def get_image_digest(
    request: HttpRequest,
    entry_id: lookup.Id,
    way: Annotated[int, Query(ge=0, le=1_000, description="The number of the image in `ways`.")] = 0,
) -> EntryDigest:
    """What the tag of an entry's image is now, by its registry: compare it with what its publisher says, then add it so.

    Empty where the entry names a digest itself, or no image.
    """
    entry = lookup.one(_ENTRIES.all(), "entry", pk=entry_id)
    found = adding.way_of(entry, way)
    return EntryDigest(image=found.identifier, digest=images.digest_now(entry, found))


@router.post("/registry-entries/{entry_id}/add", response={201: EntryAdded, 404: Problem, 409: Problem})
@once()
def add_registry_entry(request: HttpRequest, entry_id: lookup.Id, payload: EntryAdd) -> Status[EntryAdded]:
    """Make a server of it: of an address a draft, of a package an installation whose lock waits for its approval."""
    entry = lookup.one(_ENTRIES.all(), "entry", pk=entry_id)
    user = cast(User, person(request))
    return Status(201, entry_added(adding.add(entry=entry, wish=payload.wish(), user=user, actor=actor(request))))


def _one(slug: str) -> RegistrySource:
    return lookup.one(RegistrySource.objects.all(), "registry", slug=slug)
