"""Emptying the outbox. Any number of workers may do it at once, and any of them may die at any
moment.

Invariants:
* A message is sent by whoever claimed it by compare-and-set; the claim is a lease, so what a dead
  process held falls due again, and is sent again with the same id.
* Each channel is served by one task per process, so a dead receiver delays nobody else's messages.
* Failures are tried again with growing pauses for a day, no sooner than the receiver asks for.
"""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db.models import QuerySet
from django.utils import timezone

from mcpregistry.db import db_call
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.notifications.events import (
    ChannelKind,
    NotificationEvent,
    compute_retry_delay,
)
from mcpregistry.downstream.runtime import LoopThread
from mcpregistry.models import Channel, Delivery
from mcpregistry.services.notifications.outbox import MOOT, OFF
from mcpregistry.services.notifications.senders import Parcel, Receipt, send

log = structlog.get_logger(__name__)

LEASE = timedelta(minutes=2)
UNREACHED_PAUSE = timedelta(seconds=30)  # for what else waits for a receiver that did not answer
_CLOSING_SECONDS = 10.0


class Deliverer:
    """One loop thread that empties the outbox; ``kick`` may be called from any thread at any
    time."""

    def __init__(self) -> None:
        self._loop = LoopThread("notifications")
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._again: set[int] = set()

    def kick(self) -> None:
        """Look for due messages soon; returns at once."""
        asyncio.run_coroutine_threadsafe(self._look(), self._loop.loop)

    def close(self) -> None:
        """End the loop thread; what was being sent falls due again."""
        self._loop.stop(_CLOSING_SECONDS)

    async def _look(self) -> None:
        for channel_id in await db_call(list_channels_with_due, timezone.now()):
            if channel_id in self._serving:
                self._again.add(channel_id)  # it may just have found nothing more
                continue
            self._serving[channel_id] = asyncio.create_task(self._serve(channel_id))

    async def _serve(self, channel_id: int) -> None:
        try:
            while True:
                self._again.discard(channel_id)
                await empty_channel(channel_id)
                if channel_id not in self._again:
                    return
        except Exception:
            log.exception("notifications.crashed", channel=channel_id)
        finally:
            del self._serving[channel_id]


async def empty_channel(channel_id: int) -> None:
    """Send what this channel is owed now, one after the other, until its receiver does not
    answer."""
    while parcel := await db_call(claim, channel_id, timezone.now()):
        receipt = await send(parcel)
        await db_call(settle, parcel.id, parcel.attempt, receipt, timezone.now())
        if receipt.wait or not receipt.reached:
            pause = max(UNREACHED_PAUSE, timedelta(seconds=receipt.wait))
            await db_call(postpone, channel_id, timezone.now() + pause)
            return


def list_channels_with_due(now: datetime) -> list[int]:
    """Ids of channels that are owed something now."""
    return list(
        Delivery.objects.due(now).order_by("channel").values_list("channel", flat=True).distinct()
    )


def claim(channel_id: int, now: datetime) -> Parcel | None:
    """Take the oldest due message of a channel for LEASE; None when there is none (any more)."""
    channel = Channel.objects.filter(pk=channel_id).first()
    if channel is None:
        return None
    if not channel.enabled:
        _give_up(channel, OFF)
        return None
    while row := _select_due(channel, now).first():
        # Compare-and-set. The claim is a lease: if this process dies, the row falls due again by
        # itself.
        held = Delivery.objects.open().filter(pk=row.pk, attempts=row.attempts, next_at=row.next_at)
        if not held.update(attempts=row.attempts + 1, next_at=now + LEASE):
            continue  # another worker was faster
        row.attempts += 1
        if refusal := _make_skipped_receipt(channel, row, now):
            settle(row.uid.hex, row.attempts, refusal, now)
            continue
        try:
            return _make_parcel(channel, row)
        except ConfigInvalid as error:  # its secrets do not open
            settle(row.uid.hex, row.attempts, Receipt(str(error)), now)
    return None


def _select_due(channel: Channel, now: datetime) -> QuerySet[Delivery]:
    return (
        Delivery.objects.due(now)
        .filter(channel=channel)
        .select_related("request__call")
        .order_by("id")
    )


def _give_up(channel: Channel, why: str) -> None:
    Delivery.objects.open().filter(channel=channel).update(
        state=Delivery.State.GIVEN_UP, next_at=None, ended_at=timezone.now(), last_error=why
    )


def _make_skipped_receipt(channel: Channel, row: Delivery, now: datetime) -> Receipt | None:
    if row.attempts > 1 and now >= row.give_up_at:
        return Receipt(
            row.last_error
            or "The process that was sending the message stopped during each attempt.",
            row.response_code,
            gone=True,
        )
    return Receipt(MOOT, gone=True) if _is_moot(channel, row) else None


def _is_moot(channel: Channel, row: Delivery) -> bool:
    """People need not be asked any more; programs keep the whole story."""
    if (
        channel.kind == ChannelKind.WEBHOOK
        or row.event != NotificationEvent.ASKED
        or row.request is None
    ):
        return False
    return row.request.call.state != InvocationState.PENDING


def _make_parcel(channel: Channel, row: Delivery) -> Parcel:
    return Parcel(
        id=row.uid.hex,
        attempt=row.attempts,
        kind=ChannelKind(channel.kind),
        event=NotificationEvent(row.event),
        body=row.body,
        access=channel.access,
        addresses=tuple(channel.addresses),
        room=channel.room,
        networks=tuple(channel.allowed_networks),
        message_ref=_find_asking_message(row) if channel.kind == ChannelKind.SLACK else "",
    )


def _find_asking_message(row: Delivery) -> str:
    """The Slack message that asked; once decided it is changed in place, so nobody decides it
    again."""
    if row.request_id is None or row.event == NotificationEvent.ASKED:
        return row.message_ref
    asked = Delivery.objects.filter(
        channel=row.channel_id, request=row.request_id, event=NotificationEvent.ASKED.value
    )
    return asked.values_list("message_ref", flat=True).first() or ""


def settle(uid: str, attempt: int, receipt: Receipt, now: datetime) -> None:
    """Write down how a try went.

    A failure told late does not disturb somebody else's later claim: it counts only for its own
    ``attempt``.
    """
    held = Delivery.objects.open().filter(uid=uid)
    fields: dict[str, Any] = {
        "response_code": receipt.code,
        "last_error": receipt.error,
        "next_at": None,
    }
    if not receipt.error:
        ref = {"message_ref": receipt.message_ref} if receipt.message_ref else {}
        held.update(state=Delivery.State.SENT, ended_at=now, **fields, **ref)
        return
    row = held.filter(attempts=attempt).select_related("channel").first()
    if row is None:
        return
    if receipt.gone or now >= row.give_up_at:
        fields |= {"state": Delivery.State.GIVEN_UP, "ended_at": now}
    else:
        seconds = max(receipt.wait, compute_retry_delay(attempt, random.random()))  # noqa: S311  jitter, not a secret
        fields |= {"state": Delivery.State.FAILED, "next_at": now + timedelta(seconds=seconds)}
    held.filter(attempts=attempt).update(**fields)
    facts = {
        "channel": row.channel.name,
        "delivery": uid,
        "error": receipt.error,
        "state": str(fields["state"]),
    }
    log.warning("notification_failed", **facts)


def postpone(channel_id: int, until: datetime) -> None:
    """Put off what else is due on the channel, so that it need not fail for the same reason and use
    up its tries."""
    Delivery.objects.due(timezone.now()).filter(channel=channel_id).update(next_at=until)
