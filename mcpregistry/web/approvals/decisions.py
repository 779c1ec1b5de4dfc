"""What a decision form says, read strictly: nothing is guessed, and permits are made of stored
values only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.calls.arguments import parse_edited_arguments, parse_stored_arguments
from mcpregistry.domain.errors import ArgumentsInvalid, ConfigInvalid
from mcpregistry.services.policy.permits import PermitWish

# How long a permit may last, in minutes, as the form offers it.
LASTS = {"10": _("10 minutes"), "60": _("1 hour"), "480": _("8 hours"), "1440": _("24 hours")}
REASON = 2_000


@dataclass(frozen=True, slots=True)
class RequestedVote:
    """What one person wants: yes or no, why, and perhaps with other arguments or with a permit."""

    approve: bool
    reason: str
    arguments: dict[str, Any] | None = None
    permit: PermitWish | None = None


def read(form: QueryDict, stored_arguments: str, now: datetime) -> RequestedVote:
    """What the detail page's form says.

    Raises ``ConfigInvalid`` for a form that says nothing clear, ``ArgumentsInvalid`` for an edit
    that is no JSON object.
    """
    do = form.get("do")
    if do == "edit":
        return RequestedVote(True, _reason(form), read_edited_arguments(form.get("arguments", "")))
    wish = read_plain(form)
    if wish.approve and form.get("permit") == "on":
        return replace(wish, permit=_permit(form, stored_arguments, now))
    return wish


def read_plain(form: QueryDict) -> RequestedVote:
    """Yes or no with a reason, which a no needs; for the form that decides identical calls
    together.

    Raises ``ConfigInvalid``.
    """
    do = form.get("do")
    reason = _reason(form)
    if do not in ("approve", "deny"):
        raise ConfigInvalid("The form contains no decision.", remedy="Press Approve or Reject.")
    if do == "deny" and not reason:
        raise ConfigInvalid(
            "A reason is required to reject a call.",
            remedy="Enter a reason. The agent reads it and can act on it.",
        )
    return RequestedVote(do == "approve", reason)


def _reason(form: QueryDict) -> str:
    return form.get("reason", "").strip()[:REASON]


def read_edited_arguments(text: str) -> dict[str, Any]:
    """The arguments that a person typed, as an object. Raises ``ArgumentsInvalid``."""
    value = parse_stored_arguments(parse_edited_arguments(text))
    if value is None:
        raise ArgumentsInvalid("The arguments are nested too deeply.", remedy="Use fewer levels.")
    return value


def _permit(form: QueryDict, stored_arguments: str, now: datetime) -> PermitWish:
    """Pins are ticked by place; names and values come from the call itself, never from the form."""
    lasts = form.get("lasts", "")
    uses = form.get("uses", "").strip()
    if lasts not in LASTS:
        raise ConfigInvalid(
            "The duration of the permit is missing.",
            remedy="Choose how long similar calls are allowed.",
        )
    if uses and not (uses.isdecimal() and 0 < int(uses[:6]) <= 1_000):
        raise ConfigInvalid(
            "The maximum number of calls must be between 1 and 1,000.",
            remedy="Enter a number in this range. To allow any number of calls, leave the field empty.",
        )
    stored = list((parse_stored_arguments(stored_arguments) or {}).items())
    places = form.getlist("pin")
    if not all(place.isdecimal() and int(place[:9]) < len(stored) for place in places):
        raise ConfigInvalid(
            "The form selects an argument that the call does not have.",
            remedy="Reload the page and try again.",
        )
    pins = dict(stored[int(place)] for place in places)
    return PermitWish(now + timedelta(minutes=int(lasts)), pins, int(uses) if uses else None)
