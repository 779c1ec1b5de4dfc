"""Channels and the outbox: what is told is written where it happens, in the same transaction.

A worker sends it afterwards (``delivery``). So nothing is told that was rolled back,
nothing is forgotten when a process dies, and no receiver can hold up a decision.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid, Conflict, OutboundRefused
from mcpregistry.domain.notifications.events import (
    KEPT_TRYING,
    TYPES,
    ChannelKind,
    Interest,
    NotificationEvent,
    decode_webhook_key,
    prepare_arguments,
)
from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json, hash_parts
from mcpregistry.models import ApprovalRequest, Channel, Delivery, PolicyRule, Server, SlackIdentity
from mcpregistry.services.approvals.requests import get_current_arguments, hash_current_arguments
from mcpregistry.services.configuration.dispatch import wake_worker
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit

SLACK_API = "https://slack.com/api"
OFF = "The channel was disabled."
MOOT = "The call was decided before the message was sent."
_MOST_NAMES = 500  # of tools in one notice
_ACCESS = {
    ChannelKind.WEBHOOK: {"url", "signing"},
    ChannelKind.EMAIL: set(),
    ChannelKind.SLACK: {"url", "token", "signing"},
}


# What happens


def enqueue(
    event: NotificationEvent | str, request: ApprovalRequest, *, now: datetime | None = None
) -> int:
    """Owe every channel that wants it a message about this request. Returns how many.

    To be called in the transaction of what happened; ``request.call`` is read. Telling the same
    event of the same request again is no error and sends nothing more.
    """
    event = NotificationEvent(event)
    at = now or timezone.now()
    channels = _find_interested_channels(
        event, server=request.call.server_slug, rule=request.rule_id, risk=request.risk_rank
    )
    if not channels:
        return 0
    return _owe(
        channels,
        event,
        key=f"{event}:{request.pk}",
        data=_collect_facts(event, request),
        at=at,
        request=request,
    )


def enqueue_announced(
    *, event: NotificationEvent, request: ApprovalRequest, now: datetime, **_: object
) -> None:
    """Whatever becomes of a held call is told; connected in ``mcpregistry.apps``."""
    enqueue(event, request, now=now)


def enqueue_definitions(
    *, server: Server, added: Sequence[str], changed: Sequence[str], now: datetime | None = None
) -> int:
    """Owe a message about tools of this server that wait for approval: one for all that one look
    found."""
    if not added and not changed:
        return 0
    channels = _find_interested_channels(NotificationEvent.DEFINITIONS, server=server.slug)
    at = now or timezone.now()
    data = {
        "server": server.slug,
        "added": [clean_text(name, 500) for name in added[:_MOST_NAMES]],
        "changed": [clean_text(name, 500) for name in changed[:_MOST_NAMES]],
        "url": f"{settings.SITE_URL}/definitions/",
    }
    key = f"{NotificationEvent.DEFINITIONS}:{hash_parts(server.slug, encode_lossy_json(data), at.isoformat())}"
    return (
        _owe(channels, NotificationEvent.DEFINITIONS, key=key, data=data, at=at, server=server)
        if channels
        else 0
    )


def enqueue_server(
    event: NotificationEvent, *, server: Server, reason: str = "", now: datetime | None = None
) -> int:
    """Owe a message that a server has become unavailable, or available again, or behaves otherwise
    in its trial."""
    channels = _find_interested_channels(event, server=server.slug)
    at = now or timezone.now()
    page = f"{settings.SITE_URL}/admin/mcpregistry/server/{server.pk}/change/"
    data = {"server": server.slug, "reason": clean_text(reason, 1_000), "url": page}
    key = f"{event}:{hash_parts(server.slug, at.isoformat())}"
    return _owe(channels, event, key=key, data=data, at=at, server=server) if channels else 0


def enqueue_budget(
    event: NotificationEvent, *, key: str, data: dict[str, Any], now: datetime
) -> int:
    """Owe a message that a budget has reached a mark. ``key`` names budget and period: each is told
    once."""
    channels = _find_interested_channels(event, server="")
    return _owe(channels, event, key=f"{event}:{key}", data=data, at=now) if channels else 0


def _find_interested_channels(
    event: NotificationEvent, *, server: str, rule: int | None = None, risk: int = 3
) -> list[Channel]:
    rows = Channel.objects.filter(enabled=True).prefetch_related("servers", "rules")
    return [
        row
        for row in rows
        if _build_interest(row).is_interested_in(event, server=server, rule=rule, risk=risk)
    ]


def _build_interest(channel: Channel) -> Interest:
    return Interest(
        events=frozenset(channel.events),
        servers=frozenset(server.slug for server in channel.servers.all()),
        rules=frozenset(rule.pk for rule in channel.rules.all()),
        minimum_risk=channel.minimum_risk,
    )


def _owe(
    channels: Iterable[Channel],
    event: NotificationEvent,
    *,
    key: str,
    data: dict[str, Any],
    at: datetime,
    **of: Any,
) -> int:
    body = encode_lossy_json({"type": TYPES[event], "timestamp": at.isoformat(), "data": data})
    rows = [
        Delivery(
            channel=channel,
            event=event.value,
            key=clean_text(key, 100),
            body=body,
            created_at=at,
            next_at=at,
            give_up_at=at + KEPT_TRYING,
            **of,
        )
        for channel in channels
    ]
    # told before: the first message stands
    Delivery.objects.bulk_create(rows, ignore_conflicts=True)
    transaction.on_commit(lambda: wake_worker("deliver_notifications"))
    return len(rows)


def _collect_facts(event: NotificationEvent, request: ApprovalRequest) -> dict[str, Any]:
    call = request.call
    arguments = get_current_arguments(request)
    shown = prepare_arguments(arguments)
    return {
        "request": request.pk,
        "call": call.pk,
        "tool": call.tool_name,
        "server": call.server_slug,
        "agent": call.agent_slug,
        "requester": call.requester,
        "endpoint": call.endpoint_slug,
        "risk": request.risk,
        "rule": request.rule_name,
        "asked_at": request.asked_at.isoformat(),
        "decide_by": request.decide_by.isoformat(),
        "decided_by": []
        if event is NotificationEvent.ASKED
        else [vote.name for vote in request.votes.all()],
        "reason": request.decided_reason,
        "edited": bool(request.edited),
        "arguments": shown.text,
        "arguments_whole": shown.whole,
        "arguments_hash": hash_current_arguments(request),
        "url": f"{settings.SITE_URL}/approvals/{request.pk}/",
    }


# Channels


@transaction.atomic
def save_channel(
    *,
    channel: Channel,
    actor: str,
    access: dict[str, str] | None = None,
    servers: Iterable[Server] | None = None,
    rules: Iterable[PolicyRule] | None = None,
) -> Channel:
    """Create or change a channel. ``access`` holds the parts to replace (url, signing, token);
    others stay.

    Raises ConfigInvalid for what could never be delivered.
    """
    kind = "channel.created" if channel._state.adding else "channel.changed"
    take_current(channel)
    given = {name: text for name, text in (access or {}).items() if text}
    channel.access = {
        name: text
        for name, text in (channel.access | given).items()
        if name in _ACCESS[_parse_kind(channel)]
    }
    _check(channel)
    save_checked(channel)
    for field, rows in (("servers", servers), ("rules", rules)):
        if rows is not None:
            getattr(channel, field).set(rows)
    facts = {
        "way": channel.kind,
        "enabled": channel.enabled,
        "to": channel.origin,
        "replaced": sorted(given),
    }
    audit.record_entry(kind=kind, actor=actor, subject=f"channel:{channel.name}", **facts)
    return channel


@transaction.atomic
def delete_channel(*, channel: Channel, actor: str) -> None:
    """Delete a channel with what it is still owed."""
    audit.record_entry(kind="channel.deleted", actor=actor, subject=f"channel:{channel.name}")
    channel.delete()


def _parse_kind(channel: Channel) -> ChannelKind:
    try:
        return ChannelKind(channel.kind)
    except ValueError:
        raise ConfigInvalid(
            error_texts.say_not_valid(clean_text(str(channel.kind), 50), "a kind of channel"),
            remedy="Use webhook, email or slack.",
        ) from None


def _check(channel: Channel) -> None:
    for name, texts in (("events", channel.events), ("addresses", channel.addresses)):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigInvalid(
                f"The {name} must be a list of texts.",
                remedy=error_texts.advise_form("a list", '["a", "b"]'),
            )
    if unknown := sorted(
        set(channel.events) - set(NotificationEvent)
        | (set(channel.events) & {NotificationEvent.TEST})
    ):
        raise ConfigInvalid(
            error_texts.say_not_valid(clean_text(unknown[0], 50), "an event"),
            remedy=f"Use one of these events: {', '.join(event for event in NotificationEvent if event is not NotificationEvent.TEST)}.",
        )
    {
        ChannelKind.WEBHOOK: _check_webhook,
        ChannelKind.EMAIL: _check_email,
        ChannelKind.SLACK: _check_slack,
    }[_parse_kind(channel)](channel)


def _check_webhook(channel: Channel) -> None:
    _check_address(channel)
    decode_webhook_key(str(channel.access.get("signing", "")))


def _check_email(channel: Channel) -> None:
    if not channel.addresses:
        raise ConfigInvalid(
            error_texts.say_required("An e-mail address"),
            remedy="Enter the e-mail address of at least one recipient.",
        )
    for address in channel.addresses:
        try:
            validate_email(address)
        except ValidationError:
            raise ConfigInvalid(
                error_texts.say_not_valid(clean_text(address, 100), "a valid e-mail address"),
                remedy="Correct the address.",
            ) from None


def _check_slack(channel: Channel) -> None:
    channel.access = {"url": SLACK_API} | channel.access
    _check_address(channel)
    if not channel.access.get("token") or not channel.room:
        raise ConfigInvalid(
            "A bot token (xoxb-…) and the ID of a Slack channel are required.",
            remedy="Give the Slack app the scope chat:write and invite it to the channel. Then copy the token and the ID from Slack.",
        )


def _check_address(channel: Channel) -> None:
    from mcpregistry.downstream.http_client.addresses import parse_networks
    from mcpregistry.downstream.http_client.guard import check_url

    networks = channel.allowed_networks
    if not isinstance(networks, list) or not all(isinstance(network, str) for network in networks):
        raise ConfigInvalid(
            "The allowed networks must be a list of texts.",
            remedy=error_texts.advise_form("a list", '["10.1.0.0/16"]'),
        )
    parse_networks(tuple(networks))
    try:
        check_url(str(channel.access.get("url", "")))
    except OutboundRefused:
        raise ConfigInvalid(
            "The address is not a plain http or https URL.",
            remedy=error_texts.advise_form(
                "an http or https URL", "https://hooks.example.org/slipsnisse"
            ),
        ) from None


# By hand


@transaction.atomic
def send_test(*, channel: Channel, actor: str) -> Delivery:
    """Owe this channel a test message. Raises Conflict while it is switched off."""
    if not channel.enabled:
        raise Conflict(
            f"The channel '{channel.name}' is disabled.", remedy="Enable the channel first."
        )
    key = f"{NotificationEvent.TEST}:{uuid.uuid4().hex}"
    data = {"channel": channel.name, "url": f"{settings.SITE_URL}/"}
    _owe([channel], NotificationEvent.TEST, key=key, data=data, at=timezone.now())
    audit.record_entry(kind="channel.tested", actor=actor, subject=f"channel:{channel.name}")
    return Delivery.objects.get(channel=channel, key=key)


@transaction.atomic
def redeliver(*, delivery: Delivery, actor: str) -> Delivery:
    """Send it once more, from now on for a day; the receiver gets the same id. Raises Conflict."""
    ended = Delivery.objects.filter(
        pk=delivery.pk, state__in=[Delivery.State.SENT, Delivery.State.GIVEN_UP]
    )
    now = timezone.now()
    if not ended.update(
        state=Delivery.State.WAITING, next_at=now, give_up_at=now + KEPT_TRYING, last_error=""
    ):
        raise Conflict(
            error_texts.say_wrong_state("retry", "delivery", "still being sent"),
            remedy="Wait. If an attempt fails, the site tries again automatically for up to 24 hours.",
        )
    audit.record_entry(
        kind="delivery.repeated", actor=actor, subject=f"delivery:{delivery.uid.hex}"
    )
    transaction.on_commit(lambda: wake_worker("deliver_notifications"))
    delivery.refresh_from_db()
    return delivery


def list_failing_channels() -> list[tuple[str, str]]:
    """(name, error) of every channel whose newest message that was tried has not arrived."""
    found = []
    for channel in Channel.objects.filter(enabled=True):
        tried = channel.deliveries.filter(attempts__gt=0).exclude(last_error__in=[OFF, MOOT])
        newest = tried.order_by("-id").first()
        if newest is not None and newest.state in (Delivery.State.FAILED, Delivery.State.GIVEN_UP):
            found.append((channel.name, newest.last_error))
    return found


# People in Slack


@transaction.atomic
def save_slack_identity(*, identity: SlackIdentity, actor: str) -> SlackIdentity:
    """Say whose Slack account this is. Raises ``ConfigInvalid``."""
    kind = "slack_person.created" if identity._state.adding else "slack_person.changed"
    take_current(identity)
    save_checked(identity)
    facts = {"team": identity.team, "member": identity.member}
    audit.record_entry(kind=kind, actor=actor, subject=f"user:{identity.user}", **facts)
    return identity


@transaction.atomic
def delete_slack_identity(*, identity: SlackIdentity, actor: str) -> None:
    """From now on that Slack account is nobody's."""
    facts = {"team": identity.team, "member": identity.member}
    audit.record_entry(
        kind="slack_person.deleted", actor=actor, subject=f"user:{identity.user}", **facts
    )
    identity.delete()


def find_slack_user(*, team: str, member: str) -> User | None:
    """Whose Slack account this is, if it is an active person's."""
    found = SlackIdentity.objects.select_related("user").filter(team=team, member=member).first()
    return found.user if found and found.user.is_active else None
