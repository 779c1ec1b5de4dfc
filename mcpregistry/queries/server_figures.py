"""What calls of servers, and of the tools of one, came to: counted by the clock as on the pages of
usage, so that who asks about fifty busy servers does not go through all calls of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, OuterRef, Subquery

from mcpregistry.domain.lifecycle import FAILED, InvocationState
from mcpregistry.domain.usage import UsageTally
from mcpregistry.models import Invocation, Server
from mcpregistry.queries.usage import PERIODS, By, UsageFilter, sums

PERIOD = PERIODS["90d"]
SAMPLE = 5_000
_USED = (InvocationState.SUCCEEDED, *FAILED)


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Of the last 90 days. ``last``: of a server its newest call that succeeded or failed, of a
    tool its newest of any kind; ``mean``: milliseconds that the newest calls of a tool took, among
    the newest 5,000 of its server."""

    succeeded: int = 0
    failed: int = 0
    refused: int = 0
    last: datetime | None = None
    mean: float | None = None


def compute_server_figures(slugs: Collection[str], *, now: datetime) -> dict[str, ServerFigures]:
    """By server, for REST; of those alone that were called. In a fixed number of questions, however
    many there are."""
    found = sums(
        By.SERVER,
        PERIOD,
        now=now,
        wanted=UsageFilter(server=next(iter(slugs)) if len(slugs) == 1 else ""),
    )
    called = [slug for slug in slugs if (slug,) in found]
    still_open = _count_open("server_slug") if called else {}
    figures = {slug: _figures(found[slug,], still_open.get((slug,), 0)) for slug in called}
    last = _find_last(slug for slug, each in figures.items() if each.succeeded or each.failed)
    return {slug: replace(each, last=last.get(slug)) for slug, each in figures.items()}


def compute_tool_figures(server: str, *, now: datetime) -> dict[str, ServerFigures]:
    """By tool, as records name it, also of tools that are gone; for REST."""
    found = sums(By.TOOL, PERIOD, now=now, wanted=UsageFilter(server=server))
    still_open = _count_open("server_slug", "tool_name") if found else {}
    means = _compute_means(server)
    return {
        name[1]: replace(
            _figures(tally, still_open.get(name, 0)), last=tally.last, mean=means.get(name[1])
        )
        for name, tally in found.items()
    }


def _figures(tally: UsageTally, still_open: int) -> ServerFigures:
    """Whoever has an end, and neither failed nor was refused, succeeded."""
    succeeded = tally.calls - tally.errors - tally.refused - still_open
    return ServerFigures(max(0, succeeded), tally.errors, tally.refused)


def _count_open(*columns: str) -> dict[tuple[str, ...], int]:
    """Of all servers: those few have an index, which SQLite leaves for that of servers where any
    are named."""
    rows = Invocation.objects.open().order_by().values_list(*columns).annotate(Count("id"))
    return {tuple(row[:-1]): row[-1] for row in rows}


def _find_last(slugs: Iterable[str]) -> dict[str, datetime]:
    """A look at an index for each, not the greatest of all its calls."""
    used = Invocation.objects.filter(server_slug=OuterRef("slug"), state__in=_USED).order_by(
        "-received_at"
    )
    rows = Server.objects.filter(slug__in=list(slugs)).order_by()
    return dict(rows.values_list("slug", Subquery(used.values("received_at")[:1])))


def _compute_means(server: str) -> dict[str, float]:
    """Of calls that were sent, and that nobody was asked about."""
    newest = Invocation.objects.filter(server_slug=server).order_by("-received_at", "-id")
    took: dict[str, list[float]] = {}
    for tool, state, outcome, milliseconds in newest.values_list(
        "tool_name", "state", "outcome", "duration_ms"
    )[:SAMPLE]:
        if milliseconds is not None and outcome != "ask" and state in _USED:
            took.setdefault(tool, []).append(milliseconds)
    return {tool: sum(each) / len(each) for tool, each in took.items()}
