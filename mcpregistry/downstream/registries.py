"""Asks an MCP registry for its list, page by page, believing nothing: sizes, times, pages and
redirects are bounded.

Source: MCP Registry API v0.1, ``GET /v0.1/servers``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from mcpregistry.domain.errors import (
    AuthFailed,
    DownstreamError,
    OutboundRefused,
    ProtocolError,
    ResourceLimit,
    TimedOut,
)
from mcpregistry.downstream.http_client import single_request

MOST_BYTES = 4 * 1024 * 1024
MOST_ENTRIES = 100  # the API's own upper bound
SECONDS = 30.0
_LONGEST_CURSOR = 2_000
_CONNECT_SECONDS = 10.0
_MINE = (
    "If you trust this registry, add its network to “Allowed networks” on the page of the registry."
)
_REMEDY = "Check the address. An MCP registry must answer GET /v0.1/servers at this address."


@dataclass(frozen=True, slots=True)
class RegistryPage:
    """One page: entries as they came, and the cursor of the next; empty where it is the last."""

    entries: list[Any]
    cursor: str


async def fetch_page(
    base_url: str,
    query: Mapping[str, str],
    networks: tuple[str, ...],
    seconds: float = SECONDS,
    token: str = "",
) -> RegistryPage:
    """Ask for one page, with the registry's own token. No redirect is followed, so it goes nowhere
    else.

    Raises DownstreamError (OutboundRefused for a private address) with a remedy.
    """
    headers = {"Accept": "application/json"} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    url = f"{base_url}/v0.1/servers?{urlencode(query)}"
    try:
        async with asyncio.timeout(seconds):
            answer = await single_request.send_single_request(
                "GET",
                url,
                None,
                headers,
                networks=networks,
                connect_seconds=_CONNECT_SECONDS,
                answer_bytes=MOST_BYTES,
            )
    except OutboundRefused as error:
        raise OutboundRefused(
            "The registry's IP address is private or reserved.", remedy=_MINE
        ) from error
    except TimeoutError as error:
        raise TimedOut(
            f"The registry did not answer within {seconds:g} s.", remedy="Try again later."
        ) from error
    except ResourceLimit as error:
        raise ResourceLimit(
            "A page of the registry is larger than 4 MiB.",
            remedy="Contact the registry's maintainer.",
        ) from error
    if answer.status != 200:
        raise _make_refusal(answer.status)
    return _parse_page(answer.body)


def _make_refusal(status: int) -> DownstreamError:
    if 300 <= status < 400:
        return ProtocolError(
            "The registry redirects to another address. Redirects are not followed.",
            remedy="Enter the address to which the registry redirects.",
        )
    if status in (401, 403):
        return AuthFailed(
            f"The registry denies access (HTTP {status}).",
            remedy="Enter a valid token on the registry's page.",
        )
    if status == 429:
        return ProtocolError(
            "The registry received too many requests (HTTP 429).", remedy="Try again in an hour."
        )
    return ProtocolError(f"The registry answered HTTP {status}.", remedy=_REMEDY)


def _parse_page(body: bytes) -> RegistryPage:
    try:
        read = json.loads(body)
        entries = read["servers"]
        metadata = read.get("metadata") or {}
        cursor = metadata.get("nextCursor") or ""
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(
            "The registry's answer is not a list of servers.", remedy=_REMEDY
        ) from error
    if (
        not isinstance(entries, list)
        or not isinstance(cursor, str)
        or len(cursor) > _LONGEST_CURSOR
    ):
        raise ProtocolError("The registry's answer is not a list of servers.", remedy=_REMEDY)
    if len(entries) > MOST_ENTRIES:
        raise ResourceLimit(
            f"The registry returned more than {MOST_ENTRIES} entries on one page.", remedy=_REMEDY
        )
    if cursor and not entries:
        raise ProtocolError(
            "The registry returned an empty page, but announced another page.", remedy=_REMEDY
        )
    return RegistryPage(entries, cursor)
