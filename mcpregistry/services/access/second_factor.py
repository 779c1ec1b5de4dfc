"""The second factor of people: codes that change every 30 seconds (TOTP, RFC 6238), and recovery
codes.

Whoever has set one up logs in with password and code. A role can be made to need one
(``Configuration``): its people are led to the set-up page, and see nothing else until they have
done it. Tokens of the REST API are no log-ins.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, QuerySet, Subquery

from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Configuration, RecoveryCode, SecondFactor
from mcpregistry.models.sealing import one_time_codes
from mcpregistry.services.access.roles import ADMIN
from mcpregistry.services.records import audit

# seconds; steps that a clock may be off, before and after
STEP = 30
DRIFT = 1
_CODES = 10
_CODE_BYTES = 10
_SECRET_BYTES = 20
_ISSUER = "Slipsnisse"


@dataclass(frozen=True, slots=True)
class FactorStanding:
    """What a person's second factor means for their session: its ``uid`` if there is one, whether
    it is needed."""

    uid: str
    required: bool

    def is_passed_by(self, seen: object) -> bool:
        """Whether a session that has shown the factor ``seen`` is the person's: with another one it
        began elsewhere."""
        return seen == self.uid if self.uid else not self.required


def select_accounts() -> QuerySet[User]:
    """Accounts with what ``build_standing`` reads of them, so that it asks no more of a session
    that is read anyway."""
    needing = Subquery(Configuration.objects.filter(id=1).values("second_factor_roles")[:1])
    factor = {
        "factor_uid": F("second_factor__uid"),
        "factor_since": F("second_factor__confirmed_at"),
    }
    return User.objects.annotate(**factor, needing=needing)


def build_standing(person: Any) -> FactorStanding:
    """Of one of ``select_accounts``. Their roles are asked for only where some need a factor. The
    superuser counts as an admin."""
    needing = set(person.needing or ())
    mine = {ADMIN} if person.is_superuser else set()
    mine |= set(person.groups.values_list("name", flat=True)) if needing else set()
    return FactorStanding(
        str(person.factor_uid) if person.factor_since else "", bool(needing & mine)
    )


def load_factor_standing(user_id: int) -> FactorStanding:
    """Of an account now."""
    return build_standing(select_accounts().get(pk=user_id))


def begin_setup(user: User) -> SecondFactor:
    """The factor that this person sets up; the same one as before until a code has confirmed it.
    Raises Conflict."""
    factor = SecondFactor.objects.filter(user=user).first()
    if factor is not None and factor.confirmed_at:
        raise Conflict(
            "You already have a second factor.",
            remedy="First disable it on the page “Second factor”. You need a code from your authenticator app or a recovery code.",
        )
    if factor is None:
        factor = SecondFactor(user=user)
        factor.secret = base64.b32encode(secrets.token_bytes(_SECRET_BYTES)).decode()
        factor, _ = SecondFactor.objects.get_or_create(
            user=user, defaults={"uid": factor.uid, "sealed_secret": factor.sealed_secret}
        )
    return factor


def build_otpauth_url(factor: SecondFactor) -> str:
    """The ``otpauth:`` address that an authenticator reads from the QR code."""
    return one_time_codes(factor.secret).get_provisioning_uri(
        show_invisible_characters(factor.user.get_username(), 60).replace(":", "_"), _ISSUER
    )


@transaction.atomic
def confirm_factor(user: User, code: str) -> list[str] | None:
    """Switch the factor on that the person has set up, if the code is right. Returns the recovery
    codes, shown once."""
    factor = SecondFactor.objects.select_for_update().filter(user=user, confirmed_at=None).first()
    if factor is None or not _is_new_code(factor, code):
        return None
    SecondFactor.objects.filter(pk=factor.pk).update(confirmed_at=read_database_now())
    _note("enabled", user, user)
    return _make_codes(factor)


@transaction.atomic
def accept_code(user: User, code: str) -> bool:
    """Whether this code is the person's second factor now. It is used up thereby, and works in no
    other process."""
    factor = (
        SecondFactor.objects.select_for_update()
        .filter(user=user, confirmed_at__isnull=False)
        .first()
    )
    if factor is None:
        return False
    if _is_new_code(factor, code):
        return True
    used, _ = RecoveryCode.objects.filter(factor=factor, hash=_hash_code(factor, code)).delete()
    if used:
        _note("recovery_code_used", user, user, left=factor.recovery_codes.count())
    return bool(used)


@transaction.atomic
def renew_codes(user: User) -> list[str]:
    """New recovery codes; those of before are void. The caller has asked for a code."""
    factor = SecondFactor.objects.select_for_update().get(user=user, confirmed_at__isnull=False)
    factor.recovery_codes.all().delete()
    _note("codes_renewed", user, user)
    return _make_codes(factor)


@transaction.atomic
def remove_factor(user: User) -> None:
    """Switch one's own factor off. The caller has asked for a code. Raises Conflict where the
    person's role needs it."""
    if load_factor_standing(user.pk).required:
        raise Conflict(
            "You cannot disable your second factor: your role requires one.",
            remedy="To move to another device, ask an administrator to reset your second factor.",
        )
    SecondFactor.objects.filter(user=user).delete()
    _note("removed", user, user)


@transaction.atomic
def reset_factor(user: User, *, by: User | None) -> bool:
    """Take the factor from somebody who has lost it; ``by`` nobody: whoever controls the machine.
    False: there was none.

    Raises Conflict for one's own: whoever finds an open session must not get rid of it without a
    code.
    """
    if by is not None and by.pk == user.pk:
        raise Conflict(
            "You cannot reset your own second factor.",
            remedy="Disable it on the page “Second factor”. You need a code from your authenticator app or a recovery code.",
        )
    gone, _ = SecondFactor.objects.filter(user=user).delete()
    if gone:
        _note("reset", user, by)
    return bool(gone)


def _is_new_code(factor: SecondFactor, code: str) -> bool:
    """Right by the authenticator, within a step, and newer than the last one used. It is used up by
    compare-and-set."""
    step = int(read_database_now().timestamp()) // STEP
    typed = "".join(code.split()).encode()
    codes = one_time_codes(factor.secret)
    for candidate in range(step - DRIFT, step + DRIFT + 1):
        if hmac.compare_digest(codes.generate(candidate * STEP), typed):
            unused = SecondFactor.objects.filter(pk=factor.pk, last_step__lt=candidate)
            return unused.update(last_step=candidate) == 1
    return False


def _make_codes(factor: SecondFactor) -> list[str]:
    codes = [
        base64.b32encode(secrets.token_bytes(_CODE_BYTES)).decode().lower() for _ in range(_CODES)
    ]
    RecoveryCode.objects.bulk_create(
        RecoveryCode(factor=factor, hash=_hash_code(factor, code)) for code in codes
    )
    return ["-".join(code[start : start + 4] for start in range(0, len(code), 4)) for code in codes]


def _hash_code(factor: SecondFactor, code: str) -> str:
    return hash_parts(str(factor.uid), "".join(code.lower().replace("-", "").split()))


def _note(what: str, user: User, by: User | None, **facts: int) -> None:
    who = f"user:{by.get_username()}" if by else "system"
    audit.record_entry(
        kind=f"second_factor.{what}",
        actor=who,
        subject=f"user:{show_invisible_characters(user.get_username(), 150)}",
        **facts,
    )
