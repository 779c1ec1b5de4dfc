"""Which hosts have made calls on one connection, for what its server says outside of a call's own stream.

On a pipe nothing tells which call a log line or a question belongs to. It may come long after its call has ended, so the
call that is out at that moment proves nothing once a second host has used the connection. Until the connection is closed,
such messages then belong to nobody. If one host alone uses it, they are for that host, whichever of its calls they belong to.
"""

from __future__ import annotations

from mcpregistry.domain.servers.sessions import is_of_one_host


class Callers:
    """The hosts that have used a connection. Where it belongs to one session, ``shared`` is False and there is one host."""

    def __init__(self, *, shared: bool = True) -> None:
        self._shared = shared
        self._first: str | None = None
        self._one_host = False
        self.several = False

    @property
    def alone(self) -> bool:
        """Whether every call on this connection certainly came from the same host."""
        return self._one_host and not self.several

    def note(self, caller: str) -> None:
        """A host makes a call. Say so before the call is sent."""
        if self._first is None:
            self._first, self._one_host = caller, is_of_one_host(caller)
        elif caller != self._first:
            self._one_host = False
            self.several = self._shared
