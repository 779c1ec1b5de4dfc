"""Public registries: which are read, have one read, and search in what they list."""

from __future__ import annotations

from typing import Annotated, cast

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
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
from mcpregistry.services.registry import add_entries, images, sources

router = PermissionRouter(tags=["registries"])

_ENTRIES = RegistryEntry.objects.select_related("source")


@router.get("/registries", response=Page[RegistryOut])
def list_registries(
    request: HttpRequest, *, limit: Limit = 50, cursor: Cursor = None
) -> Page[RegistryOut]:
    """Registries by slug."""
    return read_page(
        RegistrySource.objects.all(), order=("slug",), limit=limit, cursor=cursor, show=registry_out
    )


@router.post("/registries", response={201: RegistryOut})
@once()
def create_registry(request: HttpRequest, payload: RegistryNew) -> Status[RegistryOut]:
    """Add a registry. It is read when you sync it, or regularly if `by_clock` is set."""
    given = payload.get_sent_values()
    token = given.pop("token", None)
    source = sources.save_source(source=RegistrySource(**given), actor=actor(request), token=token)
    return Status(201, registry_out(source))


@router.get("/registries/{slug}", response=RegistryOut)
def get_registry(request: HttpRequest, slug: Slug) -> RegistryOut:
    """One registry with the state of its synchronization."""
    return registry_out(_find_source(slug))


@router.patch("/registries/{slug}", response=RegistryOut)
def change_registry(request: HttpRequest, slug: Slug, payload: RegistryChange) -> RegistryOut:
    """Change the fields that are sent. The others stay as they are."""
    given = payload.get_sent_values()
    token = given.pop("token", None)
    row = _find_source(slug).change(**given)
    return registry_out(sources.save_source(source=row, actor=actor(request), token=token))


@router.delete("/registries/{slug}", response={204: None})
def delete_registry(request: HttpRequest, slug: Slug) -> Status[None]:
    """Delete a registry with the copy of its list. Servers that were added from it stay."""
    sources.delete_source(source=_find_source(slug), actor=actor(request))
    return Status(204, None)


@router.post("/registries/{slug}/sync", response={202: RegistryOut})
def sync_registry(request: HttpRequest, slug: Slug) -> Status[RegistryOut]:
    """Let a worker read the registry now. Poll until it is no longer `reading`. Repeated requests
    start only one read."""
    return Status(
        202, registry_out(sources.request_reading(source=_find_source(slug), actor=actor(request)))
    )


@router.get("/registry-entries", response=Page[RegistryEntryOut])
def list_registry_entries(
    request: HttpRequest,
    *,
    search: Annotated[
        Text | None,
        Query(max_length=200, description="Words that the name, title or description contains."),
    ] = None,
    registry: Slug | None = None,
    every_version: Annotated[
        bool, Query(description="Include older and deleted versions.")
    ] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RegistryEntryOut]:
    """Entries of all registries, by name."""
    rows = _ENTRIES.matching(search or "")
    if registry:
        rows = rows.filter(source__slug=registry)
    if not every_version:
        rows = rows.filter_offered()
    return read_page(
        rows.defer("document"), order=("name", "id"), limit=limit, cursor=cursor, show=entry_out
    )


@router.get("/registry-entries/{entry_id}", response=EntryWhole)
def get_registry_entry(request: HttpRequest, entry_id: lookup.Id) -> EntryWhole:
    """One registry entry with its install options and the values that they require."""
    return entry_whole(lookup.one(_ENTRIES.all(), "entry", pk=entry_id))


@router.get(
    "/registry-entries/{entry_id}/digest", response={200: EntryDigest, 404: Problem, 502: Problem}
)
def get_image_digest(
    request: HttpRequest,
    entry_id: lookup.Id,
    way: Annotated[int, Query(ge=0, le=1_000, description="Index of the image in `ways`.")] = 0,
) -> EntryDigest:
    """The current digest of the entry's image tag, from its container registry. Compare it with the
    publisher's, and use it when you add the entry.

    It is empty if the entry names a digest itself, or has no image.
    """
    entry = lookup.one(_ENTRIES.all(), "entry", pk=entry_id)
    found = add_entries.get_install_option(entry, way)
    return EntryDigest(image=found.identifier, digest=images.fetch_current_digest(entry, found))


@router.post(
    "/registry-entries/{entry_id}/add", response={201: EntryAdded, 404: Problem, 409: Problem}
)
@once()
def add_registry_entry(
    request: HttpRequest, entry_id: lookup.Id, payload: EntryAdd
) -> Status[EntryAdded]:
    """Add a server from the entry. An address becomes a draft; a package becomes an install whose
    lock waits for approval."""
    entry = lookup.one(_ENTRIES.all(), "entry", pk=entry_id)
    user = cast(User, person(request))
    return Status(
        201,
        entry_added(
            add_entries.add_from_entry(
                entry=entry, wish=payload.wish(), user=user, actor=actor(request)
            )
        ),
    )


def _find_source(slug: str) -> RegistrySource:
    return lookup.one(RegistrySource.objects.all(), "registry", slug=slug)
