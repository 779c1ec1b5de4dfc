"""Sending one message: webhook, e-mail or Slack. No database here, and no retry.

What a receiver answers is never quoted: errors are sentences of ours with its status code, or with
Slack's error word if it looks like one. So nothing a receiver echoes reaches a row or a log.
"""

from __future__ import annotations

import asyncio
import json
import re
import smtplib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog
from django.conf import settings

from mcpregistry.domain.errors import (
    DownstreamError,
    OutboundRefused,
    ProtocolError,
    SlipsnisseError,
    TimedOut,
)
from mcpregistry.domain.notifications.events import (
    ChannelKind,
    NotificationEvent,
    build_webhook_headers,
    parse_retry_after,
)
from mcpregistry.domain.notifications.mail import compose_mail
from mcpregistry.domain.notifications.slack import build_message
from mcpregistry.downstream.http_client import single_request

log = structlog.get_logger(__name__)

SEND_SECONDS = 15.0
MAIL_SECONDS = 60.0
_ANSWER_BYTES = 256 * 1024
_SLACK_ERROR = re.compile(r"[a-z_]{1,60}")
# a dead mail server keeps only these
_mail_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="mail")


@dataclass(frozen=True, slots=True)
class Parcel:
    """Everything that sending one message takes. ``repr`` shows no secret."""

    id: str
    attempt: int
    kind: ChannelKind
    event: NotificationEvent
    body: str
    access: Mapping[str, str] = field(repr=False)
    addresses: tuple[str, ...] = ()
    room: str = ""
    networks: tuple[str, ...] = ()
    message_ref: str = ""  # of the Slack message that this one replaces

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.body)["data"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """How it went. ``error`` empty: it arrived. ``reached``: the receiver answered at all."""

    error: str = ""
    code: int | None = None
    reached: bool = True
    gone: bool = False  # never to be tried again
    wait: float = 0.0  # seconds that the receiver asks for
    message_ref: str = ""


_FAILURES: tuple[tuple[type[DownstreamError], str], ...] = (
    (
        OutboundRefused,
        "The address of the receiver is private or reserved, or it is not an http or https URL. "
        "If the receiver is in a private network, add this network to the allowed networks of the channel.",
    ),
    (
        TimedOut,
        "The receiver did not accept the connection in time. Check its address, and that it is running.",
    ),
    (
        ProtocolError,
        "The answer of the receiver is not valid. Check its address, and any proxy in front of it.",
    ),
    (
        DownstreamError,
        "The receiver cannot be reached, or the connection was lost. "
        "Check its address and its TLS certificate, and that it is running.",
    ),
)


async def send(parcel: Parcel) -> Receipt:
    """Send one message by its channel's kind. Never raises for anything that went wrong; the
    receipt says it."""
    try:
        async with asyncio.timeout(
            MAIL_SECONDS if parcel.kind is ChannelKind.EMAIL else SEND_SECONDS
        ):
            return await _WAYS[parcel.kind](parcel)
    except TimeoutError:
        return Receipt("The message could not be sent in time.", reached=False)
    except DownstreamError as error:
        log.warning("notification_not_sent", delivery=parcel.id, error=error.message)
        return Receipt(
            next(text for kind, text in _FAILURES if isinstance(error, kind)), reached=False
        )
    except SlipsnisseError as error:
        return Receipt(str(error))
    except Exception:  # a fault of ours must not end in a message that is tried for ever
        log.exception("notification_crashed", delivery=parcel.id)
        return Receipt(
            "The message could not be sent because of an internal error. See the log of the worker."
        )


@dataclass(frozen=True, slots=True)
class ReceiverReply:
    """A receiver's status, the wait that it asks for in seconds, and the beginning of its body."""

    status: int
    wait: float
    body: bytes


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    networks: tuple[str, ...],
    answer_bytes: int = 0,
) -> ReceiverReply:
    """One guarded POST of JSON."""
    headers = {"Content-Type": "application/json", **headers}
    answer = await single_request.send_single_request(
        "POST",
        url,
        body,
        headers,
        networks=networks,
        connect_seconds=SEND_SECONDS / 2,
        answer_bytes=answer_bytes,
    )
    wait = parse_retry_after(answer.headers.get("retry-after", ""), datetime.now(UTC))
    return ReceiverReply(answer.status, wait, answer.body)


