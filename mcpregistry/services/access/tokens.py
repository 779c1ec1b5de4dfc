"""Bearer tokens of agents and people. A token is shown once; the database keeps only its hash."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Agent, Token
from mcpregistry.services.configuration.saving import save_checked
from mcpregistry.services.records import audit

PREFIX = "slp_"
DEFAULT_LIFE = timedelta(days=90)


def token_hash(raw: str) -> str:
    """SHA-256 of a token's text, in hex; only this is stored."""
    return hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()


@transaction.atomic
def issue_token(
    *, name: str, actor: str, agent: Agent | None = None, user: User | None = None, expires_at: datetime | None = None
) -> tuple[Token, str]:
    """A new token and its text, which is never seen again. Lives 90 days unless told otherwise."""
    raw = PREFIX + secrets.token_urlsafe(32)
    expires_at = expires_at or timezone.now() + DEFAULT_LIFE
    if expires_at <= timezone.now():
        raise ConfigInvalid("The token would have expired already.", remedy="Choose a later time.")
    token = Token(agent=agent, user=user, name=name, prefix=raw[:12], hash=token_hash(raw), expires_at=expires_at)
    save_checked(token)
    subject = f"agent:{agent}" if agent else f"user:{user}"
    audit.record(kind="token.issued", actor=actor, subject=subject, prefix=token.prefix, expires=expires_at.isoformat())
    return token, raw


@transaction.atomic
def revoke_token(*, token: Token, actor: str) -> None:
    """Revoke a token; it stops working in every process within a second."""
    Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())
    audit.record(kind="token.revoked", actor=actor, subject=f"agent:{token.agent}", prefix=token.prefix)


def find_token(raw: str) -> Token | None:
    """The live token with this text, from the database (REST). MCP looks it up in the snapshot."""
    live = Token.objects.filter(hash=token_hash(raw), revoked_at__isnull=True)
    live = live.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now()))
    token = live.select_related("agent", "user").first()
    owner_active = token and (token.agent.enabled if token.agent else token.user and token.user.is_active)
    return token if owner_active else None
