"""Seals at a webhook, and in an S3-compatible bucket: what each lacks is handed over in order, and
noted seal by seal.

The seals themselves are the outbox: a place that was away for a day gets that day's. What it has is
noted after it has said so, so after a lost answer a seal comes once more, with the same id, or to
where it lies already.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

import structlog
from django.conf import settings

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.notifications.events import build_webhook_headers, decode_webhook_key
from mcpregistry.downstream.http_client import single_request
from mcpregistry.models.audit import AuditSeal
from mcpregistry.models.figure import Figure
from mcpregistry.models.signing import compute_keyed_digest
from mcpregistry.services.records import sigv4
from mcpregistry.services.records.seals import format_seal_line

log = structlog.get_logger(__name__)

AT_ONCE = 100  # seals for one place in one round; the next comes in half a minute
SECONDS = 10.0  # for one of them
# after which a round begins no other: both places together must be done when the clock comes again
ROUND_SECONDS = 5.0
_ANSWER_BYTES = 4 * 1024 * 1024


class NotKept(Exception):
    """The place answered, and does not have it. The text says why, without a word of what it
    answered."""


@dataclass(frozen=True, slots=True)
class SealLine:
    """One seal as a line of a file, and its number."""

    number: int
    text: str


def deliver_to_webhook(url: str) -> int:
    """POST what it lacks, a seal a request, signed as notifications are; returns how many.

    Raises NotKept, DownstreamError, TimeoutError, and ConfigInvalid for a secret that is none.
    """
    return _hand_over_seals("webhook", url, _post)


def deliver_to_bucket(url: str) -> int:
    """PUT what it lacks, an object a seal, over none that is there; returns how many. Raises as
    ``deliver_to_webhook``."""
    return _hand_over_seals("bucket", url, _put)


def list_configured_sinks() -> Iterator[tuple[str, str]]:
    """The places over HTTP that this site names, with their addresses."""
    places = (("webhook", settings.AUDIT_WEBHOOK), ("bucket", settings.AUDIT_BUCKET))
    return ((name, url) for name, url in places if url)


def count_undelivered(name: str, url: str) -> int:
    """How many seals the place has not got yet; ``doctor`` and ``/metrics`` ask. Writes nothing."""
    stand = Figure.objects.filter(name=f"audit.{name}", labels=_make_labels(url)).first()
    return AuditSeal.objects.filter(number__gt=stand.value if stand else 0).count()


def check_sink_settings(name: str, url: str) -> str:
    """What is wrong with the settings of the place, without a word of a secret; empty when nothing
    is."""
    variable = f"SLIPSNISSE_AUDIT_{name.upper()}"
    if not _is_plain_url(url):
        return f"{variable} must be a plain http or https address, without a password or query."
    return (
        _find_bucket_problem(variable, url)
        if name == "bucket"
        else _find_secret_problem(settings.AUDIT_WEBHOOK_SECRET)
    )


def _is_plain_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0  # a port that is none raises
    except ValueError:
        return False
    strange = parts.query or parts.fragment or "@" in parts.netloc
    return parts.scheme in ("http", "https") and bool(named) and not strange


def _find_bucket_problem(variable: str, url: str) -> str:
    if not urlsplit(url).path.strip("/"):
        return f"{variable} must contain the bucket: https://HOST/BUCKET/PREFIX."
    if not (settings.AUDIT_BUCKET_KEY_ID and settings.AUDIT_BUCKET_SECRET):
        return f"{variable} requires SLIPSNISSE_AUDIT_BUCKET_KEY_ID and SLIPSNISSE_AUDIT_BUCKET_SECRET."
    return ""


def _find_secret_problem(secret: str) -> str:
    try:
        if secret:
            decode_webhook_key(secret)
    except ConfigInvalid as error:
        return f"SLIPSNISSE_AUDIT_WEBHOOK_SECRET: {error.message} {error.remedy}"
    return ""


def _hand_over_seals(
    name: str, url: str, hand_over: Callable[[str, SealLine], Awaitable[None]]
) -> int:
    if problem := check_sink_settings(name, url):
        raise ConfigInvalid(problem, remedy="Correct the setting, then restart the site.")
    stand = _load_delivery_mark(name, url)
    until = time.monotonic() + ROUND_SECONDS
    done = 0
    for each in AuditSeal.objects.filter(number__gt=stand.value).order_by("number")[:AT_ONCE]:
        if done and time.monotonic() >= until:
            break
        asyncio.run(
            _run_with_timeout(hand_over(url, SealLine(each.number, format_seal_line(each))))
        )
        Figure.objects.filter(pk=stand.pk, value__lt=each.number).update(value=each.number)
        done += 1
    return done


async def _run_with_timeout(work: Awaitable[None]) -> None:
    async with asyncio.timeout(SECONDS):
        await work


def _load_delivery_mark(name: str, url: str) -> Figure:
    """Which seal this place has got last; another address is another place, and lacks them all."""
    return Figure.objects.get_or_create(name=f"audit.{name}", labels=_make_labels(url))[0]


def _make_labels(url: str) -> str:
    return json.dumps({"place": compute_keyed_digest("place of seals", url)[:16]})


async def _post(url: str, seal: SealLine) -> None:
    body = seal.text.encode()
    secret = settings.AUDIT_WEBHOOK_SECRET
    message = f"seal-{seal.number}"
    signed = (
        build_webhook_headers(message=message, seconds=int(time.time()), body=body, secret=secret)
        if secret
        else {}
    )
    headers = {"Content-Type": "application/json", "webhook-id": message, **signed}
    answer = await _send_request("POST", url, body, headers)
    if not 200 <= answer.status < 300:
        raise NotKept(f"it answered HTTP {answer.status}")


async def _put(url: str, seal: SealLine) -> None:
    body = seal.text.encode()
    where = f"{url.rstrip('/')}/{seal.number:010}.json"
    parts = urlsplit(where)
    where = f"{parts.scheme}://{parts.netloc}{sigv4.encode_path(*parts.path.split('/'))}"
    headers = {"Content-Type": "application/json", "If-None-Match": "*"}
    answer = await _send_request("PUT", where, body, _sign_headers("PUT", where, body, headers))
    if answer.status == 412:
        await _check_existing_object(where, body, seal.number)
    elif not 200 <= answer.status < 300:
        raise NotKept(f"it answered HTTP {answer.status}")


async def _check_existing_object(where: str, body: bytes, number: int) -> None:
    """An object of this number is there: our own, whose answer was lost, or something else. Raises
    NotKept for that."""
    answer = await _send_request(
        "GET", where, None, _sign_headers("GET", where, b"", {}), _ANSWER_BYTES
    )
    if answer.status in (401, 403):
        log.warning(
            "audit.kept_unseen",
            seal=number,
            why="an object with this number exists, but the site cannot read it",
        )
    elif answer.status != 200 or answer.body != body:
        raise NotKept(f"another object is stored in the place of checkpoint {number}")


def _sign_headers(method: str, url: str, body: bytes, headers: dict[str, str]) -> dict[str, str]:
    keys = sigv4.SigningKeys(
        settings.AUDIT_BUCKET_KEY_ID, settings.AUDIT_BUCKET_SECRET, settings.AUDIT_BUCKET_REGION
    )
    return sigv4.sign_request(method, url, body, headers, keys=keys, now=datetime.now(UTC))


async def _send_request(
    method: str, url: str, body: bytes | None, headers: dict[str, str], read: int = 0
) -> single_request.HttpAnswer:
    networks = tuple(settings.AUDIT_NETWORKS)
    return await single_request.send_single_request(
        method,
        url,
        body,
        headers,
        networks=networks,
        connect_seconds=SECONDS / 2,
        answer_bytes=read,
    )
