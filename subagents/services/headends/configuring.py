"""Saves headends, and loads them into the snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction
from django.urls import Resolver404, resolve

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit
from subagents.models import Headend, HeadendKind

SECTION = "headends"  # of the snapshot
_OF_THE_SITE = frozenset(
    {"mcp", "healthz", "readyz", "livez", "static"}
)  # first parts of paths that do not reach Django


@dataclass(frozen=True, slots=True)
class HeadendSpec:
    """One enabled headend. ``path`` has no leading or trailing slash, ``endpoint`` is a slug,
    ``patience`` is in seconds."""

    id: int
    slug: str
    kind: str
    path: str
    endpoint: str
    concurrency: int
    longest_queue: int
    patience: float
    aliases: Mapping[str, str]
    background_prompts: bool


def load_headends() -> tuple[HeadendSpec, ...]:
    """Load all enabled headends, as a section of the snapshot."""
    rows = Headend.objects.filter(enabled=True, endpoint__enabled=True).select_related("endpoint")
    return tuple(build_spec(row) for row in rows)


def build_spec(row: Headend) -> HeadendSpec:
    """Build the immutable form of a row."""
    return HeadendSpec(
        id=row.pk,
        slug=row.slug,
        kind=row.kind,
        path=row.path,
        endpoint=row.endpoint.slug,
        concurrency=row.concurrency,
        longest_queue=row.longest_queue,
        patience=float(row.patience_seconds),
        aliases=dict(row.aliases),
        background_prompts=row.background_prompts,
    )


def find_mcp_headend(snapshot: Snapshot, endpoint: str) -> HeadendSpec | None:
    """Return the MCP headend of this endpoint, or None."""
    known = snapshot.sections.get(SECTION, ())
    return next(
        (each for each in known if each.kind == HeadendKind.MCP and each.endpoint == endpoint), None
    )


@transaction.atomic
def save_headend(*, row: Headend, actor: str) -> Headend:
    """Create or change a headend. Raises ConfigInvalid, also if the path belongs to a page of the
    site."""
    kind = "headend.created" if row._state.adding else "headend.changed"
    take_current(row)
    row.clean()
    if row.kind != HeadendKind.MCP:
        _check_path(row.path)
    save_checked(row)
    audit.record_entry(
        kind=kind,
        actor=actor,
        subject=f"headend:{row.slug}",
        interface=row.kind,
        path=row.path,
        endpoint=row.endpoint.slug,
        enabled=row.enabled,
    )
    return row


@transaction.atomic
def delete_headend(*, row: Headend, actor: str) -> None:
    """Delete a headend. Its runs continue and stay in the record."""
    audit.record_entry(kind="headend.deleted", actor=actor, subject=f"headend:{row.slug}")
    row.delete()


def _check_path(path: str) -> None:
    """Raise ConfigInvalid if a page of the site is below the path."""
    taken = path.split("/", maxsplit=1)[0] in _OF_THE_SITE
    for below in ("models", "models/"):
        try:
            resolve(f"/{path}/{below}")
        except Resolver404:
            continue
        taken = True
    if taken:
        raise ConfigInvalid(
            f'The path "{path}" belongs to pages of this site.',
            remedy="Choose another path, for example v1 or team-a/v1.",
        )
