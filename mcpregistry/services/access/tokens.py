"""Bearer tokens of agents and people. A token is shown once; the database keeps only its hash."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.models import Agent, AuditEntry, Token
from mcpregistry.services.configuration.saving import save_checked
from mcpregistry.services.records import audit

PREFIX = "slp_"
DEFAULT_LIFE = timedelta(days=90)
_AT_ONCE = 500  # tokens in one statement


def hash_token(raw: str) -> str:
    """SHA-256 of a token's text, in hex; only this is stored."""
    return hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()


@transaction.atomic
def issue_token(
    *,
    name: str,
    actor: str,
    agent: Agent | None = None,
    user: User | None = None,
    expires_at: datetime | None = None,
) -> tuple[Token, str]:
    """A new token and its text, which is never seen again. Lives 90 days unless told otherwise."""
    raw = PREFIX + secrets.token_urlsafe(32)
    expires_at = expires_at or timezone.now() + DEFAULT_LIFE
    if expires_at <= timezone.now():
        raise ConfigInvalid(
            "The expiry of the token is in the past.", remedy="Choose a later time."
        )
    token = Token(
        agent=agent,
        user=user,
        name=name,
        prefix=raw[:12],
        hash=hash_token(raw),
        expires_at=expires_at,
    )
    save_checked(token)
    audit.record_entry(
        kind="token.issued",
        actor=actor,
        subject=_describe_holder(token),
        prefix=token.prefix,
        expires=expires_at.isoformat(),
    )
    return token, raw


@transaction.atomic
def revoke_token(*, token: Token, actor: str) -> None:
    """Revoke a token; it stops working in every process within a second. One that is revoked stays
    as it is."""
    if Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now()):
        audit.record_entry(
            kind="token.revoked", actor=actor, subject=_describe_holder(token), prefix=token.prefix
        )


def revoke_tokens_of(*, user: User, actor: str) -> None:
    """Revoke every token with which programs act as this person."""
    for token in Token.objects.filter(user=user, revoked_at__isnull=True).order_by("pk"):
        revoke_token(token=token, actor=actor)


def find_token(raw: str) -> Token | None:
    """The live token with this text, from the database (REST). MCP looks it up in the snapshot."""
    live = Token.objects.filter(hash=hash_token(raw), revoked_at__isnull=True)
    live = live.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now()))
    token = live.select_related("agent", "user").first()
    owner_active = token and (
        token.agent.enabled if token.agent else token.user and token.user.is_active
    )
    return token if owner_active else None


def note_uses(hashes: Collection[str]) -> None:
    """These tokens, by their hashes, have just been used."""
    waiting = sorted(hashes)
    now = timezone.now()
    for start in range(0, len(waiting), _AT_ONCE):
        Token.objects.filter(hash__in=waiting[start : start + _AT_ONCE]).update(last_used_at=now)


@transaction.atomic
def rotate_token(
    *, token: Token, actor: str, overlap: timedelta = timedelta(days=1)
) -> tuple[Token, str]:
    """A new token like this one, for as long as it was made for; this one works until the overlap
    is over, and has no second successor. See ``issue_token``.
    """
    now = timezone.now()
    locked = Token.objects.select_for_update().get(pk=token.pk)
    if locked.revoked_at or (locked.expires_at and locked.expires_at <= now):
        raise ConfigInvalid("This token has expired or was revoked.", remedy="Issue another token.")
    if _has_successor(locked):
        raise ConfigInvalid(
            "This token was already rotated.", remedy="Rotate the token that replaced it."
        )
    life = (locked.expires_at - locked.created_at) if locked.expires_at else DEFAULT_LIFE
    new, raw = issue_token(
        name=locked.name,
        actor=actor,
        agent=locked.agent,
        user=locked.user,
        expires_at=now + max(life, timedelta(days=1)),
    )
    ends = min(locked.expires_at or now + overlap, now + overlap)
    Token.objects.filter(pk=locked.pk).update(expires_at=ends)
    audit.record_entry(
        kind="token.rotated",
        actor=actor,
        subject=_describe_holder(locked),
        prefix=locked.prefix,
        by=new.prefix,
        ends=ends.isoformat(),
    )
    return new, raw


def _has_successor(token: Token) -> bool:
    """Whether it was rotated, as the audit log says: its end is then that of the overlap, not of
    its life."""
    said = AuditEntry.objects.filter(
        kind="token.rotated", subject=clean_text(_describe_holder(token), 200)
    )
    return said.filter(body__contains=f'"prefix":"{token.prefix}"').exists()


def _describe_holder(token: Token) -> str:
    return f"agent:{token.agent}" if token.agent else f"user:{token.user}"
