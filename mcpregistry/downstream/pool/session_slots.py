"""Own connections of agents and host sessions, to servers that are not shared by everybody.

Each is a slot like the one that everybody shares: own owner task, own process, own gate, own
breaker, so that what happens to one is no other's trouble. One that has ended (idle, closed, dead)
is forgotten, unless its breaker still counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from mcpregistry.domain.servers.health import State
from mcpregistry.domain.servers.sessions import OLDER, parse_session_name
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.events import ConnectionEvent, EventKind
from mcpregistry.downstream.pool.slot import ServerSlot

OnEvent = Callable[[ConnectionEvent], None]
# a server, a session, and whether its connection was lost
OnSessionOver = Callable[[int, str, bool], None]
MakeSlot = Callable[[int, str, OnEvent, Callable[[ServerSlot], None]], ServerSlot]


class SessionSlots:
    """The own slots of one pool, by server and session. ``shared`` gives the state of everybody's
    slot."""

    def __init__(
        self,
        make: MakeSlot,
        on_event: Callable[[ConnectionEvent], None],
        shared: Callable[[int], State | None],
        on_over: OnSessionOver,
    ) -> None:
        self._make = make
        self._on_event = on_event
        self._shared = shared
        self._on_over = on_over
        self._slots: defaultdict[int, dict[str, ServerSlot]] = defaultdict(dict)
        self._told: dict[int, Discovery] = {}
        # to be looked at again when their breaker lets them be tried
        self._later: set[ServerSlot] = set()

    def get_slot(self, server_id: int, session: str) -> ServerSlot:
        """The session's slot at this server; a new one if there is none."""
        slots = self._slots[server_id]
        if session not in slots:
            slots[session] = self._make(
                server_id, session, self._forward_event, self._handle_closed
            )
        return slots[session]

    def list_server_slots(self, server_id: int) -> list[ServerSlot]:
        """Every session's slot at this server."""
        return list(self._slots.get(server_id, {}).values())

    def list_slots(self) -> list[ServerSlot]:
        """Every slot."""
        return [slot for slots in self._slots.values() for slot in slots.values()]

    def list_servers(self) -> list[int]:
        """Servers that have sessions here."""
        return [server_id for server_id, slots in self._slots.items() if slots]

    def count_open(self, server_id: int) -> int:
        """How many hold a connection."""
        return sum(
            slot.alive and slot.session != OLDER for slot in self._slots.get(server_id, {}).values()
        )

    def list_open(self) -> list[tuple[str, int]]:
        """(session, server) of those that hold a connection."""
        return [
            (parse_session_name(slot.session), slot.server_id)
            for slot in self.list_slots()
            if slot.alive and slot.session != OLDER
        ]

    def compute_state(self, server_id: int) -> State:
        """Of the server as a whole: connected, if anybody is."""
        shared = self._shared(server_id)
        open_ = any(
            slot.health.state == "connected" for slot in self._slots.get(server_id, {}).values()
        )
        return "connected" if open_ and shared != "connected" else shared or "disconnected"

    def forget_slot(self, slot: ServerSlot) -> bool:
        """Forget this slot; the session's next call gets another. Returns whether it was known."""
        slots = self._slots.get(slot.server_id, {})
        if slots.get(slot.session) is not slot:
            return False
        del slots[slot.session]
        if not slots:
            del self._slots[slot.server_id]
            self._told.pop(slot.server_id, None)
        return True

    def forget_session(self, session: str) -> list[ServerSlot]:
        """Forget the slots of the session that is called so, at every server."""
        return [
            slot
            for slot in self.list_slots()
            if parse_session_name(slot.session) == session and self.forget_slot(slot)
        ]

    def has_connection(self, server_id: int, session: str) -> bool:
        """Whether this session has a connection here, or a call that waits for one."""
        slot = self._slots.get(server_id, {}).get(session)
        return slot is not None and _is_used(slot)

    async def close(self, server_id: int, session: str) -> None:
        """Close the connection of one session to one server."""
        slot = self._slots.get(server_id, {}).get(session)
        if slot is not None and self.forget_slot(slot):
            await slot.stop()

    def tidy(self, slot: ServerSlot) -> None:
        """Forget a slot that holds nothing, nobody waits in, and whose breaker has nothing to
        say."""
        if _is_used(slot):
            return
        if not (left := slot.refused_for):
            self.forget_slot(slot)
        elif slot not in self._later:  # once, however many calls it refuses meanwhile
            self._later.add(slot)
            asyncio.get_running_loop().call_later(left, self._tidy_later, slot)

    def _tidy_later(self, slot: ServerSlot) -> None:
        self._later.discard(slot)
        self.tidy(slot)

    def _handle_closed(self, slot: ServerSlot) -> None:
        """Its connection has closed."""
        self.tidy(slot)
        server_id = slot.server_id
        if slot.session != OLDER:
            self._on_over(server_id, slot.session, slot.has_fallen)
        self._on_event(
            ConnectionEvent(
                server_id=server_id,
                kind="session",
                state=self.compute_state(server_id),
                detail="",
                code="",
                pid=None,
                era=None,
                at=time.time(),
                sessions=self.count_open(server_id),
            )
        )

    def _forward_event(self, event: ConnectionEvent) -> None:
        """What one session's connection tells, told as the server's. That it was lost is told by
        the call that met it."""
        found = event.discovery
        if found is not None and self._told.get(event.server_id) == found:
            found = None  # every session reads the same lists: once is enough
        elif found is not None:
            self._told[event.server_id] = found
        kind: EventKind = "session" if event.kind == "state" else event.kind
        self._on_event(
            replace(
                event,
                kind=kind,
                discovery=found,
                pid=None,
                attempts=0,
                state=self.compute_state(event.server_id),
                sessions=self.count_open(event.server_id),
            )
        )


def _is_used(slot: ServerSlot) -> bool:
    return bool(slot.alive or slot.expected or (slot.gate is not None and slot.gate.inside))
