"""Calls as usage counts them: the clock reads each hour so that is over, pages the one that is
not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from django.db.models import Case, Count, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Substr

from mcpregistry.db import stream_rows
from mcpregistry.domain import offer_kinds
from mcpregistry.domain.budgets import convert_dollars
from mcpregistry.domain.lifecycle import FAILED, SUPPOSED, TERMINAL, InvocationState
from mcpregistry.domain.usage import CallFact, Key, Tallied, Totals, tally_calls
from mcpregistry.extensions import list_extensions
from mcpregistry.models import Invocation, Tool

_TEXT = 600  # characters of a result in which the words of a failure are looked for


def filter_received(since: datetime, until: datetime | None) -> QuerySet[Invocation]:
    """Calls that came in [since, until), or since then."""
    found = Invocation.objects.filter(received_at__gte=since).order_by()
    return found if until is None else found.filter(received_at__lt=until)


def tally_calls_between(
    since: datetime,
    until: datetime | None = None,
    *,
    priced: bool = True,
    still_open: Iterable[datetime] = (),
    conditions: Mapping[str, str] | None = None,
) -> Tallied:
    """What the calls of an hour come to; in one query for the calls, and one or two for what they
    cost. ``still_open`` as ``open_calls`` says, looked at before: pages, which do not tell what may
    still change, need none of it.

    ``conditions``: values of columns that the calls must have, for pages that show a part of the
    calls.
    """
    found = tally_calls(
        _read_facts(
            filter_received(since, until).filter(**(conditions or {})), since, until, priced
        )
    )
    found.totals = _add_open_calls(found.totals, still_open, since, until)
    return found


def open_calls() -> list[datetime]:
    """When each call was received that may still come to cost more; there are few at any time."""
    return [at for extension in list_extensions() for at in extension.list_open_calls()]


def count_totals(since: datetime, until: datetime, still_open: Iterable[datetime]) -> Totals:
    """How many calls came and failed, and how many may still change or cost more: in one query of
    an index's range. ``still_open`` as ``open_calls`` says: for all hours of a pass at once."""
    unsettled = ~Q(state__in=[*TERMINAL]) | Q(state=InvocationState.UNKNOWN, error_code=SUPPOSED)
    found = filter_received(since, until).aggregate(
        calls=Count("id"), errors=Count("id", Q(state__in=FAILED)), unsettled=Count("id", unsettled)
    )
    return _add_open_calls(Totals(**found), still_open, since, until)


def _add_open_calls(
    found: Totals, still_open: Iterable[datetime], since: datetime, until: datetime | None
) -> Totals:
    within = sum(since <= at and (until is None or at < until) for at in still_open)
    return found._replace(unsettled=found.unsettled + within)


def _read_facts(
    calls: QuerySet[Invocation], since: datetime, until: datetime | None, priced: bool
) -> Iterator[CallFact]:
    words = Case(
        When(state__in=FAILED, then=Substr("result", 1, _TEXT)),
        default=Value(""),
        output_field=TextField(),
    )
    rows = calls.values_list(
        "id",
        "agent_slug",
        "endpoint_slug",
        "server_slug",
        "tool_name",
        "state",
        "error_code",
        "reason",
        words,
        "dispatched_at",
        "outcome",
        "duration_ms",
        "result_bytes",
        "received_at",
    )
    prices, costs = (_prices(), _costs(since, until)) if priced else ({}, {})
    for (
        pk,
        agent,
        endpoint,
        server,
        tool,
        state,
        code,
        reason,
        said,
        sent,
        outcome,
        took,
        size,
        at,
    ) in stream_rows(rows, 2_000):
        key = Key(agent, endpoint, server, tool if server else "")
        price = prices.get((server, tool)) if sent else None
        cost = costs.get(pk) if price is None else price + costs.get(pk, 0)
        why = reason if state in FAILED else ""
        yield CallFact(
            pk,
            key,
            state,
            code,
            why,
            said or "",
            bool(sent),
            outcome == "ask",
            took,
            size,
            cost,
            at,
        )


def _prices() -> dict[tuple[str, str], int]:
    """What an operator has entered that a call of a tool costs."""
    priced = Tool.offers.filter(call_cost__isnull=False).values_list(
        "server__slug", "kind", "name", "call_cost"
    )
    return {
        (server, offer_kinds.spell_offer_key(kind, name)): convert_dollars(cost)
        for server, kind, name, cost in priced
        if cost is not None
    }


def _costs(since: datetime, until: datetime | None) -> dict[str, int]:
    return {
        call: cost
        for extension in list_extensions()
        for call, cost in extension.sum_call_costs(since, until).items()
    }
