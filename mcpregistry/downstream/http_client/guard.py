"""Which addresses a target may be reached at: names and URLs are checked before, sockets as they
are made.

A name is resolved once per connection, all its addresses are checked, and the connection goes to
one of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from mcpregistry.domain.errors import (
    ConnectionFailed,
    OutboundRefused,
)
from mcpregistry.downstream.http_client.addresses import is_allowed, parse_address, parse_networks

ALLOW_REMEDY = (
    "If you trust this address, add its network to “Allowed networks” on the page of the server."
)
Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve_name(host: str, port: int) -> list[str]:
    """The addresses of a host, by the system's resolver, in a thread. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class CheckedResolver(AbstractResolver):
    """Resolves a name and refuses it if any of its addresses is not allowed."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """aiohttp's hook: the checked addresses of a host."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._guard.resolve_addresses(host, port)
        ]

    async def close(self) -> None:
        """aiohttp's hook; there is nothing to close."""
        return


class Guard:
    """The address rules of one target."""

    def __init__(self, allowed_networks: tuple[str, ...], resolve: Resolve = resolve_name) -> None:
        self._networks = parse_networks(allowed_networks)
        self._resolve = resolve

    async def resolve_addresses(self, host: str, port: int) -> list[str]:
        """The checked addresses of a host. Raises OutboundRefused or ConnectionFailed (nothing
        sent)."""
        if parse_address(host) is not None:
            found = [host.strip("[]")]
        else:
            try:
                found = await self._resolve(host, port)
            except (OSError, UnicodeError) as error:
                raise ConnectionFailed(
                    "The server's host name cannot be resolved.",
                    remedy="Check the host name in the URL, and the DNS of this machine.",
                ) from error
        for address in found:
            self.check_address(address)
        return found

    def check_address(self, address: str) -> None:
        """Raises OutboundRefused for an address that is not allowed."""
        parsed = parse_address(address)
        if parsed is None or not is_allowed(parsed, self._networks):
            raise OutboundRefused(
                "The server's IP address is private or reserved.", remedy=ALLOW_REMEDY
            )

    def make_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """The last gate: the address that is really connected to."""
        family, kind, protocol, _, address = info
        self.check_address(str(address[0]))
        return socket.socket(family=family, type=kind, proto=protocol)


def check_url(url: str) -> str:
    """The URL if it is plain http(s) without credentials. Raises OutboundRefused."""
    refused = OutboundRefused(
        "The URL is not valid. It must be an http or https address without a user name, password or spaces.",
        remedy="Correct the URL.",
    )
    if any(ord(character) <= 32 or character == "\\" for character in url):
        raise refused
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise refused from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or "@" in parts.netloc
        or port == 0
    ):
        raise refused
    return url


def get_origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port; two URLs with the same are of one origin."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
