"""Who makes way when there are too many connections: the one that was idle longest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mcpregistry.domain.errors import QueueFullError
from mcpregistry.domain.servers.sessions import EVERYBODY, OLDER
from mcpregistry.downstream.pool.slot import ServerSlot

# Those that hold a connection, how many may, and what is said when all of them are in use.
Crowd = tuple[list[ServerSlot], int, Callable[[int], QueueFullError]]


async def make_room(slot: ServerSlot, crowds: Callable[[], Iterable[Crowd]]) -> None:
    """Before ``slot`` opens a connection: while one of ``crowds`` is full, one of it makes way.
    Raises Busy.

    Nothing is awaited between the last look and the caller's start, so no lock is needed; and none
    is held while a connection closes, so a server that closes slowly keeps only the one call
    waiting that chose it.
    """
    while full := next(
        (crowd for crowd in crowds() if len(_select_alive(crowd[0], slot)) >= crowd[1]), None
    ):
        alive = _select_alive(full[0], slot)
        idle = {since: other for other in alive if (since := other.idle_since) is not None}
        leaving = [other for other in alive if other.leaving]
        if idle:
            await idle[min(idle)].close_idle()
        elif leaving:
            await leaving[0].wait_until_closed()
        else:
            raise full[2](full[1])


def list_crowds(
    slot: ServerSlot, own: list[ServerSlot], every: list[ServerSlot], most: int
) -> Iterator[Crowd]:
    """The crowds of a pool. ``own``: the slots of its server's sessions; ``every``: all of the
    pool, of which ``most`` may be open."""
    if slot.session not in (EVERYBODY, OLDER) and slot.target is not None:
        yield (
            [each for each in own if each.session != OLDER],
            slot.target.limits.max_sessions,
            make_server_full_error,
        )
    yield every, most, make_process_full_error


def _select_alive(slots: Iterable[ServerSlot], but: ServerSlot) -> list[ServerSlot]:
    return [other for other in slots if other is not but and other.alive]


def make_process_full_error(most: int) -> QueueFullError:
    """What a call is told when the process can open no more."""
    return QueueFullError(
        f"This process has {most:,} connections to servers, which is the maximum, and all of them are in use.",
        remedy="Try again in a moment, or raise the setting SLIPSNISSE_MAX_CONNECTIONS.",
    )


def make_server_full_error(most: int) -> QueueFullError:
    """What a call is told when its server can have no more sessions."""
    return QueueFullError(
        f"This process has {most:,} connections to this server, which is the maximum, and all of them are in use.",
        remedy="Try again in a moment, or raise “Connection limit” on the page of the server.",
    )
