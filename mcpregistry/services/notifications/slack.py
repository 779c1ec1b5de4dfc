"""Deciding from Slack: whose press it was, whether it may be decided there, and the vote itself.

A signature proves that Slack sent it; who may decide is up to the same rules as on the page. What a
person could not see whole in Slack (high risk, cut or masked arguments) is decided on the page
only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from mcpregistry.domain.errors import ConfigInvalid, Conflict, Denied, NotFound
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.notifications.events import ChannelKind, prepare_arguments
from mcpregistry.domain.notifications.slack import PAGE_ONLY, TOO_MUCH
from mcpregistry.models import ApprovalRequest, Channel, Delivery
from mcpregistry.services.approvals import votes
from mcpregistry.services.approvals.requests import get_current_arguments
from mcpregistry.services.notifications.outbox import find_slack_user
from mcpregistry.services.records import idempotency

COUNTED = "Your vote is recorded. More approvers must approve the call before it runs."


@dataclass(frozen=True, slots=True)
class Press:
    """A button that somebody pressed, or a dialog that somebody filled in."""

    team: str
    member: str
    value: str  # request id and hash of the arguments shown, with a dot between
    approve: bool
    reason: str = ""


def find_channel(uid: Any) -> Channel | None:
    """The enabled Slack channel of that uid, or None."""
    return Channel.objects.filter(uid=uid, kind=ChannelKind.SLACK.value, enabled=True).first()


def get_signing_secret(channel: Channel) -> str:
    """Empty when the channel has none: then nobody can press anything."""
    try:
        return str(channel.access.get("signing", ""))
    except ConfigInvalid:
        return ""


def take_once(*, channel: Channel, signature: str, fingerprint: str) -> None:
    """Accept a signed request once over all processes. Raises ``Conflict`` for one that came
    before."""
    caller = f"slack:{channel.uid.hex}"
    if (
        idempotency.claim(caller=caller, key=signature[:200], fingerprint=fingerprint).kept
        is not None
    ):
        raise Conflict(
            "The site has already received this click on the button.",
            remedy="If the call still waits for your decision, press the button again.",
        )
    idempotency.keep(caller=caller, key=signature[:200], status=200, body="")


def find_pressed_tool(*, channel: Channel, press: Press) -> str:
    """The tool that the press is about. Raises like ``decide`` when it could not be decided in
    Slack."""
    return _load_decidable_request(channel, press)[0].call.tool_name


def decide(*, channel: Channel, press: Press) -> str:
    """Vote as the person behind the Slack account. Returns what to tell them; empty when the
    message will.

    Raises Denied (unknown or not eligible, or the page is needed), NotFound, Conflict.
    """
    request, user = _load_decidable_request(channel, press)
    shown = press.value.partition(".")[2]
    votes.vote(
        request_id=request.pk,
        user=user,
        approve=press.approve,
        reason=press.reason,
        seen=shown,
        via="slack",
    )
    request.call.refresh_from_db(fields=["state"])
    return COUNTED if request.call.state == InvocationState.PENDING else ""


def _load_decidable_request(channel: Channel, press: Press) -> tuple[ApprovalRequest, User]:
    request_id = press.value.partition(".")[0]
    told = Delivery.objects.filter(channel=channel, request=request_id)
    request = (
        ApprovalRequest.objects.select_related("call").filter(pk__in=told.values("request")).first()
    )
    if request is None:
        raise NotFound(
            "This channel was not notified about this call.",
            remedy="Open the page of the call on this site, and decide there.",
        )
    user = find_slack_user(team=press.team, member=press.member)
    if user is None:
        raise Denied(
            "Your Slack account is not linked to a user.",
            remedy=f"Ask an administrator to add your account on the page Slack members, with the workspace {press.team} and the member {press.member}.",
        )
    if request.risk == "high":
        raise Denied(PAGE_ONLY, remedy="Press “Open the page”.")
    if not prepare_arguments(get_current_arguments(request)).whole:
        raise Denied(TOO_MUCH, remedy="Press “Open the page”.")
    return request, user
