"""WebSocket: one JSON-RPC message per text frame, subprotocol ``mcp``. Not in the MCP
specification; the SDK dropped it, servers that speak it exist. The address is checked and pinned
like HTTP's."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
    PayloadTooBig,
)
from websockets.typing import Subprotocol

from mcpregistry.domain.errors import ConnectionFailed, DownstreamError, OutboundRefused, TimedOut
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.http_client.client import make_status_error
from mcpregistry.downstream.http_client.guard import Guard, check_url
from mcpregistry.downstream.limits import make_too_large_error
from mcpregistry.downstream.transports.wire import Wire

SEND_SECONDS = 30.0


class WebSocketChannel(Wire):
    """One WebSocket server as a wire."""

    def __init__(self, target: ServerTarget) -> None:
        super().__init__()
        self._target = target
        self._socket: ClientConnection | None = None
        self._reader_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect to the checked address. Raises DownstreamError."""
        try:
            self._socket = await self._connect()
        except InvalidStatus as error:
            status = error.response.status_code
            raise make_status_error(status) or ConnectionFailed(
                f"The server answered HTTP {status}.",
                remedy="Check the URL on the page of the server.",
            ) from error
        except (InvalidHandshake, InvalidURI, ConnectionClosed) as error:
            raise ConnectionFailed(
                "The server does not accept WebSocket connections at this URL.",
                remedy="Check the URL, or choose another transport.",
            ) from error
        except ssl.SSLError as error:
            raise ConnectionFailed(
                "The server's TLS certificate is not trusted.",
                remedy="Install a valid certificate at the server, from an authority that this machine trusts.",
            ) from error
        except TimeoutError as error:
            raise TimedOut(
                "The server did not accept the connection in time.",
                remedy="Check the URL, and that the server is running.",
            ) from error
        except OSError as error:
            raise ConnectionFailed(
                "The server cannot be reached.", remedy="Check the URL on the page of the server."
            ) from error
        self._reader_task = asyncio.create_task(self._read())

    async def _connect(self) -> ClientConnection:
        parts = urlsplit(check_url(self._target.url.replace("ws", "http", 1)))
        if parts.hostname is None:
            raise OutboundRefused(
                "The URL is not valid. It must be a ws or wss address without a user name, password or spaces.",
                remedy="Correct the URL.",
            )
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = await Guard(self._target.allowed_networks).resolve_addresses(
            parts.hostname, port
        )
        return await connect(
            self._target.url,
            host=addresses[0],  # checked: the name is not looked up again
            port=port,
            proxy=None,
            subprotocols=[Subprotocol("mcp")],
            additional_headers=dict(self._target.headers),
            compression=None,  # nothing to inflate, so no bombs
            max_size=self._target.limits.message_bytes,
            open_timeout=self._target.limits.connect_timeout,
            close_timeout=2.0,
        )

    async def close(self) -> None:
        """Close the socket; shielded, so that a cancelled owner leaves nothing open."""
        with anyio.CancelScope(shield=True):
            if self._socket is not None:
                await self._socket.close()
            if self._reader_task is not None:
                await asyncio.wait([self._reader_task])

    async def _read(self) -> None:
        assert self._socket is not None
        try:
            async for frame in self._socket:
                self.receive(frame.encode() if isinstance(frame, str) else frame)
        except ConnectionClosed as closed:
            self.fail(self._find_reason(closed))
        self.fail(ConnectionFailed("The server closed the connection.", sent=True))

    def _find_reason(self, closed: ConnectionClosed) -> DownstreamError:
        if isinstance(closed.__cause__, PayloadTooBig) or (
            closed.sent is not None and closed.sent.code == 1009
        ):
            return make_too_large_error(self._target.limits.message_bytes)
        return ConnectionFailed("The connection to the server was lost.", sent=True)

    async def transmit(self, data: bytes, on_sent: Callable[[], None] | None = None) -> None:
        """Send one text frame."""
        if self._socket is None or self.error is not None:
            raise ConnectionFailed("The connection to the server is closed.")
        if on_sent is not None:
            on_sent()
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._socket.send(data.decode())
        except ConnectionClosed as error:
            raise ConnectionFailed("The connection to the server is closed.", sent=True) from error
        except TimeoutError:
            raise TimedOut("The server does not read its input.", sent=True) from None
