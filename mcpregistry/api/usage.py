"""What is used, how fast, what fails and what it costs."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query

from mcpregistry.api.paging import Cursor, Limit, slice_rows
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Slug, Text
from mcpregistry.api.schemas.usage import PatternOut, UsageOut, pattern_out, usage_out
from mcpregistry.queries import usage as queries
from mcpregistry.queries.definition_sizes import with_definitions
from mcpregistry.queries.failures import patterns
from mcpregistry.queries.usage import PERIODS, By, UsageFilter

router = PermissionRouter(tags=["usage"])

PeriodName = Literal["24h", "7d", "30d", "90d"]
_NAMES = Literal[
    "name",
    "calls",
    "errors",
    "error_rate",
    "p50",
    "p95",
    "trend",
    "result_tokens",
    "definition_tokens",
    "cost",
    "last_used",
    "-name",
    "-calls",
    "-errors",
    "-error_rate",
    "-p50",
    "-p95",
    "-trend",
    "-result_tokens",
    "-definition_tokens",
    "-cost",
    "-last_used",
]


@router.get("/usage", response=Page[UsageOut])
def list_usage(
    request: HttpRequest,
    *,
    by: By = By.TOOL,
    period: PeriodName = "7d",
    sort: Annotated[
        _NAMES, Query(description="The column to sort by. A leading `-` sorts the largest first.")
    ] = "-calls",
    server: Annotated[
        Slug | None, Query(description="Only calls to this server. `expert` means expert tools.")
    ] = None,
    tool: Annotated[Text, Query("", max_length=500)],
    agent: Slug | None = None,
    endpoint: Slug | None = None,
    search: Annotated[Text, Query("", max_length=200, description="Text that the name contains.")],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[UsageOut]:
    """Usage by tool, server, agent, endpoint or expert tool, compared with the previous period.
    Past hours are counted by the scheduler, so the figures can be up to five minutes old."""
    wanted = UsageFilter(server or "", tool, agent or "", endpoint or "", search)
    now = timezone.now()
    rows = queries.usage(by, PERIODS[period], now=now, wanted=wanted).rows
    if sort.endswith("definition_tokens"):
        rows = with_definitions(rows, by, now=now, wanted=wanted)
    rows = queries.sort_rows(rows, cast(str, sort))
    found = slice_rows(
        rows,
        key=lambda row: [row.server, row.name],
        limit=limit,
        cursor=cursor,
        show=lambda row: row,
    )
    shown = with_definitions(found.items, by, now=now, wanted=wanted)
    return Page[UsageOut](items=[usage_out(row) for row in shown], next=found.next)


@router.get("/usage/failures", response=Page[PatternOut])
def list_failures(
    request: HttpRequest,
    *,
    period: PeriodName = "7d",
    server: Slug | None = None,
    tool: Annotated[Text, Query("", max_length=500)],
    search: Annotated[
        Text, Query("", max_length=200, description="Text that the tool, code or message contains.")
    ],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[PatternOut]:
    """Groups of similar failures (same code and similar message), the most frequent first; at most
    200 groups per period. If there were more than 20,000 different failures in an hour, only the
    newest hours are counted."""
    wanted = UsageFilter(server=server or "", tool=tool, search=search)
    found = patterns(PERIODS[period], now=timezone.now(), wanted=wanted).rows
    return slice_rows(
        found,
        key=lambda each: [each.code, each.shape],
        limit=limit,
        cursor=cursor,
        show=pattern_out,
    )
