"""Who makes way when there are too many connections: the one that was idle longest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mcpregistry.domain.errors import Busy
from mcpregistry.domain.servers.sessions import EVERYBODY, OLDER
from mcpregistry.downstream.pool.slot import Slot

# Those that hold a connection, how many may, and what is said when all of them are in use.
Crowd = tuple[list[Slot], int, Callable[[int], Busy]]


async def make_room(slot: Slot, crowds: Callable[[], Iterable[Crowd]]) -> None:
    """Before ``slot`` opens a connection: while one of ``crowds`` is full, one of it makes way.
    Raises Busy.

    Nothing is awaited between the last look and the caller's start, so no lock is needed; and none
    is held while a connection closes, so a server that closes slowly keeps only the one call
    waiting that chose it.
    """
    while full := next(
        (crowd for crowd in crowds() if len(_alive(crowd[0], slot)) >= crowd[1]), None
    ):
        alive = _alive(full[0], slot)
        idle = {since: other for other in alive if (since := other.idle_since) is not None}
        leaving = [other for other in alive if other.leaving]
        if idle:
            await idle[min(idle)].rest()
        elif leaving:
            await leaving[0].left()
        else:
            raise full[2](full[1])


def crowds_of(slot: Slot, own: list[Slot], every: list[Slot], most: int) -> Iterator[Crowd]:
    """The crowds of a pool. ``own``: the slots of its server's sessions; ``every``: all of the
    pool, of which ``most`` may be open."""
    if slot.session not in (EVERYBODY, OLDER) and slot.target is not None:
        yield (
            [each for each in own if each.session != OLDER],
            slot.target.limits.max_sessions,
            server_full,
        )
    yield every, most, process_full


def _alive(slots: Iterable[Slot], but: Slot) -> list[Slot]:
    return [other for other in slots if other is not but and other.alive]


def process_full(most: int) -> Busy:
    """What a call is told when the process can open no more."""
    return Busy(
        f"All {most:,} connections of this process to servers are in use.",
        remedy="Try again in a moment, or raise SLIPSNISSE_MAX_CONNECTIONS.",
    )


def server_full(most: int) -> Busy:
    """What a call is told when its server can have no more sessions."""
    return Busy(
        f"All {most:,} sessions of this server are in use.",
        remedy="Try again in a moment, or raise the server's limit of sessions.",
    )
