"""Ends what nobody will end any more: calls whose lease ran out. Never repeats anything.

Mostly the process that held such a call is gone. It may also hang, or be unable to write, so nothing is said
of it. Where the database was away from everybody, leases run out of processes that live, and hold ends that they
will write now (``calls/recording/recorder.py``): for a while after that nothing is ended, see ``settled``.
If the call was dispatched, it may have taken effect, so its end is unknown, until somebody comes who knows it
(``services/records/ending.py``); if not, it has never run and never will.
(A call in the state received is never stored: its first record says what was decided.)
"""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Q

from mcpregistry.db import database_now
from mcpregistry.domain.calls.ends import LOOK_FIRST
from mcpregistry.domain.lifecycle import SUPPOSED, State, may_move
from mcpregistry.models import Figure, Invocation
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.records import ending
from mcpregistry.services.servers import connections, placement
from mcpregistry.services.tasks import long_calls, remote_tasks

ACTOR = "reaper"
INTERRUPTED = timedelta(seconds=30)  # the clock, which comes every ten seconds, could not look for so long
GRACE = timedelta(seconds=30)  # for which living processes are then waited for: they renew and write within seconds
_BATCH = 200
_READ = ("state", "fence", "received_at", "binding", "outcome", "server_slug", "tool_name")

_ENDS: dict[State, tuple[State, str]] = {
    State.DISPATCHED: (State.UNKNOWN, f"No end of this call was recorded in time. {LOOK_FIRST}"),
    State.READY: (State.CANCELLED, "Nobody sent this call in time, so nothing has happened."),
    State.PENDING: (State.EXPIRED, "Nobody decided in time."),
}
assert all(may_move(old, new) for old, (new, _) in _ENDS.items())


def bury(kind: str, pid: int, now: datetime) -> int:
    """End the calls that a process of this host had out when it died; whoever says so must know it. Returns how many.

    Not those that people had approved: another process may be running them. Nor those that end with their work, which
    workers do.
    """
    mine = Q(writer__startswith=f"{kind}:{socket.gethostname()[:24]}:{pid}:")
    out = Invocation.objects.open().filter(mine, state=State.DISPATCHED, approval__isnull=True, lease_until__gt=now)
    out = out.exclude(long_calls.handed_over(now)).exclude(pk__in=remote_tasks.left_to_followers(now))
    out.update(lease_until=now - timedelta(microseconds=1))
    return reap_calls(now)


def bury_predecessor(kind: str, pid: int) -> int:
    """The same as ``bury``, for a process that replaces the dead one. Its connections are forgotten as well."""
    dead = connections.process_name(kind, pid)
    connections.forget_process(dead)
    placement.release_process(dead)
    return bury(kind, pid, database_now())


def give_up(call_id: str, writer: str) -> bool:
    """End a call that belongs to work which its process has lost, for it has not renewed its lease. Returns whether it did.

    ``writer``: of the process that has the work now. Its own calls stay, and so does a call that people had approved or whose task
    somebody follows: these go on in another process.
    """
    now = database_now()
    own = writer.rpartition(":")[0]
    out = Invocation.objects.open().filter(
        pk=call_id, state=State.DISPATCHED, approval__isnull=True, lease_until__gt=now
    )
    out = out.exclude(writer__startswith=f"{own}:").exclude(long_calls.handed_over(now))
    if not out.update(lease_until=now - timedelta(microseconds=1)) or call_id in remote_tasks.left_to_followers(now):
        return False
    return _end(call_id, now)


def bury_everything(now: datetime) -> int:
    """No process lives that has worked on this database, which has just come from a backup: whatever they had out ends
    now, as after a crash. Returns how many calls."""
    connections.forget_stale(now + connections.STALE_AFTER)
    out = Invocation.objects.open().filter(state=State.DISPATCHED, lease_until__gt=now)
    out.update(lease_until=now - timedelta(microseconds=1))
    held_calls.expire_due(now)
    held_calls.forget_ends(now)
    ended = 0
    while count := reap_calls(now):
        ended += count
    return ended


@transaction.atomic
def settled(now: datetime) -> bool:
    """Note that the clock looks now. False for a while after it could not: the database was away, or the site was.

    Kept in the database, for the clock's ticks go to any worker. The clock calls it before ``reap_calls``.
    """
    looked, since = (Figure.objects.get_or_create(name=name, labels="{}")[0] for name in _LOOKS)
    if now.timestamp() - looked.value > INTERRUPTED.total_seconds():
        since.value = now.timestamp()
    looked.value = now.timestamp()
    for figure in (looked, since):
        figure.save(update_fields=["value"])
    return looked.value - since.value >= GRACE.total_seconds()


def last_look(now: datetime) -> datetime:
    """When the clock last ended what was due; ``now`` if it never did. What became due later waits for it."""
    looked = Figure.objects.filter(name=_LOOKS[0]).first()
    return min(now, datetime.fromtimestamp(looked.value, UTC)) if looked else now


_LOOKS = ("reaper.looked", "reaper.since")  # seconds since the epoch: when it looked last, and since when regularly


def reap_calls(now: datetime) -> int:
    """End calls whose lease has run out, at most a batch at a time. Returns how many; the clock calls it."""
    expired = Invocation.objects.open().filter(lease_until__lt=now).order_by("lease_until")
    expired = expired.exclude(pk__in=remote_tasks.left_to_followers(now))
    # Held calls end by their own deadlines (``held_calls.expire_due``), with all that belongs to it.
    expired = expired.filter(Q(state=State.DISPATCHED) | Q(approval__isnull=True))
    return sum(_end(call_id, now) for call_id in expired.values_list("pk", flat=True)[:_BATCH])


@transaction.atomic
def _end(call_id: str, now: datetime) -> bool:
    """Under a lock: if its process ends it in the same moment, or renews its lease, that stands."""
    held = Invocation.objects.select_for_update().filter(pk=call_id, state__in=_ENDS, lease_until__lt=now)
    call = held.only(*_READ).first()
    if call is None:
        return False
    state, reason = _ENDS[State(call.state)]
    ended = ending.ended(state, received_at=call.received_at, now=now, reason=reason, code=SUPPOSED)
    return ending.write(call, ended, actor=ACTOR)
