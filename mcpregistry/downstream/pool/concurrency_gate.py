"""How many calls may be at one server at the same time: a limit and a bounded, fair queue."""

from __future__ import annotations

import asyncio
from collections import deque

from mcpregistry.domain.errors import QueueFullError

QUEUE_PER_PLACE = 32


class Gate:
    """At most ``limit`` at once, first come first served, and a bounded queue behind."""

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._queue: deque[asyncio.Future[None]] = deque()
        self.inside = 0
        self.empty = asyncio.Event()
        self.empty.set()

    def enter_now(self) -> bool:
        """Take a free place, if there is one."""
        if self.inside >= self._limit:
            return False
        self.inside += 1
        self.empty.clear()
        return True

    async def enter(self) -> None:
        """Take a place, waiting for it if need be. Raises Busy when the queue is full."""
        if self.enter_now():
            return
        if len(self._queue) >= self._limit * QUEUE_PER_PLACE:
            raise QueueFullError(
                "Too many calls are waiting for this server.", remedy="Try again in a moment."
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn  # the one who leaves hands its place over, so ``inside`` stays as it is
        except asyncio.CancelledError:
            # Cancelled in the moment in which the place was handed over: it is ours already, so
            # pass it on.
            if turn.done() and not turn.cancelled():
                self.leave()
            else:
                self._queue.remove(turn)
            raise

    def leave(self) -> None:
        """Give the place back, to the first in the queue if somebody waits."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.inside -= 1
        if not self.inside:
            self.empty.set()
