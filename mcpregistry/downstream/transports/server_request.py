"""One request of ours to a server, on whatever transport, and the clock that bounds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

ProgressCallback = Callable[[float, float | None, str | None], None]


class PausableClock:
    """Stops a call's clock while people are asked. Whoever runs the clock says how: ``pause`` and
    ``resume``."""

    def __init__(self) -> None:
        self.pause: Callable[[], object] = _do_nothing
        self.resume: Callable[[], object] = _do_nothing
        self._open = 0

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """Around one question. Afterwards the call has its whole time again: its server lives."""
        self._open += 1
        self.pause()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.resume()


def _do_nothing() -> None:
    return


class ServerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of ours. ``params`` may hold ``msgspec.Raw``: those bytes are sent untouched.

    ``timeout`` in seconds, None waits for ever. ``on_sent`` is called once bytes may have left us.
    ``max_bytes`` bounds this reply below the wire's own limit. ``headers`` are for HTTP only.
    ``on_question`` makes the answer to what the server asks on this request's own stream;
    ``patience`` stops the clock meanwhile.
    """

    method: str
    params: Mapping[str, Any]
    timeout: float | None = None
    on_progress: ProgressCallback | None = None
    on_sent: Callable[[], None] | None = None
    on_log: Callable[[Mapping[str, Any]], None] | None = None
    max_bytes: int | None = None
    headers: Mapping[str, str] | None = None
    on_question: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]] | None = None
    patience: PausableClock | None = None
