"""Configure headends, and what running processes know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction
from django.urls import Resolver404, resolve

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.services.configuration.saving import save_checked
from mcpregistry.services.records import audit
from subagents.models import Headend, HeadendKind

SECTION = "headends"  # of the snapshot
_OF_THE_SITE = frozenset({"mcp", "healthz", "readyz", "livez", "static"})  # first parts that never reach Django


@dataclass(frozen=True, slots=True)
class HeadendSpec:
    """One headend that is switched on. ``path`` has no slash at its ends; ``endpoint`` is a slug; times are in seconds."""

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


def offered() -> tuple[HeadendSpec, ...]:
    """Every headend that is switched on, in one query; a section of the snapshot."""
    rows = Headend.objects.filter(enabled=True, endpoint__enabled=True).select_related("endpoint")
    return tuple(spec_of(row) for row in rows)


def spec_of(row: Headend) -> HeadendSpec:
    """What running processes know of the row."""
    return HeadendSpec(
        id=row.pk, slug=row.slug, kind=row.kind, path=row.path, endpoint=row.endpoint.slug, concurrency=row.concurrency,
        longest_queue=row.longest_queue, patience=float(row.patience_seconds), aliases=dict(row.aliases),
        background_prompts=row.background_prompts,
    )  # fmt: skip


def mcp_headend(snapshot: Snapshot, endpoint: str) -> HeadendSpec | None:
    """The MCP headend of this endpoint, if it has one: calls of expert tools there say in which format they want the answer."""
    known = snapshot.sections.get(SECTION, ())
    return next((each for each in known if each.kind == HeadendKind.MCP and each.endpoint == endpoint), None)


@transaction.atomic
def save_headend(*, row: Headend, actor: str) -> Headend:
    """Create or change one. Raises ConfigInvalid, also for a path that is the site's own."""
    kind = "headend.created" if row._state.adding else "headend.changed"
    row.clean()
    if row.kind != HeadendKind.MCP:
        _check_free(row.path)
    save_checked(row)
    audit.record(
        kind=kind, actor=actor, subject=f"headend:{row.slug}", interface=row.kind, path=row.path,
        endpoint=row.endpoint.slug, enabled=row.enabled,
    )  # fmt: skip
    return row


@transaction.atomic
def delete_headend(*, row: Headend, actor: str) -> None:
    """Delete one. Runs that it has started go on and stay on record."""
    audit.record(kind="headend.deleted", actor=actor, subject=f"headend:{row.slug}")
    row.delete()


def _check_free(path: str) -> None:
    """The site's own pages stay where they are: nothing below the path may be one of them."""
    taken = path.split("/", maxsplit=1)[0] in _OF_THE_SITE
    for below in ("models", "models/"):
        try:
            resolve(f"/{path}/{below}")
        except Resolver404:
            continue
        taken = True
    if taken:
        raise ConfigInvalid(
            f"The path {path} belongs to pages of this site.", remedy="Choose another, such as v1 or team-a/v1."
        )