async def _send_webhook(parcel: Parcel) -> Receipt:
    body = parcel.body.encode()
    seconds = int(time.time())
    headers = build_webhook_headers(
        message=parcel.id, seconds=seconds, body=body, secret=parcel.access["signing"]
    )
    answer = await post(parcel.access["url"], body, headers, networks=parcel.networks)
    if 200 <= answer.status < 300:
        return Receipt(code=answer.status)
    redirected = (
        ", which is a redirect. The site does not follow redirects. Enter the address to which the redirect leads."
        if 300 <= answer.status < 400
        else "."
    )
    error = f"The receiver answered HTTP {answer.status}{redirected}"
    return Receipt(error, answer.status, gone=answer.status == 410, wait=answer.wait)


# Slack


@dataclass(frozen=True, slots=True)
class SlackAnswer:
    """``error`` is Slack's own word, such as channel_not_found, or a sentence of ours."""

    error: str = ""
    status: int = 200
    wait: float = 0.0
    data: Mapping[str, Any] = field(default_factory=dict)


async def call_slack(
    method: str, payload: Mapping[str, Any], *, access: Mapping[str, str], networks: tuple[str, ...]
) -> SlackAnswer:
    """One method of Slack's Web API. Raises DownstreamError when it cannot be reached."""
    headers = {
        "Authorization": f"Bearer {access['token']}",
        "Content-Type": "application/json; charset=utf-8",
    }
    url = f"{access['url'].rstrip('/')}/{method}"
    answer = await post(
        url, json.dumps(payload).encode(), headers, networks=networks, answer_bytes=_ANSWER_BYTES
    )
    if answer.status != 200:
        return SlackAnswer(f"HTTP {answer.status}", answer.status, answer.wait)
    try:
        data = json.loads(answer.body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        return SlackAnswer("a text that is not a JSON object")
    if data.get("ok") is True:
        return SlackAnswer(data=data)
    word = str(data.get("error"))
    return SlackAnswer(word if _SLACK_ERROR.fullmatch(word) else "an error without a name")


async def _send_slack(parcel: Parcel) -> Receipt:
    room, _, stamp = parcel.message_ref.partition(" ")
    place = {"channel": room, "ts": stamp} if stamp else {"channel": parcel.room}
    payload = {**build_message(parcel.event, parcel.data), **place}
    method = "chat.update" if stamp else "chat.postMessage"
    answer = await call_slack(method, payload, access=parcel.access, networks=parcel.networks)
    if answer.error:
        return Receipt(f"Slack answered: {answer.error}.", answer.status, wait=answer.wait)
    ref = f"{answer.data.get('channel', '')} {answer.data.get('ts', '')}"
    return Receipt(code=200, message_ref=ref if 2 < len(ref) <= 100 else "")


# E-mail


async def _send_email(parcel: Parcel) -> Receipt:
    if not settings.MAIL_CONFIGURED:
        return Receipt(
            "No mail server is configured. Set EMAIL_URL, then restart the site.", reached=False
        )
    return await asyncio.get_running_loop().run_in_executor(_mail_threads, _send_mail, parcel)


def _send_mail(parcel: Parcel) -> Receipt:
    from django.core.mail import EmailMultiAlternatives

    content = compose_mail(parcel.event, parcel.data)
    # The same Message-ID when it is sent again: most mail stores then keep one.
    headers = {"Message-ID": f"<{parcel.id}@slipsnisse>", "Auto-Submitted": "auto-generated"}
    letter = EmailMultiAlternatives(
        content.subject, content.text, to=list(parcel.addresses), headers=headers
    )
    letter.attach_alternative(content.html, "text/html")
    try:
        letter.send()
    except smtplib.SMTPRecipientsRefused as error:
        code = next((code for code, _ in error.recipients.values()), None)
        return Receipt("The mail server rejected all addresses.", code)
    except smtplib.SMTPResponseException as error:
        return Receipt("The mail server rejected the message.", error.smtp_code)
    except (smtplib.SMTPException, OSError) as error:
        return Receipt(
            f"The mail server cannot be reached or closed the connection ({type(error).__name__}).",
            reached=False,
        )
    return Receipt(code=250)


_WAYS: dict[ChannelKind, Callable[[Parcel], Any]] = {
    ChannelKind.WEBHOOK: _send_webhook,
    ChannelKind.EMAIL: _send_email,
    ChannelKind.SLACK: _send_slack,
}
