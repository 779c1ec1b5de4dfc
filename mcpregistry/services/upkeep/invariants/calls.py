"""What must be true of the records at any time, whatever broke meanwhile; each checked from the
database.

Two things need quiet to be judged, because they are right while work goes on: an open call and a
running test. ``strict`` counts them as well, for use when everything has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any

from django.apps import apps
from django.db.models import CharField, Count, Exists, F, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Concat, Substr

from mcpregistry.database_errors import is_passing
from mcpregistry.db import one_reading, streamed
from mcpregistry.domain.lifecycle import TERMINAL, State
from mcpregistry.models import (
    AuditArchive,
    AuditEntry,
    Connection,
    Invocation,
    Server,
    ServerTest,
    Tool,
)
from mcpregistry.models.guards import altered_guards, missing_guards, unknown_guards
from mcpregistry.models.sealing import sealed
from mcpregistry.services.records import chains
from mcpregistry.services.records.ending import CORRECTED
from mcpregistry.services.servers.connections import STALE_AFTER
from mcpregistry.services.servers.trials import LOST_AFTER
from mcpregistry.services.upkeep import reaping
from mcpregistry.services.upkeep.invariants import approvals, budgets, energy
from mcpregistry.services.upkeep.reaping import ACTOR as REAPER

EXAMPLES = 5
_GRACE = timedelta(seconds=30)  # the reaper comes by every ten seconds
_SENT = [State.DISPATCHED, State.SUCCEEDED, State.TOOL_ERROR, State.NOT_SENT, State.UNKNOWN]
_OPEN = [state for state in State if state not in TERMINAL]
_ENDS = [f"call.{state}" for state in TERMINAL]


@dataclass(frozen=True, slots=True)
class Finding:
    """One invariant: the sentence that must hold, how often it does not, and a few of the
    places."""

    rule: str
    violations: int
    examples: tuple[str, ...] = ()


def check(now: datetime, *, strict: bool = False) -> list[Finding]:
    """Every rule with what was found, in a fixed order. What became due after the clock's last look
    is not late."""
    now = reaping.last_look(now)
    rules = [*_RULES, *(_QUIET_RULES if strict else [])]
    with one_reading():
        return [_finding(rule, find(now)) for rule, find in rules]


def _finding(rule: str, places: Iterator[str]) -> Finding:
    try:
        examples = tuple(islice(places, EXAMPLES))
        return Finding(rule, len(examples) + sum(1 for _ in places), examples)
    except Exception as error:  # a key is missing, or a table holds what the site does not write
        if is_passing(error):
            raise
        return Finding(rule, 1, (f"The check failed: {error}",))


def _ids(rows: QuerySet[Any]) -> Iterator[str]:
    return (str(key) for key in streamed(rows.order_by().values_list("pk", flat=True)))


def _entries() -> QuerySet[AuditEntry]:
    """The audit entries of the outer query's call."""
    return AuditEntry.objects.filter(
        subject=Concat(Value("call:"), OuterRef("pk"), output_field=CharField())
    )


def _dispatched_without_entry(now: datetime) -> Iterator[str]:
    dispatched = _entries().filter(kind="call.dispatched")
    return _ids(Invocation.objects.filter(~Exists(dispatched), state__in=_SENT))


def _sent_though_refused(now: datetime) -> Iterator[str]:
    never = [state for state in TERMINAL if state not in _SENT]
    yield from _ids(
        Invocation.objects.filter(
            Exists(_entries().filter(kind="call.dispatched")), state__in=never
        )
    )
    yield from _ids(
        Invocation.objects.filter(state__in=_SENT).exclude(outcome__in=["allow", "ask"])
    )


def _sent_twice(now: datetime) -> Iterator[str]:
    return _repeated(AuditEntry.objects.filter(kind="call.dispatched"))


def _ended_twice(now: datetime) -> Iterator[str]:
    """An answer that comes after the reaper gave the call up is told in the log, and is no second
    end."""
    yield from _repeated(AuditEntry.objects.filter(kind__in=_ENDS).exclude(actor=REAPER))
    yield from _repeated(AuditEntry.objects.filter(kind=CORRECTED))


def _corrected_though_known(now: datetime) -> Iterator[str]:
    supposed = AuditEntry.objects.filter(
        kind=f"call.{State.UNKNOWN}", actor=REAPER, subject=OuterRef("subject")
    )
    known = AuditEntry.objects.filter(~Exists(supposed), kind=CORRECTED)
    if AuditArchive.objects.exists():  # entries of a call that is forgotten may be there
        known = known.filter(
            Exists(Invocation.objects.filter(pk=Substr(OuterRef("subject"), len("call:") + 1)))
        )
    return iter(known.order_by().values_list("subject", flat=True))


