"""What is used, how fast, what fails and what it costs: a page, the same as a file, and what fails
alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.usage_advice import Advice
from mcpregistry.models import Agent, Endpoint, Server
from mcpregistry.queries import failures as failures_of
from mcpregistry.queries import usage as queries
from mcpregistry.queries.definition_sizes import sort_page, with_definitions
from mcpregistry.queries.failures import Pattern, ToolCount
from mcpregistry.queries.usage import PERIODS, By, UsageFilter, UsagePeriod, UsageRow
from mcpregistry.web.approvals.history import stream_csv
from mcpregistry.web.pages import page, show

_PAGE = 50
_TABS = {
    By.TOOL: _("Tools"),
    By.SERVER: _("Servers"),
    By.AGENT: _("Agents"),
    By.ENDPOINT: _("Endpoints"),
    By.EXPERT: _("Expert tools"),
}
_TITLES = {
    By.TOOL: _("Tool"),
    By.SERVER: _("Server"),
    By.AGENT: _("Agent"),
    By.ENDPOINT: _("Endpoint"),
    By.EXPERT: _("Expert tool"),
}
_MOST_ADVICE = 12
_MOST_TOOLS = 3  # of a pattern that are named
_MAY_SEE_BILL = tuple(
    f"mcpregistry.view_{model}" for model in ("agent", "tool", "grant", "invocation")
)
_ONE = {"server", "agent", "endpoint", "tool"}


@dataclass(frozen=True, slots=True)
class _Column:
    """Of the table: what its link sorts by, and whether it does now. ``wide``: left out on small
    screens."""

    name: str
    title: str
    hint: str
    wide: bool
    query: str
    now: str  # ascending, descending or nothing


_COLUMNS = (
    ("calls", _("Calls"), "", False),
    ("trend", _("Trend"), _("Calls compared with the previous period"), True),
    (
        "errors",
        _("Errors"),
        _("Failures of the tool, of its server or of this site, excluding refused calls"),
        False,
    ),
    (
        "p50",
        _("p50"),
        _(
            "Half of the calls that did not need an approval took less time (accurate to within 19 %)"
        ),
        True,
    ),
    (
        "p95",
        _("p95"),
        _(
            "95 % of the calls that did not need an approval took less time (accurate to within 19 %)"
        ),
        False,
    ),
    ("result_tokens", _("Result tokens"), _("About one token per four characters"), True),
    (
        "definition_tokens",
        _("Definitions"),
        _(
            "Approximate number of tokens that the definitions add to each turn of a model that sees them"
        ),
        True,
    ),
    (
        "cost",
        _("Cost"),
        _(
            "The cost of calls, from the pages of the tools, and the cost of runs of expert tools; a dash if the cost is not known"
        ),
        True,
    ),
    ("last_used", _("Last used"), "", True),
)


@page("view_invocation")
def index(request: HttpRequest) -> HttpResponse:
    """The page: rows of one kind in a period, sorted and narrowed by the address."""
    by = _by(request)
    period = _period(request)
    wanted = _read_filters(request)
    sort = _sort(request)
    now = timezone.now()
    found = queries.usage(by, period, now=now, wanted=wanted)
    rows = found.rows
    number = _number(request, len(found.rows))
    page = slice((number - 1) * _PAGE, number * _PAGE)
    shown = sort_page(rows, sort, page, by, now=now, wanted=wanted)
    advised = queries.sort_rows((row for row in rows if row.advice), sort)
    advice = with_definitions(advised[:_MOST_ADVICE], by, now=now, wanted=wanted)
    context = _build_context(request, period, wanted) | {
        "title": _("Usage"),
        "by": by,
        "kind": _TITLES[by],
        "tabs": [
            (each, title, _with(request, by=each, sort="", page=""))
            for each, title in _TABS.items()
        ],
        "total": found.total,
        "columns": _columns(request, sort, by),
        "rows": [
            (row, _links(row, by, request, period), row.codes[:1], row.codes[1:]) for row in shown
        ],
        "count": len(rows),
        "first": (number - 1) * _PAGE + 1,
        "last": (number - 1) * _PAGE + len(shown),
        "before": _with(request, page=str(number - 1)) if number > 1 else "",
        "next": _with(request, page=str(number + 1)) if number * _PAGE < len(rows) else "",
        "advised": [_describe_advice(row, by, request, period) for row in advice],
        "more_advised": len(advised) - _MOST_ADVICE,
        "live_from": found.live_from,
        "missing_from": found.missing_from,
        "csv": request.GET.urlencode(),
    }
    return show(request, "usage/index.html", context)


@page("view_invocation")
def as_csv(request: HttpRequest) -> HttpResponse:
    """All rows of the page, for spreadsheets; times are milliseconds."""
    by = _by(request)
    period = _period(request)
    wanted = _read_filters(request)
    now = timezone.now()
    found = queries.usage(by, period, now=now, wanted=wanted)
    rows = sort_page(found.rows, _sort(request), slice(None), by, now=now, wanted=wanted)
    columns = (
        "server",
        str(by),
        "calls",
        "calls before",
        "errors",
        "refused",
        "codes",
        "p50 ms",
        "p95 ms",
        "p95 ms before",
        "result tokens",
        "definition tokens",
        "dollars",
        "last used",
        "advice",
    )
    lines = map(_line, rows)
    return stream_csv(f"usage-by-{by}-{period.name}", columns, lines)  # type: ignore[return-value]


def _line(row: UsageRow) -> tuple[Any, ...]:
    tally = row.tally
    codes = "; ".join(f"{code} {count}" for code, count in row.codes)
    last = tally.last.isoformat(timespec="seconds") if tally.last else ""
    return (
        row.server,
        row.name,
        tally.calls,
        row.before.calls,
        tally.errors,
        tally.refused,
        codes,
        _round_value(row.p50),
        _round_value(row.p95),
        _round_value(row.before.p95),
        row.result_tokens,
        row.definition_tokens,
        row.dollars,
        last,
        " ".join(each.words for each in row.advice),
    )


def _round_value(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


@page("view_invocation")
def failures(request: HttpRequest) -> HttpResponse:
    """What failed alike: the same code and shape of words is one row."""
    period = _period(request)
    wanted = _read_filters(request)
    found = failures_of.patterns(period, now=timezone.now(), wanted=wanted)
    rows = [_failing(each, period) for each in found.rows]
    context = _build_context(request, period, wanted) | {
        "title": _("Failures"),
        "rows": rows,
        "cut": found.cut,
    }
    return show(request, "usage/failures.html", context)


def _failing(
    each: Pattern, period: UsagePeriod
) -> tuple[Pattern, list[tuple[ToolCount, str]], int]:
    """A pattern, its tools with the addresses of their calls that have this code, and how many more
    tools there are."""
    calls = reverse("admin:mcpregistry_invocation_changelist")
    tools = []
    for tool in each.tools[:_MOST_TOOLS]:
        query = _query(server=tool.server, tool_name=tool.tool, period=period.of_calls, q=each.code)
        tools.append((tool, f"{calls}?{query}"))
    return each, tools, len(each.tools) - len(tools)


# The address


def _build_context(
    request: HttpRequest, period: UsagePeriod, wanted: UsageFilter
) -> dict[str, Any]:
    return {
        "period": period,
        "periods": [(each, _with(request, period=each.name, page="")) for each in PERIODS.values()],
        "values": wanted,
        "given": {
            name: request.GET[name]
            for name in ("by", "period", "sort", "tool")
            if name in request.GET
        },
        "narrowed": bool(wanted.search or any(getattr(wanted, name) for name in _ONE)),
        "all": _with(request, server="", agent="", endpoint="", tool="", search="", page=""),
        "servers": list(Server.objects.order_by("slug").values_list("slug", flat=True)),
        "agents": list(Agent.objects.order_by("slug").values_list("slug", flat=True)),
        "endpoints": list(Endpoint.objects.order_by("slug").values_list("slug", flat=True)),
    }


def _by(request: HttpRequest) -> By:
    given = request.GET.get("by", "")
    return By(given) if given in {*By} else By.TOOL


def _period(request: HttpRequest) -> UsagePeriod:
    return PERIODS.get(request.GET.get("period", ""), PERIODS["7d"])


def _sort(request: HttpRequest) -> str:
    given = request.GET.get("sort", "")
    return given if given.removeprefix("-") in queries.SORTS else "-calls"


def _read_filters(request: HttpRequest) -> UsageFilter:
    names = ("server", "tool", "agent", "endpoint", "search")
    return UsageFilter(
        **{name: request.GET.get(name, "").replace("\x00", "")[:500] for name in names}
    )


def _number(request: HttpRequest, rows: int) -> int:
    given = request.GET.get("page", "")
    return (
        min(int(given), -(-rows // _PAGE) or 1)
        if given.isascii() and given.isdigit() and 0 < len(given) < 7 and int(given)
        else 1
    )


def _with(request: HttpRequest, **changes: str) -> str:
    """The address's query with these instead; an empty one is left out."""
    query = request.GET.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return query.urlencode()


