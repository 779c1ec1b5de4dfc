"""The stored proposals of the access analyzer. The clock makes them, so that pages only read one
row for each grant.

Analyzing a grant can mean reading thousands of calls. Each pass of the clock therefore works for
one second: first on grants that were never analyzed, then on the oldest. If a grant has changed
since, its stored proposal is not shown. Applying a proposal reads all calls again
(``analyzer.apply_grant_proposal``), so an old proposal does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce

from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import AccessFinding, Grant, Tool
from mcpregistry.queries.calls import find_record_start
from mcpregistry.services.policy.analyzer import (
    DAYS,
    AnalyzedCalls,
    GrantProposal,
    copy_grant,
    list_column_values,
    propose,
    select_candidates,
)
from mcpregistry.services.policy.past_calls import PastCalls, PastUse, find_last_calls

PERIODS = (1, 7, DAYS, 90)  # days
RENEWED = timedelta(hours=1)  # age at which a grant is analyzed again
_SECONDS = 1.0  # of one pass
_BATCH = 200  # grants whose last calls are looked up, and that are written, together
_IN_ONE_PASS = 10_000
_SAME = ("kind", "uri", "argument_pins", "tool_id", "server_id")  # of a grant that is proposed


@dataclass(frozen=True, slots=True)
class Findings:
    """Proposals by grant. ``made``: when each grant was analyzed; those without a time are not
    analyzed yet."""

    proposals: Mapping[int, GrantProposal]
    made: Mapping[int, datetime]

    @property
    def as_of(self) -> datetime | None:
        """When the oldest of them was made."""
        return min(self.made.values(), default=None)


def refresh_findings(now: datetime, *, seconds: float = _SECONDS) -> int:
    """Analyze the grants that are due until ``seconds`` are over, at least one. Returns how
    many."""
    until = time.monotonic() + seconds
    due = _list_due_grants(now)
    done = 0
    for first in range(0, len(due), _BATCH):
        bodies = _analyze(due[first : first + _BATCH], now, until)
        _write(bodies, now)
        done += len(bodies)
        if time.monotonic() >= until:
            break
    return done


def _list_due_grants(now: datetime) -> list[int]:
    """Those of the same server stand together, because their calls are read together."""
    stale = Q(finding=None) | Q(finding__made_at__lte=now - RENEWED) | Q(finding__made_at__gt=now)
    server = Coalesce("server_id", "tool__server_id")
    rows = Grant.objects.filter(stale).order_by(
        F("finding__made_at").asc(nulls_first=True), server, "pk"
    )
    return list(rows.values_list("pk", flat=True)[:_IN_ONE_PASS])


def _analyze(keys: Sequence[int], now: datetime, until: float) -> dict[Grant, dict[str, Any]]:
    """What is proposed of each grant, for each period; of fewer grants if the time is over, but at
    least of one.

    Most grants of a large site are not used. They need no queries of their own.
    """
    begins = now - timedelta(days=max(PERIODS))
    known = find_record_start(now)
    last = find_last_calls(keys, begins)
    unused = [key for key in keys if key in last and last[key] is None]
    rows = Grant.objects.in_bulk(unused) | select_candidates().in_bulk({*keys} - {*unused})
    bodies: dict[Grant, dict[str, Any]] = {}
    for key in filter(rows.__contains__, keys):
        if bodies and time.monotonic() >= until:
            break
        past = (
            PastCalls(rows[key], begins, last[key]) if key in last else PastCalls(rows[key], begins)
        )
        found = {str(days): propose(past, days=days, now=now, known=known) for days in PERIODS}
        bodies[rows[key]] = {
            days: _encode_proposal(each) for days, each in found.items() if each is not None
        }
    return bodies


def _write(bodies: Mapping[Grant, dict[str, Any]], now: datetime) -> None:
    """Calls were read before this: nothing waits for the lock that it takes."""
    rows = [
        AccessFinding(grant=row, made_at=now, facts=_hash_grant(row), body=body)
        for row, body in bodies.items()
    ]
    with transaction.atomic():
        there = (
            Grant.objects.select_for_update()
            .filter(pk__in=[row.grant_id for row in rows])
            .order_by("pk")
        )
        known = set(there.values_list("pk", flat=True))
        AccessFinding.objects.bulk_create(
            [row for row in rows if row.grant_id in known],
            update_conflicts=True,
            unique_fields=["grant"],
            update_fields=["made_at", "facts", "body"],
        )


def load_findings(grants: Iterable[Grant], *, days: int) -> Findings:
    """The proposals for these grants and one of ``PERIODS``, in two queries."""
    of = {grant.pk: grant for grant in grants}
    rows = [
        row
        for row in AccessFinding.objects.filter(grant_id__in=of)
        if row.facts == _hash_grant(of[row.grant_id])
    ]
    bodies = {row.grant_id: body for row in rows if (body := row.body.get(str(days)))}
    wanted = {after["tool_id"] for body in bodies.values() for after in body["after"]}
    tools = Tool.objects.select_related("server").in_bulk(wanted - {None})
    # A proposal with a tool that is gone is not one any more.
    proposals = {
        pk: _decode_proposal(of[pk], body, tools)
        for pk, body in bodies.items()
        if {after["tool_id"] for after in body["after"]} <= {None, *tools}
    }
    return Findings(proposals, {row.grant_id: row.made_at for row in rows})


def _hash_grant(grant: Grant) -> str:
    return hash_parts("grant", *map(str, list_column_values(grant)))


def _encode_proposal(found: GrantProposal) -> dict[str, Any]:
    looked = found.looked
    return {
        "kind": found.kind,
        "says": found.says,
        "after": [{name: getattr(row, name) for name in _SAME} for row in found.after],
        "pins": found.pins,
        "looked": {"calls": looked.calls, "since": looked.since.isoformat(), "all": looked.all},
        "stopped": [[use.call, use.tool, use.at.isoformat()] for use in found.stopped],
        "stops": found.stops,
        "unjudged": found.unjudged,
    }


def _decode_proposal(
    grant: Grant, body: Mapping[str, Any], tools: Mapping[int, Tool]
) -> GrantProposal:
    looked = body["looked"]
    return GrantProposal(
        grant=grant,
        kind=body["kind"],
        says=body["says"],
        after=tuple(_decode_grant(grant, row, tools) for row in body["after"]),
        pins=body["pins"],
        looked=AnalyzedCalls(
            looked["calls"], datetime.fromisoformat(looked["since"]), looked["all"]
        ),
        stopped=tuple(
            PastUse(call, tool, datetime.fromisoformat(at), None)
            for call, tool, at in body["stopped"]
        ),
        stops=body["stops"],
        unjudged=body["unjudged"],
    )


def _decode_grant(grant: Grant, row: Mapping[str, Any], tools: Mapping[int, Tool]) -> Grant:
    """A proposed grant, unsaved. A grant of a whole server keeps its server."""
    what: dict[str, Any] = (
        {"tool": tools[row["tool_id"]]} if row["tool_id"] else {"server": grant.server}
    )
    return copy_grant(
        grant, **what | {name: row[name] for name in ("kind", "uri", "argument_pins")}
    )
