"""Inviting people: a link that works once, for a time, and gives one role. Only its hash is
kept."""

from __future__ import annotations

import secrets
from datetime import timedelta

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid, Denied, NotFound
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Invitation
from mcpregistry.services.access import roles
from mcpregistry.services.access.tokens import hash_token
from mcpregistry.services.configuration.saving import save_checked
from mcpregistry.services.records import audit

PREFIX = "sli_"
DEFAULT_LIFE = timedelta(days=7)
# a link gives a role, so it needs what giving one needs
MAY_INVITE = ("auth.add_user", "auth.change_user")
_GONE = NotFound(
    "This invitation does not work: it was used or revoked, or it has expired.",
    remedy="Ask the user who invited you for another link.",
)


@transaction.atomic
def invite(
    *, name: str, role: str, by: User, life: timedelta = DEFAULT_LIFE
) -> tuple[Invitation, str]:
    """A new invitation and its text, which is never seen again."""
    raw = PREFIX + secrets.token_urlsafe(32)
    ends = timezone.now() + life
    invitation = Invitation(
        name=name, role=role, hash=hash_token(raw), created_by=by, expires_at=ends
    )
    save_checked(invitation)
    actor = f"user:{by.get_username()}"
    audit.record_entry(
        kind="invitation.made",
        actor=actor,
        subject=_make_subject(invitation),
        role=role,
        ends=ends.isoformat(),
    )
    return invitation, raw


def find_invitation(raw: str) -> Invitation | None:
    """The invitation with this text, as long as it works."""
    invitation = _find_open(raw)
    return (
        invitation if invitation is not None and _may_still_invite(invitation.created_by) else None
    )


def _find_open(raw: str) -> Invitation | None:
    rows = Invitation.objects.filter(hash=hash_token(raw), used_at=None, revoked_at=None)
    return rows.filter(expires_at__gt=timezone.now()).select_related("created_by").first()


def _may_still_invite(inviter: User | None) -> bool:
    """Whether the person who made the link could still give the role that it gives."""
    return inviter is not None and inviter.is_active and inviter.has_perms(MAY_INVITE)


@transaction.atomic
def accept(*, raw: str, username: str, password: str) -> User:
    """Make the account. Of two who use a link at once, one gets in; what is wrong with a name or
    password leaves it whole."""
    invitation = _find_open(raw)
    if invitation is None:
        raise _GONE
    if not _may_still_invite(invitation.created_by):
        raise Denied(
            "This invitation does not work: the user who created it no longer has permission to invite users.",
            remedy="Ask an administrator for another link.",
        )
    user = _create_account(username, password)
    now = timezone.now()
    won = Invitation.objects.filter(
        pk=invitation.pk, used_at=None, revoked_at=None, expires_at__gt=now
    )
    if not won.update(used_at=now):
        raise _GONE
    save_checked(user)
    roles.assign_role(user=user, role=invitation.role)
    Invitation.objects.filter(pk=invitation.pk).update(used_by=user)
    actor = f"user:{user.get_username()}"
    audit.record_entry(
        kind="invitation.used", actor=actor, subject=_make_subject(invitation), role=invitation.role
    )
    return user


def _create_account(username: str, password: str) -> User:
    user = User(username=username, is_staff=True)
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise ConfigInvalid(" ".join(error.messages), remedy="Choose another password.") from None
    user.set_password(password)
    return user


@transaction.atomic
def revoke(*, invitation: Invitation, actor: str) -> None:
    """The link works no longer; one that was used stays as it is."""
    open_still = Invitation.objects.filter(pk=invitation.pk, used_at=None, revoked_at=None)
    if open_still.update(revoked_at=timezone.now()):
        audit.record_entry(
            kind="invitation.withdrawn", actor=actor, subject=_make_subject(invitation)
        )


def _make_subject(invitation: Invitation) -> str:
    return f"invitation:{invitation.pk}:{show_invisible_characters(invitation.name, 100)}"
