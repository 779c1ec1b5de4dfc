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
from mcpregistry.domain.servers.sessions import OLDER, session_in
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.events import ConnectionEvent, EventKind
from mcpregistry.downstream.pool.slot import Slot

OnEvent = Callable[[ConnectionEvent], None]
# a server, a session, and whether its connection was lost
OnSessionOver = Callable[[int, str, bool], None]
MakeSlot = Callable[[int, str, OnEvent, Callable[[Slot], None]], Slot]


class Sessions:
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
        self._slots: defaultdict[int, dict[str, Slot]] = defaultdict(dict)
        self._told: dict[int, Discovery] = {}
        # to be looked at again when their breaker lets them be tried
        self._later: set[Slot] = set()

    def slot(self, server_id: int, session: str) -> Slot:
        """The session's slot at this server; a new one if there is none."""
        slots = self._slots[server_id]
        if session not in slots:
            slots[session] = self._make(server_id, session, self._heard, self._over)
        return slots[session]

    def of_server(self, server_id: int) -> list[Slot]:
        """Every session's slot at this server."""
        return list(self._slots.get(server_id, {}).values())

    def all(self) -> list[Slot]:
        """Every slot."""
        return [slot for slots in self._slots.values() for slot in slots.values()]

    def servers(self) -> list[int]:
        """Servers that have sessions here."""
        return [server_id for server_id, slots in self._slots.items() if slots]

    def count(self, server_id: int) -> int:
        """How many hold a connection."""
        return sum(
            slot.alive and slot.session != OLDER for slot in self._slots.get(server_id, {}).values()
        )

    def own(self) -> list[tuple[str, int]]:
        """(session, server) of those that hold a connection."""
        return [
            (session_in(slot.session), slot.server_id)
            for slot in self.all()
            if slot.alive and slot.session != OLDER
        ]

    def state(self, server_id: int) -> State:
        """Of the server as a whole: connected, if anybody is."""
        shared = self._shared(server_id)
        open_ = any(
            slot.health.state == "connected" for slot in self._slots.get(server_id, {}).values()
        )
        return "connected" if open_ and shared != "connected" else shared or "disconnected"

    def take(self, slot: Slot) -> bool:
        """Forget this slot; the session's next call gets another. Returns whether it was known."""
        slots = self._slots.get(slot.server_id, {})
        if slots.get(slot.session) is not slot:
            return False
        del slots[slot.session]
        if not slots:
            del self._slots[slot.server_id]
            self._told.pop(slot.server_id, None)
        return True

    def take_session(self, session: str) -> list[Slot]:
        """Forget the slots of the session that is called so, at every server."""
        return [
            slot for slot in self.all() if session_in(slot.session) == session and self.take(slot)
        ]

    def holds(self, server_id: int, session: str) -> bool:
        """Whether this session has a connection here, or a call that waits for one."""
        slot = self._slots.get(server_id, {}).get(session)
        return slot is not None and _is_used(slot)

    async def close(self, server_id: int, session: str) -> None:
        """Close the connection of one session to one server."""
        slot = self._slots.get(server_id, {}).get(session)
        if slot is not None and self.take(slot):
            await slot.stop()

    def tidy(self, slot: Slot) -> None:
        """Forget a slot that holds nothing, nobody waits in, and whose breaker has nothing to
        say."""
        if _is_used(slot):
            return
        if not (left := slot.refused_for):
            self.take(slot)
        elif slot not in self._later:  # once, however many calls it refuses meanwhile
            self._later.add(slot)
            asyncio.get_running_loop().call_later(left, self._tidy_later, slot)

    def _tidy_later(self, slot: Slot) -> None:
        self._later.discard(slot)
        self.tidy(slot)

    def _over(self, slot: Slot) -> None:
        """Its connection has closed."""
        self.tidy(slot)
        server_id = slot.server_id
        if slot.session != OLDER:
            self._on_over(server_id, slot.session, slot.has_fallen)
        self._on_event(
            ConnectionEvent(
                server_id=server_id,
                kind="session",
                state=self.state(server_id),
                detail="",
                code="",
                pid=None,
                era=None,
                at=time.time(),
                sessions=self.count(server_id),
            )
        )

    def _heard(self, event: ConnectionEvent) -> None:
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
                state=self.state(event.server_id),
                sessions=self.count(event.server_id),
            )
        )


def _is_used(slot: Slot) -> bool:
    return bool(slot.alive or slot.expected or (slot.gate is not None and slot.gate.inside))
