"""Accepts connections over TLS. Connections that do not finish the handshake are bounded in number
and time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

import structlog

log = structlog.get_logger(__name__)

MOST_HANDSHAKES = 128  # at the same time
_PAUSE = 1.0  # seconds, while too many files are open


class TLSListener:
    """``accept`` gets the streams of each connection after its handshake. Beyond
    ``MOST_HANDSHAKES``, the oldest one is given up."""

    def __init__(
        self,
        listening: socket.socket,
        accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any],
        context: ssl.SSLContext,
        *,
        handshake_seconds: float,
        close_seconds: float,
    ) -> None:
        self._listening = listening
        self._accept = accept
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._close_seconds = close_seconds
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._accepting = asyncio.ensure_future(self._accept_all())

    def close(self) -> None:
        """Stop listening. Connections whose handshake has ended stay open."""
        self._accepting.cancel()
        for task in list(self._handshakes):
            task.cancel()

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        with self._listening:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listening)
                except OSError as error:
                    log.warning("peer.not_accepted", error=error.strerror)
                    await asyncio.sleep(_PAUSE)
                    continue
                self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        if len(self._handshakes) >= MOST_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        task = asyncio.ensure_future(self._shake_hands(connection))
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader()
        with contextlib.suppress(OSError):  # among others TimeoutError and ssl.SSLError
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader, self._accept),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_seconds,
                ssl_shutdown_timeout=self._close_seconds,
            )
