"""What was asked and decided: a page, and the same as a CSV file that no spreadsheet takes for
formulas."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext as _

from mcpregistry.db import stream_rows
from mcpregistry.domain.calls.arguments import hash_stored_text
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, ApprovalRequest, ApprovalVote, EnergyEntry, Server
from mcpregistry.queries import approvals as queries
from mcpregistry.queries.approvals import HistoryFilter
from mcpregistry.web.approvals import call_facts
from mcpregistry.web.approvals.queue import read_filters
from mcpregistry.web.pages import page, person, show

_PAGE = 50
WAITING = "slipsnisse-download"  # the cookie by which a page knows that its file has not begun
_MOST = 50_000  # rows of one file
_CELL = 32_000  # characters; spreadsheets cut cells a little above
# A cell that begins with one of these is a formula, or hides one, in some spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|")
_COLUMNS = (
    "id",
    "asked",
    "decided",
    "seconds",
    "end",
    "call state",
    "risk",
    "server",
    "tool",
    "agent",
    "endpoint",
    "host",
    "rule",
    "quorum",
    "votes",
    "reason",
    "edited",
    "arguments sha256",
    "energy",
    "arguments",
)


@page("view_approvalrequest")
def history(request: HttpRequest) -> HttpResponse:
    """Decided and open requests, newest first, narrowed by the address's filters."""
    found = queries.query_history(read_filters(request), _period(request), who=person(request))
    found = found.defer("result", "said", "edited", "call__result", "call__arguments")
    rows, more = queries.page_of(found, after=_after(request), size=_PAGE)
    context = {
        "title": _("History of approvals"),
        "rows": [(row, queries.end_of(row)) for row in rows],
        "ends": list(queries.ENDS),
        "next": _next(request, rows[-1]) if more else "",
        "query": _query(request),
        "values": _values(request),
        "approvers": _names(
            ApprovalVote.objects.order_by("name").values_list("name", flat=True).distinct()[:500]
        ),
        "rules": _names(
            ApprovalRequest.objects.order_by("rule_name")
            .values_list("rule_name", flat=True)
            .distinct()[:500]
        ),
        "servers": list(Server.objects.order_by("slug").values_list("slug", flat=True)),
        "agents": list(Agent.objects.order_by("slug").values_list("slug", flat=True)),
    }
    return show(request, "approvals/history.html", context)


def _names(found: Iterable[str]) -> list[str]:
    return [name for name in found if name]


def _values(request: HttpRequest) -> dict[str, str]:
    names = ("end", "approver", "rule", "agent", "server", "since", "until", "search")
    return {name: request.GET.get(name, "") for name in names}


def _period(request: HttpRequest) -> HistoryFilter:
    since = _moment(request.GET.get("since", ""))
    until = _moment(request.GET.get("until", ""), whole_day=True)
    approver = request.GET.get("approver", "").replace("\x00", "")[:150]
    return HistoryFilter(request.GET.get("end", ""), approver, since, until)


def _moment(text: str, *, whole_day: bool = False) -> datetime | None:
    """A date (as until: that whole day) or a time, UTC unless it says otherwise; None for anything
    else."""
    try:
        moment = parse_datetime(text) if "T" in text else None
        day = None if moment else parse_date(text)
        if day is not None:
            moment = datetime.combine(day, time.min) + timedelta(days=1 if whole_day else 0)
    except (ValueError, OverflowError):  # well formed and yet no day, such as 30 February
        return None
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)


# A cursor is the last row's time and id: a forged one can do no more than start somewhere else.


def _next(request: HttpRequest, last: ApprovalRequest) -> str:
    query = request.GET.copy()
    query["after"] = f"{last.asked_at.astimezone(UTC).isoformat()}_{last.pk}"
    return query.urlencode()


def _after(request: HttpRequest) -> tuple[datetime, str] | None:
    at, _, pk = request.GET.get("after", "").replace("\x00", "").partition("_")
    moment = _moment(at)
    return (moment, pk) if moment and pk else None


def _query(request: HttpRequest) -> str:
    query = request.GET.copy()
    query.pop("after", None)
    return query.urlencode()


# The file


class _Echo:
    def write(self, text: str) -> str:
        return text


@page("view_approvalrequest")
def as_csv(request: HttpRequest) -> HttpResponse:
    """What the page would show, up to 50,000 rows, streamed."""
    found = queries.query_history(read_filters(request), _period(request), who=person(request))
    rows = found.annotate(energy=EnergyEntry.of_call("call_id"))[:_MOST]
    return stream_csv("approvals", _COLUMNS, (_line(row) for row in stream_rows(rows, 500)))  # type: ignore[return-value]


def _line(row: ApprovalRequest) -> tuple[Any, ...]:
    call = row.call
    text = call_facts.effective(row)
    votes = "; ".join(
        f"{vote.name}: {'approve' if vote.approve else 'reject'} ({vote.via})"
        for vote in row.votes.all()
    )
    took = f"{(row.decided_at - row.asked_at).total_seconds():.1f}" if row.decided_at else ""
    return (
        row.pk,
        _iso(row.asked_at),
        _iso(row.decided_at),
        took,
        queries.end_of(row),
        call.state,
        row.risk,
        call.server_slug,
        call.tool_name,
        call.agent_slug,
        call.endpoint_slug,
        call.host_name,
        row.rule_name,
        row.quorum,
        votes,
        row.decided_reason,
        "yes" if row.edited else "no",
        hash_stored_text(text) if text else "",
        "" if row.energy is None else f"{row.energy:.3f}",  # type: ignore[attr-defined]
        text,
    )


def _iso(moment: datetime | None) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds") if moment else ""


def stream_csv(
    name: str, columns: Iterable[str], lines: Iterable[tuple[Any, ...]]
) -> StreamingHttpResponse:
    """A CSV file, streamed, every cell quoted and made safe by ``cell``; the link that asked for it
    rests (``working.js``)."""
    writer = csv.writer(_Echo(), quoting=csv.QUOTE_ALL)

    def write_rows() -> Iterator[str]:
        yield writer.writerow(columns)
        for line in lines:
            yield writer.writerow([cell(value) for value in line])

    response = StreamingHttpResponse(write_rows(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}-{timezone.now():%Y-%m-%d}.csv"'
    response.delete_cookie(WAITING)
    return response


def cell(value: object) -> str:
    """Text for a spreadsheet: invisible characters named, and an apostrophe before what would be a
    formula."""
    text = show_invisible_characters("" if value is None else str(value), _CELL)
    return (
        f"'{text}" if text.startswith(_FORMULA) or text.lstrip(" ").startswith(_FORMULA) else text
    )
