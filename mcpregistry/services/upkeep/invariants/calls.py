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
from mcpregistry.db import share_transaction, stream_rows
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.models import (
    AuditArchive,
    AuditEntry,
    Connection,
    Invocation,
    Server,
    ServerTest,
    Tool,
)
from mcpregistry.models.guards import find_altered_guards, find_missing_guards, find_unknown_guards
from mcpregistry.models.sealing import find_sealed_columns
from mcpregistry.services.records import chains
from mcpregistry.services.records.ending import CORRECTED
from mcpregistry.services.servers.connections import STALE_AFTER
from mcpregistry.services.servers.trials import LOST_AFTER
from mcpregistry.services.upkeep import reaping
from mcpregistry.services.upkeep.invariants import approvals, budgets, energy
from mcpregistry.services.upkeep.reaping import ACTOR as REAPER

EXAMPLES = 5
_GRACE = timedelta(seconds=30)  # the reaper comes by every ten seconds
_SENT = [
    InvocationState.DISPATCHED,
    InvocationState.SUCCEEDED,
    InvocationState.TOOL_ERROR,
    InvocationState.NOT_SENT,
    InvocationState.UNKNOWN,
]
_OPEN = [state for state in InvocationState if state not in TERMINAL]
_ENDS = [f"call.{state}" for state in TERMINAL]


@dataclass(frozen=True, slots=True)
class InvariantFinding:
    """One invariant: the sentence that must hold, how often it does not, and a few of the
    places."""

    rule: str
    violations: int
    examples: tuple[str, ...] = ()


def check_invariants(now: datetime, *, strict: bool = False) -> list[InvariantFinding]:
    """Every rule with what was found, in a fixed order. What became due after the clock's last look
    is not late."""
    now = reaping.find_last_look(now)
    rules = [*_RULES, *(_QUIET_RULES if strict else [])]
    with share_transaction():
        return [_make_finding(rule, find(now)) for rule, find in rules]


def _make_finding(rule: str, places: Iterator[str]) -> InvariantFinding:
    try:
        examples = tuple(islice(places, EXAMPLES))
        return InvariantFinding(rule, len(examples) + sum(1 for _ in places), examples)
    except Exception as error:  # a key is missing, or a table holds what the site does not write
        if is_passing(error):
            raise
        return InvariantFinding(rule, 1, (f"The check failed: {error}",))


def _iterate_keys(rows: QuerySet[Any]) -> Iterator[str]:
    return (str(key) for key in stream_rows(rows.order_by().values_list("pk", flat=True)))


def _select_call_entries() -> QuerySet[AuditEntry]:
    """The audit entries of the outer query's call."""
    return AuditEntry.objects.filter(
        subject=Concat(Value("call:"), OuterRef("pk"), output_field=CharField())
    )


def _find_dispatched_without_entry(now: datetime) -> Iterator[str]:
    dispatched = _select_call_entries().filter(kind="call.dispatched")
    return _iterate_keys(Invocation.objects.filter(~Exists(dispatched), state__in=_SENT))


def _find_sent_though_refused(now: datetime) -> Iterator[str]:
    never = [state for state in TERMINAL if state not in _SENT]
    yield from _iterate_keys(
        Invocation.objects.filter(
            Exists(_select_call_entries().filter(kind="call.dispatched")), state__in=never
        )
    )
    yield from _iterate_keys(
        Invocation.objects.filter(state__in=_SENT).exclude(outcome__in=["allow", "ask"])
    )


def _find_sent_twice(now: datetime) -> Iterator[str]:
    return _find_repeated_subjects(AuditEntry.objects.filter(kind="call.dispatched"))


def _find_ended_twice(now: datetime) -> Iterator[str]:
    """An answer that comes after the reaper gave the call up is told in the log, and is no second
    end."""
    yield from _find_repeated_subjects(
        AuditEntry.objects.filter(kind__in=_ENDS).exclude(actor=REAPER)
    )
    yield from _find_repeated_subjects(AuditEntry.objects.filter(kind=CORRECTED))


def _find_corrected_though_known(now: datetime) -> Iterator[str]:
    supposed = AuditEntry.objects.filter(
        kind=f"call.{InvocationState.UNKNOWN}", actor=REAPER, subject=OuterRef("subject")
    )
    known = AuditEntry.objects.filter(~Exists(supposed), kind=CORRECTED)
    if AuditArchive.objects.exists():  # entries of a call that is forgotten may be there
        known = known.filter(
            Exists(Invocation.objects.filter(pk=Substr(OuterRef("subject"), len("call:") + 1)))
        )
    return iter(known.order_by().values_list("subject", flat=True))


def _find_repeated_subjects(entries: QuerySet[AuditEntry]) -> Iterator[str]:
    subjects = entries.order_by().values("subject").annotate(times=Count("id")).filter(times__gt=1)
    return (row["subject"] for row in stream_rows(subjects))


