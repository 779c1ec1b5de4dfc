"""One guarded request and its answer, for senders that keep no connection: notifications, and seals
kept outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcpregistry.domain.servers.target import ServerLimits, ServerTarget


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A receiver's status, its headers by their names in small letters, and the beginning of its
    body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def send_single_request(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    networks: tuple[str, ...],
    connect_seconds: float,
    answer_bytes: int = 0,
) -> HttpAnswer:
    """No redirect is followed, and no more of the answer is read than asked for.

    ``networks``: private ones that may be reached. Raises DownstreamError, or OutboundRefused for
    any other address.
    """
    from mcpregistry.downstream.http_client.client import (  # brings aiohttp along
        Outbound,
        RequestAttempt,
    )

    target = ServerTarget(
        server_id=0,
        slug="",
        revision=0,
        transport="http",
        url=url,
        allowed_networks=networks,
        limits=ServerLimits(connect_timeout=connect_seconds),
    )
    async with (
        Outbound(target) as outbound,
        outbound.send(method, url, headers=headers, data=body, attempt=RequestAttempt()) as reply,
    ):
        read = await reply.read_body(answer_bytes) if answer_bytes else b""
        return HttpAnswer(
            reply.status, {name.lower(): value for name, value in reply.headers.items()}, read
        )
