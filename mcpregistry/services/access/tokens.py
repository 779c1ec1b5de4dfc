"""Agents, tokens and grants. A token is shown once; the database keeps only its hash."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Agent, Endpoint, Grant, Server, Token, Tool
from mcpregistry.services import audit
from mcpregistry.services.records import save_checked

PREFIX = "slp_"
DEFAULT_LIFE = timedelta(days=90)


def token_hash(raw: str) -> str:
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
    """It stops working in every process within a second."""
    Token.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())
    audit.record(kind="token.revoked", actor=actor, subject=f"agent:{token.agent}", prefix=token.prefix)


def find_token(raw: str) -> Token | None:
    """The live token with this text, from the database (REST). MCP looks it up in the snapshot."""
    live = Token.objects.filter(hash=token_hash(raw), revoked_at__isnull=True)
    live = live.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now()))
    token = live.select_related("agent", "user").first()
    owner_active = token and (token.agent.enabled if token.agent else token.user and token.user.is_active)
    return token if owner_active else None


@transaction.atomic
def save_agent(*, agent: Agent, actor: str) -> Agent:
    if not isinstance(agent.capabilities, list) or not all(isinstance(c, str) for c in agent.capabilities):
        raise ConfigInvalid("Capabilities must be a list of names.", remedy='Write e.g. ["mcp_integration"].')
    kind = "agent.changed" if agent.pk else "agent.created"
    save_checked(agent)
    audit.record(kind=kind, actor=actor, subject=f"agent:{agent.slug}", capabilities=agent.capabilities)
    return agent


@transaction.atomic
def save_endpoint(*, endpoint: Endpoint, actor: str) -> Endpoint:
    kind = "endpoint.changed" if endpoint.pk else "endpoint.created"
    save_checked(endpoint)
    audit.record(kind=kind, actor=actor, subject=f"endpoint:{endpoint.slug}", naming=endpoint.naming_style)
    return endpoint


@transaction.atomic
def save_grant(*, grant: Grant, actor: str, user: User | None = None) -> Grant:
    """Create or change a grant. Raises ConfigInvalid unless it has one holder and one object."""
    kind = "grant.changed" if grant.pk else "grant.created"
    grant.created_by = grant.created_by or user
    save_checked(grant)
    audit.record(kind=kind, actor=actor, subject=f"grant:{grant}", **_grant_facts(grant))
    return grant


@transaction.atomic
def withdraw_grant(*, grant: Grant, actor: str) -> None:
    audit.record(kind="grant.withdrawn", actor=actor, subject=f"grant:{grant}", **_grant_facts(grant))
    grant.delete()


def grant(*, agent: Agent, actor: str, server: Server | None = None, tool: Tool | None = None) -> Grant:
    """Let an agent use a server or one tool; the same grant is not made twice."""
    existing = Grant.objects.filter(agent=agent, server=server, tool=tool, argument_pins={}, expires_at=None).first()
    return existing or save_grant(grant=Grant(agent=agent, server=server, tool=tool), actor=actor)


def _grant_facts(grant: Grant) -> dict[str, Any]:
    until = grant.expires_at.isoformat() if grant.expires_at else None
    return {"pins": grant.argument_pins, "until": until}
