"""Which tools of a server were called in a period, however many calls there were: from the hours
that the clock has counted."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from django.db.models import Count, Sum

from mcpregistry.domain.usage import truncate_to_hour
from mcpregistry.models import CountedSpan, Invocation, SpanUsage
from mcpregistry.models.usage import SpanLength
from mcpregistry.queries.usage import find_counted_end
from mcpregistry.queries.usage_sums import COLUMNS, build_span_filter

# of calls that are not counted yet; the clock counts an hour soon after it is over
_READ = timedelta(hours=3)


def calls_by_tool(
    since: datetime, *, now: datetime, server: str, **whose: str
) -> Counter[str] | None:
    """How many calls of each tool an ``agent`` or an ``endpoint`` made since then, refused ones
    included.

    None where that is not known: the clock has not counted every hour, or an hour had more tools
    than it counts one by one.
    """
    found = count_calls_by_server_and_tool(since, now=now, server=server, **whose)
    return None if found is None else Counter({tool: count for (_, tool), count in found.items()})


def count_calls_by_server_and_tool(
    since: datetime, *, now: datetime, **wanted: str
) -> Counter[tuple[str, str]] | None:
    """The same of every server. Calls of names that no tool has are counted without a server and a
    tool."""
    begins = truncate_to_hour(since)
    counted = find_counted_end(now)
    if counted is None or counted < now - _READ or not _is_whole(begins, counted):
        return None
    conditions = {COLUMNS[part]: value for part, value in wanted.items()}
    hours = SpanUsage.objects.filter(build_span_filter(begins, counted), **conditions).order_by()
    newest = Invocation.objects.filter(received_at__gte=counted, **conditions).order_by()
    found: Counter[tuple[str, str]] = Counter()
    for server, tool, count in hours.values_list("server_slug", "tool_name").annotate(
        total=Sum("calls")
    ):
        if server and not tool:
            return None
        found[server, tool] += count
    for server, tool, count in newest.values_list("server_slug", "tool_name").annotate(
        total=Count("id")
    ):
        found[server, tool] += count
    return found


def _is_whole(begins: datetime, until: datetime) -> bool:
    """Whether every hour of it with calls was counted: hours before the first one had none."""
    hours = CountedSpan.objects.filter(span=SpanLength.HOUR)
    first = hours.order_by("begins").values_list("begins", flat=True).first()
    if first is None:
        return False
    begins = max(begins, first)
    return hours.filter(begins__gte=begins, begins__lt=until).count() == (
        until - begins
    ) // timedelta(hours=1)
