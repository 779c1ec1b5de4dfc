"""Which hosts have made calls on one connection, for what its server says outside of a call's own
stream.

On a pipe nothing tells which call a log line or a question belongs to. It may come long after its
call has ended, so the call that is out at that moment proves nothing once a second host has used
the connection. Until the connection is closed, such messages then belong to nobody. If one host
alone uses it, they are for that host, whichever of its calls they belong to.
"""

from __future__ import annotations

from dataclasses import replace

from mcpregistry.domain.calls.forwarding import NOTHING, Forwarding
from mcpregistry.domain.servers.sessions import STDIO, is_of_one_host, parse_session_name


class Callers:
    """The hosts that have used a connection. Where it belongs to one session, ``shared`` is False
    and there is one host."""

    def __init__(self, *, shared: bool = True) -> None:
        self._shared = shared
        self._first: str | None = None
        self._one_host = False
        self.several = False
        self._host = NOTHING  # of the last call whose host can be reached outside of its calls

    @property
    def alone(self) -> bool:
        """Whether every call on this connection certainly came from the same host."""
        return self._one_host and not self.several

    @property
    def exclusive(self) -> bool:
        """Whether nobody else can use this connection: it is a session's own, or this process
        serves one host alone."""
        return self.alone and (not self._shared or parse_session_name(self._first or "") == STDIO)

    @property
    def host(self) -> Forwarding:
        """The only host on this connection, as its last call described it; NOTHING if there may be
        others."""
        return self._host if self.alone else NOTHING

    def is_only(self, caller: str) -> bool:
        """Whether the connection is exclusively this host's."""
        return self.exclusive and caller == self._first

    def note(self, caller: str, host: Forwarding = NOTHING) -> None:
        """A host makes a call. Say so before the call is sent."""
        if host.channel is not None:
            self._host = replace(host, ask=None)  # which belongs to this call
        if self._first is None:
            self._first = caller
            self._one_host = is_of_one_host(caller)
        elif caller != self._first:
            self._one_host = False
            self.several = self._shared
