"""Event streams whose answer was read before they ended: the connection serves again once they do.

A server sends the end of its stream apart from the answer, moments later. Whoever leaves in between
closes the connection, and the next call pays for another one, with TLS for several journeys. Nobody
waits for the end: it is noticed when it comes.

Invariants:
* A stream that goes on is closed after ``SECONDS``; beyond ``MOST`` of one server at once, at once.
* Of what still comes no more is held than aiohttp's own buffer takes, which then stops reading.
"""

from __future__ import annotations

import asyncio
from functools import partial

import aiohttp

SECONDS = 1.0
MOST = 32


class DrainingStreams:
    """Those of one server, within one loop."""

    def __init__(self) -> None:
        self._waiting: dict[aiohttp.ClientResponse, asyncio.TimerHandle] = {}

    def add_stream(self, response: aiohttp.ClientResponse) -> None:
        """Give its connection back when the stream ends, or close it in time."""
        if len(self._waiting) >= MOST:
            response.close()
            return
        self._waiting[response] = asyncio.get_running_loop().call_later(
            SECONDS, self._give_up, response
        )
        # aiohttp itself has given the connection back by then
        response.content.on_eof(partial(self._forget_stream, response))

    def close(self) -> None:
        """Wait for none any longer."""
        for response in list(self._waiting):
            self._forget_stream(response)
            response.close()

    def _forget_stream(self, response: aiohttp.ClientResponse) -> None:
        if timer := self._waiting.pop(response, None):
            timer.cancel()

    def _give_up(self, response: aiohttp.ClientResponse) -> None:
        del self._waiting[response]
        response.close()
