"""One-time tokens: each rendering of a decision form is signed over who saw what.

A token names the person, the requests, the hash of the arguments that were shown, and whether they
were shown whole. Nothing is stored, and yet each works once: a vote ends the request, edits the
arguments or is the person's one vote on it, and ``services.approvals`` refuses every later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Any

from django.contrib.auth.models import User
from django.core import signing

from mcpregistry.domain.errors import Conflict

_SALT = "mcpregistry.web.approvals.form_tokens"
_LIFE = 12 * 60 * 60  # seconds


@dataclass(frozen=True, slots=True)
class FormRendering:
    """What was shown: request ids with the hash of their arguments each, and whether nothing was
    folded."""

    seen: dict[str, str]
    whole: bool = True


def sign(rendering: FormRendering, user: User) -> str:
    """The token for a form that shows this to this person."""
    facts = {"u": user.pk, "s": rendering.seen, "w": rendering.whole, "n": token_urlsafe(9)}
    return signing.dumps(facts, salt=_SALT, compress=True)


def read(token: str, user: User) -> FormRendering:
    """What was shown with the token. Raises ``Conflict`` if it is not ours, not this person's, or
    over 12 hours old."""
    try:
        facts: dict[str, Any] = signing.loads(token, salt=_SALT, max_age=_LIFE)
    except signing.BadSignature as error:
        raise _stale() from error
    if facts["u"] != user.pk:
        raise _stale()
    return FormRendering(facts["s"], facts["w"])


def _stale() -> Conflict:
    return Conflict(
        "This form is out of date.",
        remedy="Reload the page, and read the call again before you decide.",
    )
