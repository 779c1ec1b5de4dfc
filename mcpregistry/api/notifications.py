"""Channels that are told about held calls, and what became of each message."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Problem, Text, When
from mcpregistry.api.schemas.notifications import (
    RANKS,
    ChannelChange,
    ChannelNew,
    ChannelOut,
    DeliveryDetail,
    DeliveryOut,
    EventName,
    State,
    channel_out,
    delivery_detail,
    delivery_out,
)
from mcpregistry.models import Channel, Delivery, PolicyRule
from mcpregistry.services.notifications import outbox

router = PermissionRouter(tags=["notifications"])

_CHANNELS = Channel.objects.prefetch_related("servers", "rules")
_DELIVERIES = Delivery.objects.select_related("channel")
_ACCESS = ("url", "signing", "token")


@router.get("/channels", response=Page[ChannelOut])
def list_channels(
    request: HttpRequest, *, enabled: bool | None = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[ChannelOut]:
    """Channels by name. Only the origin of their address is returned."""
    rows = _CHANNELS.all() if enabled is None else _CHANNELS.filter(enabled=enabled)
    return read_page(rows, order=("name",), limit=limit, cursor=cursor, show=channel_out)


@router.post("/channels", response={201: ChannelOut, 404: Problem})
@once()
def create_channel(request: HttpRequest, payload: ChannelNew) -> Status[ChannelOut]:
    """Add a channel."""
    return Status(201, _save_channel(Channel(), payload, actor(request)))


@router.get("/channels/{channel_id}", response=ChannelOut)
def get_channel(request: HttpRequest, channel_id: lookup.Id) -> ChannelOut:
    """One channel."""
    return channel_out(_channel(channel_id))


@router.patch("/channels/{channel_id}", response=ChannelOut)
def change_channel(
    request: HttpRequest, channel_id: lookup.Id, payload: ChannelChange
) -> ChannelOut:
    """Change the fields that are sent. Secrets that are left out stay as they are."""
    return _save_channel(_channel(channel_id), payload, actor(request))


@router.delete("/channels/{channel_id}", response={204: None})
def delete_channel(request: HttpRequest, channel_id: lookup.Id) -> Status[None]:
    """Delete a channel with its deliveries."""
    outbox.delete_channel(channel=_channel(channel_id), actor=actor(request))
    return Status(204, None)


@router.post("/channels/{channel_id}/test", response={201: DeliveryOut, 409: Problem})
@once()
def send_test_message(request: HttpRequest, channel_id: lookup.Id) -> Status[DeliveryOut]:
    """Send a test message. The returned delivery shows within seconds whether it arrived."""
    row = outbox.send_test(channel=_channel(channel_id), actor=actor(request))
    return Status(201, delivery_out(row))


@router.get("/deliveries", response=Page[DeliveryOut])
def list_deliveries(
    request: HttpRequest,
    *,
    channel: Annotated[
        Text | None, Query(max_length=100, description="Name of the channel.")
    ] = None,
    event: EventName | None = None,
    state: State | None = None,
    approval: Annotated[
        Text | None, Query(max_length=32, description="Id of the approval request of a held call.")
    ] = None,
    since: Annotated[When | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DeliveryOut]:
    """Deliveries, newest first."""
    exact = {
        "channel__name": channel,
        "event": event,
        "state": state,
        "request": approval,
        "created_at__gte": since,
    }
    rows = _DELIVERIES.filter(**{k: v for k, v in exact.items() if v is not None})
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=delivery_out)


@router.get("/deliveries/{delivery_id}", response=DeliveryDetail)
def get_delivery(request: HttpRequest, delivery_id: lookup.Id) -> DeliveryDetail:
    """One delivery with its message."""
    return delivery_detail(_delivery(delivery_id))


@router.post("/deliveries/{delivery_id}/redeliver", response={200: DeliveryOut, 409: Problem})
@once()
def redeliver(request: HttpRequest, delivery_id: lookup.Id) -> DeliveryOut:
    """Send an ended delivery again, with the same id."""
    return delivery_out(outbox.redeliver(delivery=_delivery(delivery_id), actor=actor(request)))


def _channel(channel_id: int) -> Channel:
    return lookup.one(_CHANNELS.all(), "channel", pk=channel_id)


def _delivery(delivery_id: int) -> Delivery:
    return lookup.one(_DELIVERIES.all(), "delivery", pk=delivery_id)


def _save_channel(row: Channel, payload: ChannelChange, by: str) -> ChannelOut:
    given: dict[str, Any] = payload.get_sent_values()
    access = {name: given.pop(name) for name in _ACCESS if name in given}
    servers = given.pop("servers", None)
    rules = given.pop("rules", None)
    if risk := given.pop("minimum_risk", None):
        given["minimum_risk"] = RANKS[risk]
    row.change(**given)
    saved = outbox.save_channel(
        channel=row,
        actor=by,
        access=access,
        servers=None if servers is None else [lookup.find_server(slug) for slug in servers],
        rules=None
        if rules is None
        else [lookup.one(PolicyRule.objects.all(), "rule", name=name) for name in rules],
    )
    return channel_out(_channel(saved.pk))
