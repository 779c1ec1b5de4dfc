"""Which host is told that a page of a URL elicitation is done with
(``notifications/elicitation/complete``): the one that got it."""

from __future__ import annotations

from collections.abc import Iterable

from mcpregistry.domain.calls.forwarding import HostChannel

MOST = 1_000  # pages of one connection that are not done with


class ElicitationPages:
    """The pages that the server of one connection has sent to hosts, by the id that it gave
    them."""

    def __init__(self) -> None:
        self._hosts: dict[str, tuple[str, HostChannel | None]] = {}

    def expect(self, ids: Iterable[str], caller: str, channel: HostChannel | None) -> None:
        """The host with this session is about to get these pages. An id that two hosts get is told
        to neither."""
        for each in ids:
            known = self._hosts.pop(each, None)
            shared = known is not None and known[0] != caller
            self._hosts[each] = ("", None) if shared else (caller, channel)
            if len(self._hosts) > MOST:
                del self._hosts[next(iter(self._hosts))]

    def complete(self, params: object) -> None:
        """The server says that a page is done with. Never raises."""
        found = params.get("elicitationId") if isinstance(params, dict) else None
        if not isinstance(found, str):
            return
        _, channel = self._hosts.pop(found, ("", None))
        if channel is not None:
            channel.complete(found)