def _query(**values: str) -> str:
    return urlencode({name: value for name, value in values.items() if value})


def _columns(request: HttpRequest, sort: str, by: By) -> list[_Column]:
    found = []
    for name, title, hint, wide in (("name", _TITLES[by], "", False), *_COLUMNS):
        now = {name: "ascending", f"-{name}": "descending"}.get(sort, "")
        other = name if now == "descending" or (name == "name" and not now) else f"-{name}"
        found.append(
            _Column(name, str(title), str(hint), wide, _with(request, sort=other, page=""), now)
        )
    return found


def _links(row: UsageRow, by: By, request: HttpRequest, period: UsagePeriod) -> dict[str, str]:
    """``calls``: the calls of the row, by the filters of the page; ``inside``: what it consists of,
    or the tool itself; ``failures``: alike ones; ``bill``: the definitions one by one. Empty for
    names that nothing has, which no list can be narrowed to."""
    wanted = _read_filters(request)
    filters = {
        "server": wanted.server,
        "tool_name": wanted.tool,
        "agent": wanted.agent,
        "endpoint_slug": wanted.endpoint,
    }
    names = {
        By.TOOL: {"server": row.server, "tool_name": row.name},
        By.EXPERT: {"server": row.server, "tool_name": row.name},
        By.SERVER: {"server": row.name},
        By.AGENT: {"agent": row.name},
        By.ENDPOINT: {"endpoint_slug": row.name},
    }
    calls = _query(**(filters | names[by]), period=period.of_calls)
    inside = (
        reverse("admin:mcpregistry_tool_change", args=[row.pk]) if by is By.TOOL and row.pk else ""
    )
    if by in {By.SERVER, By.AGENT, By.ENDPOINT}:
        inside = (
            f"?{_with(request, by='tool', page='', sort='', search='', **{str(by): row.name})}"
            if row.name
            else ""
        )
    alike = {
        By.TOOL: {"server": row.server, "tool": row.name},
        By.EXPERT: {"server": row.server, "tool": row.name},
        By.SERVER: {"server": row.name},
    }
    failing = _query(**alike[by], period=period.name) if by in alike and row.tally.errors else ""
    return {
        "calls": f"{reverse('admin:mcpregistry_invocation_changelist')}?{calls}"
        if row.name
        else "",
        "inside": inside,
        "failures": f"{reverse('usage:failures')}?{failing}" if failing else "",
        "bill": _bill(row, by, request),
    }


