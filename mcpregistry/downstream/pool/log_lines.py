"""What one server says in log lines: whose each is, without its secrets, and never so many that
calls suffer.

A line that comes in a call's own stream (HTTP) is that call's. On a wire that all calls share it is
that of the only request that is out, if all calls on the connection were made by one host. If that
host has several calls out, the line is sent with the newest; if it has none out, outside of its
calls. Otherwise it may belong to another call, also to one that has ended, and only the operator
sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from mcp_types import LOG_LEVEL_META_KEY

from mcpregistry.domain.calls.loglines import (
    find_lowest_level,
    format_log_line,
    read_log_line,
    shorten_log_line,
)
from mcpregistry.domain.errors import DownstreamError
from mcpregistry.domain.offer_kinds import LOGGING
from mcpregistry.domain.text.display import number_of
from mcpregistry.domain.text.redaction import Redactor
from mcpregistry.downstream.pool.callers import Callers
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.server_call import OnLog

# lines of one server that are looked at
BURST = 200
PER_SECOND = 50
# lines that the operator sees, and how often they are told
KEPT = 100
TELL_SECONDS = 2.0
_SET_SECONDS = 2.0  # for an older server to take a level, while a call waits
# seconds that an older server speaks at a level after the last call that asked for it
_ASKED_FOR = 600.0


class RequestSender(Protocol):
    """Sends one request that is no call: ``Connection.ask``."""

    async def __call__(
        self, method: str, params: dict[str, Any], timeout: float | None = None
    ) -> dict[str, Any]:
        """The raw result. Raises DownstreamError."""


class LogLines:
    """The lines of one connection. ``tell`` takes the newest of them as text for the operator."""

    def __init__(
        self, redactor: Redactor, callers: Callers | None = None, server: str = ""
    ) -> None:
        self._redactor = redactor
        self._server = server
        self._callers = callers or Callers()
        self.tell: Callable[[str], None] | None = None
        self._out: list[OnLog | None] = []  # of each request that is out who hears of it
        self._recent: deque[str] = deque(maxlen=KEPT)
        self._left = float(BURST)
        self._at = time.monotonic()
        self._dropped = 0
        self._telling: asyncio.TimerHandle | None = None
        self._asked: dict[str, float] = {}  # by level, when a call last asked for it
        self._level = ""  # what an older server was told

    def begin(self, on_log: OnLog | None) -> None:
        """A request goes out; pair it with ``end``."""
        self._out.append(on_log)

    def end(self, on_log: OnLog | None) -> None:
        """It is over: lines that come later are not its own."""
        self._out.remove(on_log)

    def handle_line(self, params: object, own: OnLog | None = None) -> None:
        """One notification; ``own``: it came in this call's own stream. Never raises, costs little
        beyond the rate."""
        if not self._take_from_rate():
            self._dropped += 1
            return
        if (line := read_log_line(params)) is None:
            return
        line = shorten_log_line(self._redactor.clean(line)[0] if self._redactor else line)
        listening = [on_log for on_log in self._out if on_log is not None]
        on_log = own or (listening[-1] if listening and self._is_for_one_host() else None)
        if on_log is not None:
            on_log(line)
        elif not listening and (channel := self._callers.host.channel) is not None:
            channel.log(self._server, line)
        self._recent.append(format_log_line(line))
        if self._telling is None and self.tell is not None:
            self._telling = asyncio.get_running_loop().call_later(TELL_SECONDS, self.report_lines)

    def _is_for_one_host(self) -> bool:
        if len(self._out) == 1:
            return not self._callers.several
        return self._callers.alone

    def report_lines(self) -> None:
        """Tell the operator what is new."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
            if self.tell is not None:
                more = (
                    [
                        f"({number_of(self._dropped, 'more line was', 'more lines were')} left out, because the server sent lines too fast)"
                    ]
                    if self._dropped
                    else []
                )
                self.tell("\n".join([*self._recent, *more]))

    def _take_from_rate(self) -> bool:
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._at) * PER_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def request_level(
        self, wanted: str, server: Discovery | None, ask: RequestSender
    ) -> dict[str, Any]:
        """Before a call whose host wants this level: what its ``_meta`` says of it to a modern
        server. One of the older era is told the lowest level that calls have wanted lately. Never
        raises.
        """
        if server is None or LOGGING not in server.features:
            return {}
        if server.era == "modern":
            return {LOG_LEVEL_META_KEY: wanted}
        now = time.monotonic()
        self._asked[wanted] = now
        self._asked = {level: at for level, at in self._asked.items() if now - at < _ASKED_FOR}
        level = find_lowest_level(self._asked)
        if level != self._level:
            self._level = level
            with contextlib.suppress(DownstreamError):  # then it says what it says
                await ask("logging/setLevel", {"level": level}, timeout=_SET_SECONDS)
        return {}
