"""Reads of the audit log. It grows without end, so each is bounded by an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.db.models import Count, F, Max, Min, Q, QuerySet, Sum

from mcpregistry.models import AuditArchive, AuditEntry, Invocation
from mcpregistry.models.audit import USUAL_KINDS

_CALL = "call:"
_FILES = 100
# entries that are looked at for each column that may begin with what was searched for
_BEGINNINGS = 1_000
_DISORDER = timedelta(hours=1)  # how far the clocks of processes may be apart
_LAST = chr(0x10FFFF)


def query_audit_of_call(call: Invocation) -> QuerySet[AuditEntry]:
    """The audit entries about a call, in the order in which they were written."""
    return AuditEntry.objects.filter(subject=f"call:{call.pk}").order_by("id")


def find_names_of_calls(
    entries: Iterable[AuditEntry], user: User | AnonymousUser
) -> dict[str, str]:
    """For each subject of these entries that is a call which this person may see: its server and
    tool."""
    ids = {each.subject.removeprefix(_CALL) for each in entries if each.subject.startswith(_CALL)}
    found = (
        Invocation.objects.visible_to(user)
        .filter(pk__in=ids or {""})
        .values_list("pk", "server_slug", "tool_name")
    )
    return {f"{_CALL}{pk}": f"call of {server}::{tool}" for pk, server, tool in found}


def list_archive_files() -> Sequence[Mapping[str, object]]:
    """The newest files of archived entries: when each was made, how many entries of how many
    chains, its SHA-256."""
    found = (
        AuditArchive.objects.order_by()
        .values("file")
        .annotate(
            made=Min("at"),
            entries=Sum(F("to_seq") - F("from_seq") + 1),
            chains=Count("writer", distinct=True),
            sha256=Min("digest"),
            last=Max("number"),
        )
    )
    return list(found.order_by("-last")[:_FILES])


def filter_entries(
    *,
    kind: str | None = None,
    actor: str | None = None,
    subject: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> QuerySet[AuditEntry]:
    """The entries that fit, newest first; for REST's list. What is None narrows nothing."""
    exact = {"actor": actor, "subject": subject, "at__gte": since, "at__lt": until}
    rows = AuditEntry.objects.filter(**{k: v for k, v in exact.items() if v is not None})
    if since is not None:
        rows = rows.filter(id__gte=_find_number_at(_shift_time(since, -_DISORDER)))
    if until is not None:
        rows = rows.filter(id__lt=_find_number_at(_shift_time(until, _DISORDER)))
    return _of_kind(rows, kind) if kind is not None else rows


def _shift_time(at: datetime, by: timedelta) -> datetime:
    """So much earlier or later; where the calendar ends, not at all."""
    try:
        return at + by
    except OverflowError:
        return at


def _of_kind(rows: QuerySet[AuditEntry], kind: str) -> QuerySet[AuditEntry]:
    return (rows if kind in USUAL_KINDS else _unusual(rows)).filter(kind=kind)


def _unusual(rows: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
    """Those that the partial index by kind holds; SQLite uses it only for its very condition, in
    literal words."""
    usual = ", ".join(map(repr, USUAL_KINDS))
    return rows.extra(where=[f"NOT (mcpregistry_auditentry.kind IN ({usual}))"])  # noqa: S610 - our own words


def _find_number_at(at: datetime) -> int:
    """The number of the first entry from then on, by halves: numbers rise with the time, and a
    third index costs every call."""
    rows = AuditEntry.objects.order_by("id").values_list("id", "at")
    (low, _) = rows.first() or (0, at)
    (last, _) = rows.last() or (0, at)
    high = last + 1
    while low < high:
        middle = (low + high) // 2
        number, moment = rows.filter(id__gte=middle).first() or (high, at)
        low, high = (number + 1, high) if moment < at else (low, middle)
    return low


def search_entries(rows: QuerySet[AuditEntry], words: str) -> QuerySet[AuditEntry]:
    """Entries whose kind, actor or subject is exactly this; where there are none, those where one
    begins with it.

    Of beginnings a thousand of each column at most.
    """
    for way in (Q(subject=words), Q(actor=words)):
        if AuditEntry.objects.filter(way).exists():
            return rows.filter(way)
    if _of_kind(AuditEntry.objects.all(), words).exists():
        return _of_kind(rows, words)
    found = {
        pk for column in ("subject", "actor", "kind") for pk in _find_beginning_with(column, words)
    }
    return rows.filter(pk__in=found)


def _find_beginning_with(column: str, words: str) -> Iterable[int]:
    rows = AuditEntry.objects.all() if column != "kind" else _unusual(AuditEntry.objects.all())
    if connection.vendor == "postgresql":  # whose "greater" may be of a language
        begins = rows.filter(**{f"{column}__startswith": words}).order_by()
    else:
        begins = rows.filter(**{f"{column}__gte": words, f"{column}__lt": words + _LAST}).order_by(
            column
        )
    return begins.values_list("pk", flat=True)[:_BEGINNINGS]