_EVIDENCE = {
    "grown slower": (_("Slowest calls"), "&o=-4"),
    "slower than the other tools of its server": (_("Slowest calls"), "&o=-4"),
    "large results": (_("Largest results"), "&o=-5"),
}  # by kind of advice: the order is that of a column of the list of calls


def _describe_advice(
    row: UsageRow, by: By, request: HttpRequest, period: UsagePeriod
) -> tuple[UsageRow, dict[str, str], list[tuple[Advice, str, str]]]:
    """A tool with its advice, and for each the label and address of what it is about."""
    links = _links(row, by, request, period)
    found = []
    for each in row.advice:
        label, order = _EVIDENCE.get(each.kind, (_("Failures"), ""))
        found.append((each, str(label), f"{links['calls']}{order}" if order else links["failures"]))
    return row, links, found


def _bill(row: UsageRow, by: By, request: HttpRequest) -> str:
    """The context bill of an agent or endpoint, for people who may see it."""
    if (
        by not in {By.AGENT, By.ENDPOINT}
        or not row.definition
        or not request.user.has_perms(_MAY_SEE_BILL)
    ):
        return ""
    wanted = _read_filters(request)
    named = {"agent": wanted.agent, "endpoint": wanted.endpoint} | {str(by): row.name}
    return f"{reverse('context-bill')}?{_query(**named)}"
