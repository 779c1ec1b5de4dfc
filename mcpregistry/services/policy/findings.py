"""The stored proposals of the access analyzer. The clock makes them, so that pages only read one row for each grant.

Analyzing a grant can mean reading thousands of calls. Each pass of the clock therefore works for one second: first on
grants that were never analyzed, then on the oldest. If a grant has changed since, its stored proposal is not shown.
Applying a proposal reads all calls again (``analyzer.apply``), so an old proposal does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q

from mcpregistry.domain.text.canonical import digest
from mcpregistry.models import AccessFinding, Grant, Tool
from mcpregistry.services.policy.analyzer import DAYS, Looked, Proposal, Use, analyse, candidates, facts_of, like

PERIODS = (1, 7, DAYS, 90)  # days
RENEWED = timedelta(hours=1)  # age at which a grant is analyzed again
_SECONDS = 1.0  # of one pass
_BATCH = 20  # grants that are written together
_IN_ONE_PASS = 2_000
_SAME = ("kind", "uri", "argument_pins", "tool_id", "server_id")  # of a grant that is proposed


@dataclass(frozen=True, slots=True)
class Findings:
    """Proposals by grant. ``made``: when each grant was analyzed; those without a time are not analyzed yet."""

    proposals: Mapping[int, Proposal]
    made: Mapping[int, datetime]

    @property
    def as_of(self) -> datetime | None:
        """When the oldest of them was made."""
        return min(self.made.values(), default=None)


def refresh(now: datetime, *, seconds: float = _SECONDS) -> int:
    """Analyze the grants that are due until ``seconds`` are over, at least one batch. Returns how many."""
    due = _due(now)
    began, done = time.monotonic(), 0
    while done < len(due) and (done == 0 or time.monotonic() - began < seconds):
        batch = list(candidates().filter(pk__in=due[done : done + _BATCH]))
        _write(batch, now)
        done += _BATCH
    return min(done, len(due))


def _due(now: datetime) -> list[int]:
    stale = Q(finding=None) | Q(finding__made_at__lte=now - RENEWED) | Q(finding__made_at__gt=now)
    rows = Grant.objects.filter(stale).order_by(F("finding__made_at").asc(nulls_first=True), "pk")
    return list(rows.values_list("pk", flat=True)[:_IN_ONE_PASS])


def _write(grants: Sequence[Grant], now: datetime) -> None:
    """Calls are read before anything is locked."""
    bodies: dict[int, dict[str, Any]] = {grant.pk: {} for grant in grants}
    for days in PERIODS:
        for found in analyse(grants, days=days, now=now):
            bodies[found.grant.pk][str(days)] = _stored(found)
    rows = [AccessFinding(grant=row, made_at=now, facts=_digest(row), body=bodies[row.pk]) for row in grants]
    with transaction.atomic():
        there = Grant.objects.select_for_update().filter(pk__in=bodies).order_by("pk")
        known = set(there.values_list("pk", flat=True))
        AccessFinding.objects.bulk_create(
            [row for row in rows if row.grant_id in known],
            update_conflicts=True, unique_fields=["grant"], update_fields=["made_at", "facts", "body"],
        )  # fmt: skip


def load(grants: Iterable[Grant], *, days: int) -> Findings:
    """The proposals for these grants and one of ``PERIODS``, in two queries."""
    of = {grant.pk: grant for grant in grants}
    rows = [row for row in AccessFinding.objects.filter(grant_id__in=of) if row.facts == _digest(of[row.grant_id])]
    bodies = {row.grant_id: body for row in rows if (body := row.body.get(str(days)))}
    wanted = {after["tool_id"] for body in bodies.values() for after in body["after"]}
    tools = Tool.objects.select_related("server").in_bulk(wanted - {None})
    # A proposal with a tool that is gone is not one any more.
    proposals = {
        pk: _proposal(of[pk], body, tools)
        for pk, body in bodies.items()
        if {after["tool_id"] for after in body["after"]} <= {None, *tools}
    }
    return Findings(proposals, {row.grant_id: row.made_at for row in rows})


def _digest(grant: Grant) -> str:
    return digest("grant", *map(str, facts_of(grant)))


def _stored(found: Proposal) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "says": found.says,
        "after": [{name: getattr(row, name) for name in _SAME} for row in found.after],
        "pins": found.pins,
        "looked": asdict(found.looked) | {"since": found.looked.since.isoformat()},
        "stopped": [[use.call, use.tool, use.at.isoformat()] for use in found.stopped],
        "stops": found.stops,
        "unjudged": found.unjudged,
    }


def _proposal(grant: Grant, body: Mapping[str, Any], tools: Mapping[int, Tool]) -> Proposal:
    looked = body["looked"]
    return Proposal(
        grant=grant,
        kind=body["kind"],
        says=body["says"],
        after=tuple(_grant(grant, row, tools) for row in body["after"]),
        pins=body["pins"],
        looked=Looked(looked["calls"], datetime.fromisoformat(looked["since"]), looked["all"]),
        stopped=tuple(Use(call, tool, datetime.fromisoformat(at), None) for call, tool, at in body["stopped"]),
        stops=body["stops"],
        unjudged=body["unjudged"],
    )


def _grant(grant: Grant, row: Mapping[str, Any], tools: Mapping[int, Tool]) -> Grant:
    """A proposed grant, unsaved. A grant of a whole server keeps its server."""
    what: dict[str, Any] = {"tool": tools[row["tool_id"]]} if row["tool_id"] else {"server": grant.server}
    return like(grant, **what | {name: row[name] for name in ("kind", "uri", "argument_pins")})
