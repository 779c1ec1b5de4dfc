"""Which registries a site reads: configured by people, read by a worker (``sync.py``) when asked or
by the clock.

Invariant: a registry's token goes to the address for which it was entered. Whoever changes that, or
lets it lie in more networks, enters the token again: who may say where a secret goes could else
have it sent to themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import F, Q

from mcpregistry.db import estimate_database_now, read_database_now
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import check_networks, check_url
from mcpregistry.models import RegistrySource
from mcpregistry.models.registry import READ
from mcpregistry.services.configuration.dispatch import wake_worker
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit

EVERY = timedelta(hours=1)
MOST_TOKEN = 8_000  # signs


@transaction.atomic
def save_source(*, source: RegistrySource, actor: str, token: str | None = None) -> RegistrySource:
    """Create or change a registry. One with another address is read whole the next time.

    ``token``: what was entered, empty to remove it, None to keep what is stored. Raises
    ConfigInvalid.
    """
    before = take_current(source, own=READ)
    source.base_url = source.base_url.strip().rstrip("/").removesuffix("/v0.1")
    _check_address(source.base_url)
    if before and before.base_url != source.base_url:
        for name in READ:
            setattr(source, name, getattr(RegistrySource(), name))
        source.entries.all().delete()
    check_networks(source.allowed_networks)
    _set_token(source, before, token)
    save_checked(source)
    audit.record_entry(
        kind="registry.changed" if before else "registry.created",
        actor=actor,
        subject=f"registry:{source.slug}",
        base_url=source.base_url,
        by_clock=source.by_clock,
        networks=source.allowed_networks,
        new_token=token is not None,
        has_token=bool(source.sealed_token),
    )
    return source


def _set_token(source: RegistrySource, before: RegistrySource | None, token: str | None) -> None:
    if token is None:
        source.sealed_token = before.sealed_token if before else source.sealed_token
        if before and before.sealed_token and _has_other_address(source, before):
            raise ConfigInvalid(
                "You have changed the address or the allowed networks, so you cannot keep the stored token.",
                remedy="Make the change again, and enter the token again or remove the token.",
            )
    else:
        source.token = _check_token(token)
    if (
        source.sealed_token
        and source.base_url.startswith("http://")
        and not source.allowed_networks
    ):
        raise ConfigInvalid(
            "The token would be sent unencrypted over http.",
            remedy="Use an https:// address. If the registry is in a private network, add this network to the allowed networks of the registry.",
        )


def _has_other_address(source: RegistrySource, before: RegistrySource) -> bool:
    return before.base_url != source.base_url or not _within(
        source.allowed_networks, before.allowed_networks
    )


def _within(networks: Collection[str], before: Collection[str]) -> bool:
    return {*networks} <= {*before}


def _check_token(token: str) -> str:
    token = token.strip()
    if (
        len(token) > MOST_TOKEN
        or not token.isascii()
        or any(sign.isspace() or not sign.isprintable() for sign in token)
    ):
        raise ConfigInvalid(
            "The token is not valid: it contains a space, a line break or another character that a header cannot contain.",
            remedy='Enter only the token, without "Bearer".',
        )
    if "${" in token:
        raise ConfigInvalid(
            "The token of a registry cannot be a reference such as ${NAME}.",
            remedy="Enter the token instead of the reference.",
        )
    return token


def _check_address(url: str) -> None:
    parts = urlsplit(check_url(url, ("http", "https")))
    if parts.query or parts.fragment:
        raise ConfigInvalid(
            "The address of a registry must not contain a query (from ?) or a fragment (from #).",
            remedy=error_texts.advise_form("the plain address", "https://registry.example"),
        )


def describe_state(source: RegistrySource) -> str:
    """Where its reading stands, in a word or two: for pages and programs."""
    if source.lease_until and source.lease_until > estimate_database_now():
        return "reading"
    if source.asked_at:
        return "waiting"
    if source.error:
        return "failed"
    return "read" if source.synced_at else "not read yet"


@transaction.atomic
def delete_source(*, source: RegistrySource, actor: str) -> None:
    """Forget a registry with all that was read of it. Servers that were added from it stay."""
    audit.record_entry(kind="registry.deleted", actor=actor, subject=f"registry:{source.slug}")
    source.delete()


@transaction.atomic
def request_reading(*, source: RegistrySource, actor: str) -> RegistrySource:
    """Have a worker read it now; asking twice is asking once."""
    RegistrySource.objects.filter(pk=source.pk).update(asked_at=read_database_now())
    audit.record_entry(kind="registry.sync_asked", actor=actor, subject=f"registry:{source.slug}")
    transaction.on_commit(lambda: wake_worker("sync_registry", source.pk))
    source.refresh_from_db(fields=READ)
    return source


def list_due_sources(limit: int) -> list[int]:
    """Return the ids of the registries to read: those that somebody asked for first, then those
    whose hour has come."""
    now = read_database_now()
    asked = Q(asked_at__isnull=False) & (Q(tried_at=None) | Q(tried_at__lt=F("asked_at")))
    by_clock = Q(by_clock=True) & (Q(tried_at=None) | Q(tried_at__lt=now - EVERY))
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    rows = RegistrySource.objects.filter(free & (asked | by_clock))
    return list(
        rows.order_by(F("asked_at").asc(nulls_last=True), "pk").values_list("pk", flat=True)[:limit]
    )
