"""Bounds on the connections of a web process: the head of a request has its time, and an address
its number.

Bodies have theirs in ``request_guard.py``. Here stands what is over before the application hears of
a request, so it is the server's: uvicorn has no such bounds of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import Counter
from typing import Any

from django.conf import settings
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from controlplane.sandbox_guard import ClientConnection, attach

# from a connection, or a request's first byte on one that is kept, until its head is there
HEAD_SECONDS = 30.0
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_quiet = logging.getLogger("uvicorn.error.websocket")
_quiet.setLevel(logging.WARNING)
_open: Counter[str] = Counter()  # connections of this process by address


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's own, with a time for heads, and at most so many connections of one address; of this
    machine and of proxies (``FORWARDED_ALLOW_IPS``) as many as they like, since they stand for
    many.
    """

    _head_due: asyncio.TimerHandle | None = None
    _counted = ""
    _connection: ClientConnection | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection beyond its address's number is closed at once."""
        super().connection_made(transport)
        if self.client and self.server and self.server[1] is not None:
            self._connection = ClientConnection(self.client, (self.server[0], self.server[1]))
        peer = self.client[0] if self.client else ""
        if peer and not _stands_for_many(peer, self.config.forwarded_allow_ips):
            if _open[peer] >= settings.CONNECTIONS_PER_ADDRESS:
                transport.abort()
                return
            _open[peer] += 1
            self._counted = peer
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Its place is free again."""
        self._cancel_head_timer()
        _release(self._counted)
        self._counted = ""
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """From here on another protocol has the connection, and its place in the number of its
        address."""
        counted = self._counted
        self._counted = ""
        super().handle_websocket_upgrade()
        found = self.transport.get_protocol()
        if isinstance(found, PatientWebSocket):
            found.counted = counted
        else:
            _release(counted)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._wait_for_head()
        super().on_message_begin()
        if self._connection is not None:
            attach(self.scope, self._connection)

    def on_headers_complete(self) -> None:
        """The last byte of its head."""
        self._cancel_head_timer()
        super().on_headers_complete()

    def _wait_for_head(self) -> None:
        if self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_SECONDS, self._close_late)

    def _cancel_head_timer(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _close_late(self) -> None:
        self._head_due = None
        if not self.transport.is_closing():
            self.transport.write(_LATE)
            self.transport.close()


class PatientWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's own, but a stopping server leaves it to the application to end the conversation:
    uvicorn would cut off what is in flight, which over HTTP it waits for."""

    counted = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # uvicorn notes addresses with their query, where a careless host may have put a token
        self.logger = _quiet

    def connection_lost(self, exc: Exception | None) -> None:
        """Its place is free again."""
        _release(self.counted)
        self.counted = ""
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The application has heard of it already; what it does not end, the server's time for open
        requests ends."""
        if self.close_sent or not self.handshake_complete:
            super().shutdown()


def _release(counted: str) -> None:
    """One connection fewer of this address."""
    if counted:
        _open[counted] -= 1
        if not _open[counted]:
            del _open[counted]


def _stands_for_many(peer: str, proxies: str | list[str] | None) -> bool:
    words = proxies.split(",") if isinstance(proxies, str) else proxies or []
    trusted = [word.strip() for word in words]
    address = ipaddress.ip_address(peer)
    return address.is_loopback or "*" in trusted or any(_covers(word, address) for word in trusted)


def _covers(word: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False  # no address: uvicorn takes it for a name that only a unix socket has
