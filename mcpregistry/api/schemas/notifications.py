"""Channels and deliveries. What opens a channel goes in, only its origin and the names of its
secrets come out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Slug, StrictInput, Text, cap_text
from mcpregistry.models import Channel, Delivery

Kind = Literal["webhook", "email", "slack"]
EventName = Literal[
    "asked",
    "approved",
    "rejected",
    "expired",
    "cancelled",
    "void",
    "definitions",
    "unavailable",
    "available",
    "trial",
    "budget_soft",
    "budget_spent",
]
Risk = Literal["low", "medium", "high"]
State = Literal["waiting", "failed", "sent", "given up"]
RANKS: dict[str, int] = {"low": 1, "medium": 2, "high": 3}
_NAMES = {rank: name for name, rank in RANKS.items()}
Short = Annotated[Text, Field(max_length=100)]
Secret = Annotated[Text, Field(max_length=2_000)]


class ChannelChange(StrictInput):
    """Changes of a channel. You can leave out any key. Secrets that you leave out are kept; lists
    are replaced as a whole.
    """

    name: Annotated[Text, Field(min_length=1, max_length=100)] | None = None
    kind: Kind | None = None
    enabled: bool | None = None
    url: Secret | None = None
    signing: (
        Annotated[
            Secret,
            Field(
                description="Signing secret: whsec_… for a webhook, or the signing secret of Slack."
            ),
        ]
        | None
    ) = None
    token: Annotated[Secret, Field(description="Bot token of Slack.")] | None = None
    addresses: (
        Annotated[list[Annotated[Text, Field(max_length=254)]], Field(max_length=50)] | None
    ) = None
    room: Annotated[Short, Field(description="Id of the Slack channel.")] | None = None
    allowed_networks: (
        Annotated[list[Annotated[Text, Field(max_length=50)]], Field(max_length=50)] | None
    ) = None
    events: (
        Annotated[
            list[EventName],
            Field(description="Events that are sent. If empty, all events are sent."),
        ]
        | None
    ) = None
    servers: Annotated[list[Slug], Field(max_length=1000)] | None = None
    rules: (
        Annotated[list[Annotated[Text, Field(max_length=200)]], Field(max_length=1000)] | None
    ) = None
    minimum_risk: Risk | None = None


class ChannelNew(ChannelChange):
    """A new channel."""

    name: Annotated[Text, Field(min_length=1, max_length=100)]
    kind: Kind


class ChannelOut(Schema):
    """A channel with the origin of its address and the names of its secrets."""

    id: int
    name: str
    kind: str
    enabled: bool
    origin: str = Field(description="Destination: scheme and host, or the e-mail addresses.")
    secrets: list[str] = Field(
        description="Names of the stored secrets. Their values are never shown."
    )
    interactive_path: str = Field(
        description="Address to which Slack must post interactions. Empty for other kinds."
    )
    room: str
    allowed_networks: list[str]
    events: list[str]
    servers: list[str]
    rules: list[str]
    minimum_risk: str
    created_at: datetime


class DeliveryOut(Schema):
    """A delivery in a list."""

    id: int
    uid: str = Field(description="The webhook-id, which is the same for every attempt.")
    channel: str
    event: str
    request: str | None
    state: str
    attempts: int
    response_code: int | None
    last_error: str
    created_at: datetime
    next_at: datetime | None
    ended_at: datetime | None


class DeliveryDetail(DeliveryOut):
    """A delivery with its content. Secrets in arguments are masked."""

    body: Any


def channel_out(row: Channel) -> ChannelOut:
    """The row as its answer."""
    return ChannelOut(
        id=row.pk,
        name=row.name,
        kind=row.kind,
        enabled=row.enabled,
        origin=row.origin,
        secrets=sorted(row.access),
        interactive_path=f"/hooks/slack/{row.uid}/" if row.kind == "slack" else "",
        room=row.room,
        allowed_networks=row.allowed_networks,
        events=row.events,
        servers=[server.slug for server in row.servers.all()],
        rules=[rule.name for rule in row.rules.all()],
        minimum_risk=_NAMES[row.minimum_risk],
        created_at=row.created_at,
    )


def delivery_out(row: Delivery) -> DeliveryOut:
    """The row as its answer."""
    return DeliveryOut(**_facts(row))


def delivery_detail(row: Delivery) -> DeliveryDetail:
    """The row as its answer, with the message."""
    return DeliveryDetail(**_facts(row), body=row.facts)


def _facts(row: Delivery) -> dict[str, Any]:
    return {
        "id": row.pk,
        "uid": row.uid.hex,
        "channel": row.channel.name,
        "event": row.event,
        "request": row.request_id,
        "state": row.state,
        "attempts": row.attempts,
        "response_code": row.response_code,
        "last_error": cap_text(row.last_error),
        "created_at": row.created_at,
        "next_at": row.next_at,
        "ended_at": row.ended_at,
    }
