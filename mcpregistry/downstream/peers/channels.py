"""Reaches a host from a process that does not serve it: the owner of its session's connection to a
server.

A server may send log lines and ask for folders between two calls of a host. The owner sends these
to the process that made the host's last call, which passes them to the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from mcpregistry.domain.calls.forwarding import Ask, Forwarding, HostChannel, HostUnansweredError
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.downstream.peers.client import exchange_frames
from mcpregistry.downstream.peers.connections import OwnerGoneError, PeerConnections
from mcpregistry.downstream.peers.messages import RelayedHost, RelayedWord

_MOST_WORDS = 200  # that wait for a host
_GONE = "The process that served this host has ended."


class Channels:
    """The channels of the hosts that this process serves, each with a name for the other
    processes."""

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[HostChannel, str] = WeakKeyDictionary()
        self._channels: WeakValueDictionary[str, HostChannel] = WeakValueDictionary()

    def get_name(self, channel: HostChannel | None) -> str:
        """Return the name of a channel; empty for None."""
        if channel is None:
            return ""
        if channel not in self._names:
            name = secrets.token_urlsafe(12)
            self._names[channel] = name
            self._channels[name] = channel
        return self._names[channel]

    async def deliver_word(self, word: RelayedWord) -> Any:
        """Pass a word of another process on to its host. Raises Unanswered, and TypeError for
        arguments that do not fit."""
        channel = self._channels.get(word.channel)
        if channel is None:
            raise HostUnansweredError(_GONE)
        if word.method == "ask":
            return await channel.ask(*word.arguments)
        (channel.log if word.method == "log" else channel.complete)(*word.arguments)
        return None


def unpack_host(told: RelayedHost, ask: Ask | None, connections: PeerConnections) -> Forwarding:
    """The host that another process has packed. Its questions go to ``ask``."""
    return Forwarding(
        told.capabilities,
        told.answers,
        ask=ask,
        rounds=told.rounds,
        log_level=told.log_level,
        channel=RemoteChannel(told.address, told.channel, connections) if told.channel else None,
    )


class RemoteChannel:
    """See ``HostChannel``. Its host is served by the process at ``address``."""

    def __init__(self, address: str, channel: str, connections: PeerConnections) -> None:
        self._address = address
        self._channel = channel
        self._connections = connections
        self._words: deque[RelayedWord] = deque(maxlen=_MOST_WORDS)
        self._sending: asyncio.Task[None] | None = None

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the host's answer to a question. Raises Unanswered."""
        try:
            answer = await self._exchange_word(
                RelayedWord(self._channel, "ask", [method, dict(params)])
            )
        except (OwnerGoneError, SlipsnisseError, ssl.SSLError):
            raise HostUnansweredError(_GONE) from None
        if not isinstance(answer, dict) or "result" not in answer:
            raise HostUnansweredError(str((answer or {}).get("unanswered", _GONE)))
        found: dict[str, Any] = answer["result"]
        return found

    def log(self, server: str, line: Mapping[str, Any]) -> None:
        """Send a log line of this server."""
        self._send(RelayedWord(self._channel, "log", [server, dict(line)]))

    def complete(self, elicitation_id: str) -> None:
        """Send ``notifications/elicitation/complete``."""
        self._send(RelayedWord(self._channel, "complete", [elicitation_id]))

    def _send(self, word: RelayedWord) -> None:
        self._words.append(word)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        # then its host has left as well
        with contextlib.suppress(OwnerGoneError, SlipsnisseError, ssl.SSLError):
            while self._words:
                await self._exchange_word(self._words.popleft())

    async def _exchange_word(self, word: RelayedWord) -> Any:
        return await exchange_frames(self._address, {"word": word}, self._connections)
