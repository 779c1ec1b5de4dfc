"""Progress on its way to the host: in order, never holding up the server, and never silent for
long.

Hosts give up on a call that shows no progress (one after 60 s, one after 180 s, one after 300 s),
and bytes that merely keep the connection open do not count. So a host that gave a progress token
hears from us when the server has been quiet for a while.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

log = structlog.get_logger(__name__)

Send = Callable[[float, float | None, str | None], Awaitable[None]]

SILENCE = 15.0  # seconds
_BACKLOG = 100  # a host that reads slowly misses the oldest
# the protocol wants every value higher than the last; ours must not get ahead of the server's
_STEP = 1e-6


class HostProgress:
    """Call it with (progress, total or None, message or None) from the event loop's thread."""

    def __init__(self, send: Send, *, silence: float = SILENCE) -> None:
        self._send = send
        self._silence = silence
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=_BACKLOG)
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()
        self._last: tuple[float, float | None] | None = None
        self._began = time.monotonic()

    def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Note progress; it is sent as soon as the host's connection takes it."""
        self._waiting.append((progress, total, message))
        self._news.set()

    async def flush(self) -> None:
        """Send what was reported and not sent yet."""
        async with self._sending:
            self._news.clear()
            while self._waiting:
                progress, total, message = self._waiting.popleft()
                if self._last is not None and progress <= self._last[0]:
                    progress = _compute_next_value(
                        self._last[0]
                    )  # what we said ourselves came first
                self._last = (progress, total)
                try:
                    await self._send(progress, total, message)
                except Exception:  # a hint that does not arrive must not cost the call its answer
                    log.debug("progress.not_sent", exc_info=True)

    async def run(self) -> None:
        """Send what is reported, and a sign of life after each silence, until it is cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._silence):
                    await self._news.wait()
            except TimeoutError:
                progress, total = self._last or (0.0, None)
                self(
                    progress + _STEP,
                    total,
                    f"Still running after {time.monotonic() - self._began:.0f} s.",
                )
            await self.flush()


def _compute_next_value(value: float) -> float:
    return max(value + _STEP, math.nextafter(value, math.inf))


@asynccontextmanager
async def pass_progress(send: Send, *, silence: float = SILENCE) -> AsyncIterator[HostProgress]:
    """What was reported inside has been sent when the block ends well."""
    progress = HostProgress(send, silence=silence)
    running = asyncio.ensure_future(progress.run())
    try:
        yield progress
        await progress.flush()
    finally:
        running.cancel()
