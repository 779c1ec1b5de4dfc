"""Ends what nobody will end any more: calls whose lease ran out. Never repeats anything.

Mostly the process that held such a call is gone. It may also hang, or be unable to write, so
nothing is said of it. Where the database was away from everybody, leases run out of processes that
live, and hold ends that they will write now (``calls/recording/recorder.py``): for a while after
that nothing is ended, see ``note_clock_look``. If the call was dispatched, it may have taken
effect, so its end is unknown, until somebody comes who knows it (``services/records/ending.py``);
if not, it has never run and never will. (A call in the state received is never stored: its first
record says what was decided.)
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from mcpregistry.db import read_database_now
from mcpregistry.domain.calls.outcome_texts import LOOK_FIRST
from mcpregistry.domain.lifecycle import SUPPOSED, InvocationState, is_move_allowed
from mcpregistry.models import Figure, Invocation, SiteProcess
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.energy import reservations
from mcpregistry.services.records import ending
from mcpregistry.services.servers import connections, placement
from mcpregistry.services.tasks import long_calls, remote_tasks
from mcpregistry.services.upkeep import processes

ACTOR = "reaper"
# the clock, which comes every ten seconds, could not look for so long
INTERRUPTED = timedelta(seconds=30)
# for which living processes are then waited for: they renew and write within seconds
GRACE = timedelta(seconds=30)
_BATCH = 200
_READ = (
    "state",
    "fence",
    "received_at",
    "binding",
    "outcome",
    "server_slug",
    "tool_name",
    "writer",
)

_ENDS: dict[InvocationState, tuple[InvocationState, str]] = {
    InvocationState.DISPATCHED: (
        InvocationState.UNKNOWN,
        f"No outcome of this call was recorded in time. {LOOK_FIRST}",
    ),
    InvocationState.READY: (
        InvocationState.CANCELLED,
        "The call was not sent in time, so nothing has happened.",
    ),
    InvocationState.PENDING: (InvocationState.EXPIRED, "The call was not decided in time."),
}
assert all(is_move_allowed(old, new) for old, (new, _) in _ENDS.items())


def end_calls_of_dead_process(kind: str, pid: int, now: datetime) -> int:
    """End the calls that a process of this host had sent when it died; the caller must know that it
    is dead.

    Returns how many. Calls that end with their work stay open: workers end them.
    """
    return _end_calls_of(processes.make_host_prefix(kind, pid), now)


def end_calls_of_predecessor(kind: str, pid: int) -> int:
    """The same as ``end_calls_of_dead_process``, for a process that replaces the dead one. Its
    connections are forgotten as well."""
    dead = connections.make_process_name(kind, pid)
    connections.forget_process(dead)
    placement.release_process(dead)
    return end_calls_of_dead_process(kind, pid, read_database_now())


def end_calls_of_expired_process(process: SiteProcess, now: datetime) -> int:
    """The same as ``end_calls_of_dead_process``, for a process whose lease has expired. Returns how
    many calls it ended.

    Tasks of remote servers stay open: the processes that follow them have leases of their own for
    these calls.
    """
    return _end_calls_of(f"{process.pk}.", now, but=remote_tasks.select_followed_calls())


def _end_calls_of(prefix: str, now: datetime, *, but: QuerySet[Invocation] | None = None) -> int:
    """End what writers with this prefix had sent, except for the calls ``but``."""
    out = Invocation.objects.open().filter(
        writer__startswith=prefix, state=InvocationState.DISPATCHED
    )
    out = out.exclude(long_calls.match_handed_over_calls(now))
    out = out if but is None else out.exclude(pk__in=but.values("pk"))
    calls = list(out.values_list("pk", flat=True))
    return sum(_expire_and_end(call_id, now) for call_id in calls)


def give_up(call_id: str, writer: str) -> bool:
    """End a call that belongs to work which its process has lost, for it has not renewed its lease.
    Returns whether it did.

    ``writer``: of the process that has the work now. Its own calls stay open, and so does a call
    that was approved, which any process may have sent (``end_calls_of_expired_process`` ends it),
    or whose task another process follows. The process that lost the work may only have been slow.
    If it then knows the end, that replaces this one in the record of the call; the work continues
    with the unknown end.
    """
    now = read_database_now()
    out = Invocation.objects.open().filter(
        pk=call_id, state=InvocationState.DISPATCHED, approval__isnull=True, lease_until__gt=now
    )
    out = out.exclude(writer__startswith=f"{processes.extract_writer_base(writer)}.").exclude(
        long_calls.match_handed_over_calls(now)
    )
    return out.exists() and _expire_and_end(call_id, now)


def _expire_and_end(call_id: str, now: datetime) -> bool:
    """End a call whose process is dead, or has lost its work, unless another process follows its
    task."""
    out = Invocation.objects.open().filter(
        pk=call_id, state=InvocationState.DISPATCHED, lease_until__gt=now
    )
    out.update(lease_until=now - timedelta(microseconds=1))
    return call_id not in remote_tasks.list_calls_left_to_followers(now) and _end_if_due(
        call_id, now, is_dead=True
    )


def end_all_open_calls(now: datetime) -> int:
    """No process lives that has worked on this database, which has just come from a backup:
    whatever they had out ends now, as after a crash. Returns how many calls."""
    connections.forget_stale(now + connections.STALE_AFTER)
    SiteProcess.objects.all().delete()
    out = Invocation.objects.open().filter(state=InvocationState.DISPATCHED, lease_until__gt=now)
    out.update(lease_until=now - timedelta(microseconds=1))
    held_calls.expire_due(now)
    held_calls.forget_ends(now)
    ended = 0
    while count := reap_calls(now):
        ended += count
    return ended


@transaction.atomic
def note_clock_look(now: datetime) -> bool:
    """Note that the clock looks now. False for a while after it could not: the database was away,
    or the site was.

    Kept in the database, for the clock's ticks go to any worker. The clock calls it before
    ``reap_calls``.
    """
    looked, since = (Figure.objects.get_or_create(name=name, labels="{}")[0] for name in _LOOKS)
    if now.timestamp() - looked.value > INTERRUPTED.total_seconds():
        since.value = now.timestamp()
    looked.value = now.timestamp()
    for figure in (looked, since):
        figure.save(update_fields=["value"])
    return looked.value - since.value >= GRACE.total_seconds()


def find_last_look(now: datetime) -> datetime:
    """When the clock last ended what was due; ``now`` if it never did. What became due later waits
    for it."""
    looked = Figure.objects.filter(name=_LOOKS[0]).first()
    return min(now, datetime.fromtimestamp(looked.value, UTC)) if looked else now


# seconds since the epoch: when it looked last, and since when regularly
_LOOKS = ("reaper.looked", "reaper.since")


def reap_calls(now: datetime) -> int:
    """End calls whose lease has run out, at most a batch at a time. Returns how many; the clock
    calls it."""
    expired = Invocation.objects.open().filter(lease_until__lt=now).order_by("lease_until")
    expired = expired.exclude(pk__in=remote_tasks.list_calls_left_to_followers(now))
    # Held calls end by their own deadlines (``held_calls.expire_due``), with all that belongs to
    # it.
    expired = expired.filter(Q(state=InvocationState.DISPATCHED) | Q(approval__isnull=True))
    return sum(
        _end_if_due(call_id, now) for call_id in expired.values_list("pk", flat=True)[:_BATCH]
    )


@transaction.atomic
def _end_if_due(call_id: str, now: datetime, *, is_dead: bool = False) -> bool:
    """Under a lock: if its process ends it in the same moment, or renews its lease, that stands.

    ``is_dead``: its process is known to be dead, or has lost its work. Energy is charged until the
    process was last known to be alive.
    """
    held = Invocation.objects.select_for_update().filter(
        pk=call_id, state__in=_ENDS, lease_until__lt=now
    )
    call = held.only(*_READ).first()
    if call is None:
        return False
    state, reason = _ENDS[InvocationState(call.state)]
    ended = ending.build_end_columns(
        state, received_at=call.received_at, now=now, reason=reason, code=SUPPOSED
    )
    if not ending.write_end(call, ended, actor=ACTOR):
        return False
    if state is InvocationState.UNKNOWN:
        reservations.settle(
            call_id=call_id, until=processes.find_last_sign(call.writer, now, is_dead=is_dead)
        )
    return True
