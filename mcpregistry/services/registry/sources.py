"""Which registries a site reads: configured by people, read by a worker (``sync.py``) when asked or by the clock."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import F, Q

from mcpregistry.db import database_now, reckoned_now
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import check_networks, check_url
from mcpregistry.models import RegistrySource
from mcpregistry.models.registry import READ
from mcpregistry.services.configuration.dispatch import wake
from mcpregistry.services.configuration.saving import save_checked
from mcpregistry.services.records import audit

EVERY = timedelta(hours=1)
PATIENCE = timedelta(minutes=1)  # after which a request that no worker took up is sent again


@transaction.atomic
def save_source(*, source: RegistrySource, actor: str) -> RegistrySource:
    """Create or change a registry. One with another address is read whole the next time. Raises ConfigInvalid."""
    source.base_url = source.base_url.strip().rstrip("/").removesuffix("/v0.1")
    _check_address(source.base_url)
    before = RegistrySource.objects.select_for_update().filter(pk=source.pk).first() if source.pk else None
    if before:  # what a worker may have set since the row was looked at
        unread = RegistrySource() if before.base_url != source.base_url else before
        for name in READ:
            setattr(source, name, getattr(unread, name))
        if unread is not before:
            source.entries.all().delete()
    check_networks(source.allowed_networks)
    save_checked(source)
    audit.record(
        kind="registry.changed" if before else "registry.created", actor=actor, subject=f"registry:{source.slug}",
        base_url=source.base_url, by_clock=source.by_clock,
    )  # fmt: skip
    return source


def _check_address(url: str) -> None:
    parts = urlsplit(check_url(url, ("http", "https")))
    if parts.query or parts.fragment:
        raise ConfigInvalid(
            "The address of a registry has no query and no fragment.", remedy="Write e.g. https://registry.example."
        )


def state_of(source: RegistrySource) -> str:
    """Where its reading stands, in a word or two: for pages and programs."""
    if source.lease_until and source.lease_until > reckoned_now():
        return "reading"
    if source.asked_at:
        return "waiting"
    if source.error:
        return "failed"
    return "read" if source.synced_at else "not read yet"


@transaction.atomic
def delete_source(*, source: RegistrySource, actor: str) -> None:
    """Forget a registry with all that was read of it. Servers that were added from it stay."""
    audit.record(kind="registry.deleted", actor=actor, subject=f"registry:{source.slug}")
    source.delete()


@transaction.atomic
def ask(*, source: RegistrySource, actor: str) -> RegistrySource:
    """Have a worker read it now; asking twice is asking once."""
    RegistrySource.objects.filter(pk=source.pk).update(asked_at=database_now())
    audit.record(kind="registry.sync_asked", actor=actor, subject=f"registry:{source.slug}")
    transaction.on_commit(lambda: wake("sync_registry", source.pk))
    source.refresh_from_db(fields=READ)
    return source


def due() -> list[int]:
    """Ids of those that nobody reads now although somebody asked, or whose hour has come."""
    now = database_now()
    asked = Q(asked_at__lt=now - PATIENCE) & (Q(tried_at=None) | Q(tried_at__lt=F("asked_at")))
    by_clock = Q(by_clock=True) & (Q(tried_at=None) | Q(tried_at__lt=now - EVERY))
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    return list(RegistrySource.objects.filter(free & (asked | by_clock)).values_list("pk", flat=True))
