"""Calls beyond an agent's rate, or refused by people a moment ago: each would be a durable row, so
a flood becomes two a minute.

The first is recorded as what it is. Those that follow within a minute are counted, their callers
are told the first one's id, and the last of them is recorded with the count when the minute is
over, or the process stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from mcpregistry.calls.call import Call

WINDOW = 60.0  # seconds


@dataclass(slots=True)
class _Flood:
    first: str  # the id of the call that was recorded
    timer: asyncio.TimerHandle
    more: int = 0
    last: Call | None = None


class RefusalFloods:
    """Those of one process. ``record(call, more, first)`` writes the last of ``more`` calls like
    ``first``."""

    def __init__(self, record: Callable[[Call, int, str], None]) -> None:
        self._record = record
        self._floods: dict[str, _Flood] = {}

    def count_repeat(self, call: Call, key: str) -> str | None:
        """The id of the recorded call that stands for this one, which is counted with it. None:
        record this one.

        ``key`` is what the calls of one flood have in common.
        """
        flood = self._floods.get(key)
        if flood is None:
            timer = asyncio.get_running_loop().call_later(WINDOW, self._record_flood, key)
            self._floods[key] = _Flood(call.id, timer)
            return None
        flood.more = flood.more + 1
        flood.last = call
        return flood.first

    def get_repeat_count(self, key: str) -> int:
        """How many calls of this flood were counted instead of recorded so far."""
        return self._floods[key].more if key in self._floods else 0

    def close(self) -> None:
        """Record what was counted so far."""
        for key in list(self._floods):
            self._record_flood(key)

    def _record_flood(self, key: str) -> None:
        flood = self._floods.pop(key)
        flood.timer.cancel()
        if flood.last is not None:
            self._record(flood.last, flood.more, flood.first)