def _repeated(entries: QuerySet[AuditEntry]) -> Iterator[str]:
    subjects = entries.order_by().values("subject").annotate(times=Count("id")).filter(times__gt=1)
    return (row["subject"] for row in streamed(subjects))


def _end_not_told(now: datetime) -> Iterator[str]:
    own = _entries().filter(
        kind=Concat(Value("call."), OuterRef("state"), output_field=CharField())
    )
    said = Concat(Value('"state":"'), OuterRef("state"), Value('"'), output_field=CharField())
    corrected = _entries().filter(kind=CORRECTED, body__contains=said)
    yield from _ids(
        Invocation.objects.filter(~Exists(own), ~Exists(corrected), state__in=[*TERMINAL])
    )
    yield from _ids(
        Invocation.objects.filter(Exists(_entries().filter(kind__in=_ENDS)), state__in=_OPEN)
    )


def _end_incomplete(now: datetime) -> Iterator[str]:
    ended = Invocation.objects.filter(state__in=[*TERMINAL])
    return _ids(ended.filter(Q(finished_at=None) | Q(lease_until__isnull=False)))


def _success_without_answer(now: datetime) -> Iterator[str]:
    return _ids(Invocation.objects.filter(state=State.SUCCEEDED, result_bytes=0))


def _dispatched_without_lease(now: datetime) -> Iterator[str]:
    return _ids(Invocation.objects.filter(state=State.DISPATCHED, lease_until=None))


def _stuck(now: datetime) -> Iterator[str]:
    return _ids(Invocation.objects.filter(state__in=_OPEN, lease_until__lt=now - _GRACE))


def _pinned_unapproved(now: datetime) -> Iterator[str]:
    pinned = Tool.offers.approved()
    return _ids(pinned.filter(Q(pinned__approved=False) | ~Q(pinned__tool=F("pk"))))


def _active_unconfirmed(now: datetime) -> Iterator[str]:
    return (
        server.slug for server in streamed(Server.objects.active()) if not server.launch_confirmed
    )


def _unsealed(now: datetime) -> Iterator[str]:
    for model in filter(sealed, apps.get_models()):
        columns = [*sealed(model)]
        odd = [~Q(**{column: ""}) & ~Q(**{f"{column}__startswith": "v1."}) for column in columns]
        for row in streamed(
            model._default_manager.filter(reduce(or_, odd)).order_by().values("pk", *columns)
        ):
            found = [
                column for column in columns if row[column] and not row[column].startswith("v1.")
            ]
            yield from (f"{model.__name__} {row['pk']} {column}" for column in found)


def _lost_test(now: datetime) -> Iterator[str]:
    running = ServerTest.objects.filter(verdict=ServerTest.Verdict.RUNNING)
    return _ids(running.filter(started_at__lt=now - LOST_AFTER - _GRACE))


def _stale_connection(now: datetime) -> Iterator[str]:
    return _ids(Connection.objects.filter(seen_at__lt=now - STALE_AFTER - _GRACE))


def _open_call(now: datetime) -> Iterator[str]:
    return _ids(Invocation.objects.filter(state__in=_OPEN))


def _running_test(now: datetime) -> Iterator[str]:
    return _ids(ServerTest.objects.filter(verdict=ServerTest.Verdict.RUNNING))


def _lost_guards(now: datetime) -> Iterator[str]:
    yield from missing_guards()
    yield from (f"{name} was altered" for name in altered_guards())
    yield from (f"{name} does not belong to the site" for name in unknown_guards())


Rule = tuple[str, Callable[[datetime], Iterator[str]]]

_RULES: list[Rule] = [
    ("The triggers of the database are in place.", _lost_guards),
    ("Every audit chain is complete.", lambda now: chains.verify()),
    ("Every sent call has its audit entry.", _dispatched_without_entry),
    ("Denied, rejected and undecided calls were never sent.", _sent_though_refused),
    ("No call was sent twice.", _sent_twice),
    ("No call ended twice.", _ended_twice),
    ("Only assumed outcomes were corrected.", _corrected_though_known),
    ("A call has ended if and only if the audit log contains its outcome.", _end_not_told),
    ("An ended call has an end time and no lease.", _end_incomplete),
    ("Every succeeded call has an answer.", _success_without_answer),
    ("Every call in progress has a lease.", _dispatched_without_lease),
    ("No lease is overdue.", _stuck),
    ("Only approved definitions of the same tool are offered.", _pinned_unapproved),
    ("The launch of every active server is confirmed.", _active_unconfirmed),
    ("Secrets are only stored encrypted.", _unsealed),
    ("No test waits for a stopped worker.", _lost_test),
    ("No connection of a stopped process is listed.", _stale_connection),
    *approvals.RULES,
    *energy.RULES,
    *budgets.RULES,
]
_QUIET_RULES: list[Rule] = [
    ("No call is open.", _open_call),
    ("No test is running.", _running_test),
]
