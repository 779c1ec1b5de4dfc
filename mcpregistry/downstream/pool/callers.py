"""Which hosts have made calls on one connection, for what its server says outside of a call's own stream.

On a pipe nothing tells which call a log line or a question belongs to. It may come long after its call has ended, so the
call that is out at that moment proves nothing once a second host has used the connection. Until the connection is closed,
such messages then belong to nobody.
"""

from __future__ import annotations


class Callers:
    """The hosts that have used a connection. Where it belongs to one session, ``shared`` is False and there is one host."""

    def __init__(self, *, shared: bool = True) -> None:
        self._shared = shared
        self._first: str | None = None
        self.several = False

    def note(self, caller: str) -> None:
        """A host makes a call. Say so before the call is sent."""
        if self._first is None:
            self._first = caller
        elif self._shared and caller != self._first:
            self.several = True
