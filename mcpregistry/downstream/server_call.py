"""One call of a server's tool, prompt or resource: the value that travels from the pipeline to the
connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mcpregistry.domain.calls.forwarding import NOTHING, Forwarding
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.servers.sessions import EVERYBODY
from mcpregistry.downstream.transports.server_request import ProgressCallback

OnLog = Callable[[Mapping[str, Any]], None]
OfferKey = tuple[str, str]  # kind and name


class ServerCall(msgspec.Struct, frozen=True):
    """What to call at which server, on whose connection, and who hears of it.

    * ``name`` is the server's own name of the tool. ``arguments`` is a JSON object, which is sent
      as it is.
    * ``revision`` and ``definition`` (a hash) are what was decided on. The call is sent only to a
      server that still has both. ``granted_by`` is the offer that has this definition, where it is
      not the called one: a tool grants a resource that its result links to.
    * ``session`` names the connection, ``caller`` the session of the host in any case. ``asks`` are
      the kinds of questions that this host can answer in any of its calls. None: as ``host`` says.
    * ``timeout`` in seconds spans queueing, connecting and the answer. None: the server's own
      limit. 0: no limit.
    * The callbacks run on the event loop and must not block. ``on_sent`` is called once bytes may
      have left.
    """

    server_id: int
    name: str
    arguments: bytes = b"{}"
    kind: str = TOOL
    session: str = EVERYBODY
    caller: str = ""
    host: Forwarding = NOTHING
    asks: frozenset[str] | None = None
    revision: int | None = None
    definition: str | None = None
    granted_by: OfferKey | None = None
    idempotent: bool = False
    meta: Mapping[str, Any] | None = None
    timeout: float | None = None
    max_result_bytes: int | None = None
    on_progress: ProgressCallback | None = None
    on_sent: Callable[[], None] | None = None
    on_log: OnLog | None = None

    @property
    def approved_offer(self) -> OfferKey:
        """The kind and name of the offer that ``definition`` belongs to."""
        return self.granted_by or (self.kind, self.name)
