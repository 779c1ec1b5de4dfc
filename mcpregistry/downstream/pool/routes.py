"""Which connection a call uses at a server that supports both protocol versions, so that the server
can ask the call's host.

A tool that asks by a request of its own while the call waits (MCP 2025-11-25) cannot do so on a
connection of 2026-07-28, and a tool that asks with its result cannot do so on an older one. Nothing
that a server lists says which way a tool asks. So a call uses a connection of the version of its
host, as if the host were connected directly, until the tool has shown which way it asks. Hosts that
cannot be asked always use the shared connection.

* Server shared by everybody: the older connection is a second one, opened when it is first needed
  and closed when idle.
* Server shared by agent or session: there is only one connection, because it may have state. Its
  version is chosen when it opens.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_types import INTERNAL_ERROR
from msgspec.structs import replace

from mcpregistry.domain.calls.forwarding import Forwarding
from mcpregistry.domain.errors import DefinitionChanged, DownstreamError, InputNeeded, ToolRefused
from mcpregistry.domain.servers.sessions import EVERYBODY, OLDER
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.pool.connection import ServerConnection
from mcpregistry.downstream.pool.slot import ServerSlot, compute_seconds_left
from mcpregistry.downstream.pool.slot_requests import check_definition, register_opener
from mcpregistry.downstream.server_call import OfferKey, ServerCall

# after a server has refused the older handshake, or listed something else on it
RETRY_SECONDS = 120.0
# The words of the official SDKs for Python and TypeScript.
_CANNOT_ASK = (
    "no back-channel for server-initiated requests",
    "Server-to-client requests are not available on protocol",
)
_BAD_RESULT = ("Handler returned an invalid result", "which has no input_required vocabulary")
# of a result, what may be the words of an SDK
_LONGEST = 1_000
_MOST_PARTS = 3


@dataclass(slots=True)
class _Server:
    """What is known of one revision of a server."""

    revision: int
    modern: bool = False  # the shared connection is of 2026-07-28
    refused_until: float = 0.0  # monotonic time
    # definitions that the older connection does not have
    unlike: set[tuple[OfferKey, str]] = field(default_factory=set)
    older: set[OfferKey] = field(default_factory=set)  # tools that asked by a request, or tried to
    # tools that asked with their result, or tried to
    rounds: set[OfferKey] = field(default_factory=set)


class ConnectionRoutes:
    """The choices of one pool. ``slot_of`` gives the slot of a server's session; ``drop`` closes a
    slot and forgets it."""

    def __init__(
        self, slot_of: Callable[[int, str], ServerSlot], drop: Callable[[ServerSlot], None]
    ) -> None:
        self._slot_of = slot_of
        self._drop = drop
        self._servers: dict[int, _Server] = {}

    async def choose(
        self, slot: ServerSlot, call: ServerCall, deadline: float | None
    ) -> ServerSlot:
        """The slot for this call: ``slot``, whose target is loaded, or one with the older
        handshake, connected. Raises Busy."""
        assert slot.target is not None
        if slot.session and slot.alive and not slot.older:
            return slot
        server = self._get_server(slot.target)
        if not slot.older and (
            (call.approved_offer, call.definition) in server.unlike
            or not _is_older_wanted(server, slot, call)
        ):
            return slot
        with register_opener(slot, call):
            is_modern = bool(slot.session) or await _is_modern(server, slot, deadline)
        if not is_modern:
            return slot
        older = (
            slot if slot.session else self._get_second_slot(slot.server_id, slot.target.revision)
        )
        # it worked, and was lost a moment ago
        if older.older and older.refused_for and not older.alive:
            return slot
        with register_opener(older, call):
            is_usable = await self._is_usable(server, older, call, deadline)
        if is_usable:
            return older
        return await self._reopen_session(slot) if slot.session else slot

    async def _reopen_session(self, closed: ServerSlot) -> ServerSlot:
        """A new slot for the session whose older connection could not be used."""
        slot = self._slot_of(closed.server_id, closed.session)
        slot.bears = closed.bears
        slot.apps = closed.apps
        await _load(slot)
        return slot

    def _get_second_slot(self, server_id: int, revision: int) -> ServerSlot:
        """The slot of the older connection beside the shared one; one of another revision is
        closed."""
        slot = self._slot_of(server_id, OLDER)
        if slot.target is not None and slot.target.revision != revision:
            self._drop(slot)
            slot = self._slot_of(server_id, OLDER)
        return slot

    async def _is_usable(
        self,
        server: _Server,
        older: ServerSlot,
        call: ServerCall,
        deadline: float | None,
    ) -> bool:
        """Whether the server accepts the older handshake, and lists there what was approved."""
        is_new = not older.alive
        older.older = True
        try:
            await _load(older)
            async with asyncio.timeout(compute_seconds_left(deadline)):
                connection = await older.ensure_connected()
                if is_new or older.session == OLDER:
                    await check_definition(connection, replace(call, revision=None))
        except DefinitionChanged:
            server.unlike.add((call.approved_offer, call.definition or ""))
            if older.session != OLDER:
                self._drop(older)
            return False
        except (DownstreamError, TimeoutError):
            server.refused_until = time.monotonic() + RETRY_SECONDS
            self._drop(older)
            return False
        return True

    def is_asking_by_request(self, server_id: int, key: OfferKey) -> bool:
        """Whether this tool is known to need a connection of the older version to ask."""
        server = self._servers.get(server_id)
        return server is not None and key in server.older and key not in server.rounds

    def wrap_host(self, slot: ServerSlot, call: ServerCall) -> Forwarding:
        """The host of a call through ``slot``. A question to it shows that the tool asks by a
        request."""
        ask = call.host.ask
        if not slot.older or ask is None or slot.target is None:
            return call.host
        known = self._get_server(slot.target).older

        async def note_and_ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            known.add(call.approved_offer)
            return await ask(method, params)

        return dataclasses.replace(call.host, ask=note_and_ask)

    def note_result(
        self, connection: ServerConnection, call: ServerCall, result: Mapping[str, Any]
    ) -> None:
        """Learn from a result which way its tool asks."""
        if connection.era != "modern" or not connection.target.questions:
            return
        server = self._get_server(connection.target)
        if result.get("resultType") == "input_required":
            server.rounds.add(call.approved_offer)
        elif _has_words(result, _CANNOT_ASK):
            server.older.add(call.approved_offer)

    def note_refusal(
        self,
        slot: ServerSlot,
        connection: ServerConnection,
        call: ServerCall,
        error: ToolRefused,
    ) -> ToolRefused:
        """The error for the caller. If the tool could not ask, the next call uses the other
        connection, and the error says so."""
        server = self._get_server(connection.target)
        if connection.era == "modern" and any(words in error.message for words in _CANNOT_ASK):
            server.older.add(call.approved_offer)
        elif (
            slot.older
            and error.rpc_code == INTERNAL_ERROR
            and any(words in error.message for words in _BAD_RESULT)
        ):
            server.rounds.add(call.approved_offer)
        else:
            return error
        if call.host.ask is None or not call.host.questions:
            return error
        is_fixed = connection.target.protocol != "auto" and not slot.older
        is_open = (
            slot.session in (EVERYBODY, OLDER)
            and not is_fixed
            and time.monotonic() >= server.refused_until
        )
        return _make_other_way_error("newer" if slot.older else "older", is_open=is_open)

    def _get_server(self, target: ServerTarget) -> _Server:
        server = self._servers.get(target.server_id)
        if server is None or server.revision != target.revision:
            server = _Server(target.revision)
            self._servers[target.server_id] = server
        return server


async def _load(slot: ServerSlot) -> None:
    """Read its target; another call that fails in the meantime must not have the slot forgotten."""
    slot.expected += 1
    try:
        await slot.load()
    finally:
        slot.expected -= 1


def _is_older_wanted(server: _Server, slot: ServerSlot, call: ServerCall) -> bool:
    target = slot.target
    host = call.host
    if target is None or target.protocol != "auto" or target.connect == "manual":
        return False
    if (
        host.ask is None
        or not host.questions
        or host.answers
        or time.monotonic() < server.refused_until
    ):
        return False
    # One connection must do for all tools of a session.
    older = bool(server.older)
    rounds = bool(server.rounds)
    if not slot.session:
        older = call.approved_offer in server.older
        rounds = call.approved_offer in server.rounds
    return older if older != rounds else not host.rounds


async def _is_modern(server: _Server, shared: ServerSlot, deadline: float | None) -> bool:
    """Whether the shared connection speaks the newer version; opened if that is not known. Raises
    DownstreamError."""
    connection = shared.connection
    if connection is None or not connection.usable:
        if server.modern or (shared.target is not None and shared.target.last_era == "modern"):
            return True
        try:
            async with asyncio.timeout(compute_seconds_left(deadline)):
                connection = await shared.ensure_connected()
        except TimeoutError:
            return False
        except DownstreamError as error:
            shared.report_failure(error)
            raise
    server.modern = connection.era == "modern"
    return server.modern


def _has_words(result: Mapping[str, Any], words: tuple[str, ...]) -> bool:
    parts = result.get("content")
    texts = (
        [part.get("text") for part in parts[:_MOST_PARTS] if isinstance(part, dict)]
        if isinstance(parts, list)
        else []
    )
    return any(
        isinstance(text, str) and len(text) <= _LONGEST and any(each in text for each in words)
        for text in texts
    )


def _make_other_way_error(version: str, *, is_open: bool) -> InputNeeded:
    known = "2025-11-25 and earlier" if version == "older" else "2026-07-28"
    remedy = f"Ask the operator to set “Protocol” to “{known}” on the page of the server."
    if is_open:
        remedy = "Check whether this call had an effect, then call again: in the next call, the tool can ask."
    return InputNeeded(
        f"The tool has a question for the host. The tool can ask it only with the protocol version {known}.",
        remedy=remedy,
    )
