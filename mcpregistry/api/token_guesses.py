"""Slow down whoever guesses tokens. In memory of this process: it works with the broker gone.

A valid token is never slowed, nor looked at here. Only *different* wrong tokens count. A program
that repeats one expired token in a loop is no guesser, and must not lock out its neighbours at the
same address (on loopback, everybody is).
"""

from __future__ import annotations

import threading
from collections import OrderedDict

LIMIT = 20  # different wrong tokens of one address …
PERIOD = 60.0  # … in so many seconds
MAX_ADDRESSES = 10_000


class Guesses:
    """Wrong tokens by address. Times are seconds on the caller's monotonic clock."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, where: str, now: float) -> float:
        """Seconds until this address is heard again; 0 when it is welcome."""
        with self._lock:
            live = [at for at in self._seen.get(where, {}).values() if at > now - PERIOD]
        return sorted(live)[-LIMIT] + PERIOD - now if len(live) >= LIMIT else 0.0

    def remember_failure(self, where: str, token_hash: str, now: float) -> None:
        """Remember a wrong token (its hash); one that was wrong before does not count again."""
        with self._lock:
            seen = self._seen.pop(where, {})
            live = {digest: at for digest, at in seen.items() if at > now - PERIOD}
            self._seen[where] = live | {token_hash: now}
            while len(self._seen) > MAX_ADDRESSES:
                self._seen.popitem(last=False)