def _find_end_without_entry(now: datetime) -> Iterator[str]:
    own = _select_call_entries().filter(
        kind=Concat(Value("call."), OuterRef("state"), output_field=CharField())
    )
    said = Concat(Value('"state":"'), OuterRef("state"), Value('"'), output_field=CharField())
    corrected = _select_call_entries().filter(kind=CORRECTED, body__contains=said)
    yield from _iterate_keys(
        Invocation.objects.filter(~Exists(own), ~Exists(corrected), state__in=[*TERMINAL])
    )
    yield from _iterate_keys(
        Invocation.objects.filter(
            Exists(_select_call_entries().filter(kind__in=_ENDS)), state__in=_OPEN
        )
    )


def _find_incomplete_ends(now: datetime) -> Iterator[str]:
    ended = Invocation.objects.filter(state__in=[*TERMINAL])
    return _iterate_keys(ended.filter(Q(finished_at=None) | Q(lease_until__isnull=False)))


def _find_success_without_answer(now: datetime) -> Iterator[str]:
    return _iterate_keys(Invocation.objects.filter(state=InvocationState.SUCCEEDED, result_bytes=0))


def _find_dispatched_without_lease(now: datetime) -> Iterator[str]:
    return _iterate_keys(
        Invocation.objects.filter(state=InvocationState.DISPATCHED, lease_until=None)
    )


def _find_overdue_leases(now: datetime) -> Iterator[str]:
    return _iterate_keys(Invocation.objects.filter(state__in=_OPEN, lease_until__lt=now - _GRACE))


def _find_pinned_unapproved(now: datetime) -> Iterator[str]:
    pinned = Tool.offers.filter_approved()
    return _iterate_keys(pinned.filter(Q(pinned__approved=False) | ~Q(pinned__tool=F("pk"))))


def _find_active_unconfirmed(now: datetime) -> Iterator[str]:
    return (
        server.slug
        for server in stream_rows(Server.objects.active())
        if not server.launch_confirmed
    )


def _find_unsealed(now: datetime) -> Iterator[str]:
    for model in filter(find_sealed_columns, apps.get_models()):
        columns = [*find_sealed_columns(model)]
        odd = [~Q(**{column: ""}) & ~Q(**{f"{column}__startswith": "v1."}) for column in columns]
        for row in stream_rows(
            model._default_manager.filter(reduce(or_, odd)).order_by().values("pk", *columns)
        ):
            found = [
                column for column in columns if row[column] and not row[column].startswith("v1.")
            ]
            yield from (f"{model.__name__} {row['pk']} {column}" for column in found)


def _find_lost_tests(now: datetime) -> Iterator[str]:
    running = ServerTest.objects.filter(verdict=ServerTest.Verdict.RUNNING)
    return _iterate_keys(running.filter(started_at__lt=now - LOST_AFTER - _GRACE))


def _find_stale_connections(now: datetime) -> Iterator[str]:
    return _iterate_keys(Connection.objects.filter(seen_at__lt=now - STALE_AFTER - _GRACE))


def _find_open_calls(now: datetime) -> Iterator[str]:
    return _iterate_keys(Invocation.objects.filter(state__in=_OPEN))


def _find_running_tests(now: datetime) -> Iterator[str]:
    return _iterate_keys(ServerTest.objects.filter(verdict=ServerTest.Verdict.RUNNING))


def _find_lost_guards(now: datetime) -> Iterator[str]:
    yield from find_missing_guards()
    yield from (f"{name} was altered" for name in find_altered_guards())
    yield from (f"{name} does not belong to the site" for name in find_unknown_guards())


Rule = tuple[str, Callable[[datetime], Iterator[str]]]

_RULES: list[Rule] = [
    ("The triggers of the database are in place.", _find_lost_guards),
    ("Every audit chain is complete.", lambda now: chains.verify_chains()),
    ("Every sent call has its audit entry.", _find_dispatched_without_entry),
    ("Denied, rejected and undecided calls were never sent.", _find_sent_though_refused),
    ("No call was sent twice.", _find_sent_twice),
    ("No call ended twice.", _find_ended_twice),
    ("Only assumed outcomes were corrected.", _find_corrected_though_known),
    (
        "A call has ended if and only if the audit log contains its outcome.",
        _find_end_without_entry,
    ),
    ("An ended call has an end time and no lease.", _find_incomplete_ends),
    ("Every succeeded call has an answer.", _find_success_without_answer),
    ("Every call in progress has a lease.", _find_dispatched_without_lease),
    ("No lease is overdue.", _find_overdue_leases),
    ("Only approved definitions of the same tool are offered.", _find_pinned_unapproved),
    ("The launch of every active server is confirmed.", _find_active_unconfirmed),
    ("Secrets are only stored encrypted.", _find_unsealed),
    ("No test waits for a stopped worker.", _find_lost_tests),
    ("No connection of a stopped process is listed.", _find_stale_connections),
    *approvals.RULES,
    *energy.RULES,
    *budgets.RULES,
]
_QUIET_RULES: list[Rule] = [
    ("No call is open.", _find_open_calls),
    ("No test is running.", _find_running_tests),
]
