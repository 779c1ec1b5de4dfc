"""The past calls that a grant is about, as the access analyzer reads them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, F, QuerySet, TextField, Value, When
from django.db.models.functions import Length
from django.db.models.lookups import LessThanOrEqual

from mcpregistry.db import stream_rows
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.offer_kinds import PROMPT, READ, TOOL, parse_offer_key, spell_offer_key
from mcpregistry.models import Grant, Invocation, Server
from mcpregistry.models.invocation import Calls

_LONGEST = 20_000  # characters of arguments that are read; longer ones count as unknown
_READ_TOGETHER = 20_000  # calls of a server that are read for all its grants
_Row = tuple[str, str, datetime, str]


@dataclass(frozen=True, slots=True)
class PastUse:
    """One past call that the grant was about; ``arguments`` None: retention has erased them, or
    they are too long to read. Where nothing depends on them they are not read and empty."""

    call: str
    tool: str
    at: datetime
    arguments: dict[str, Any] | None


class PastCalls:
    """The calls of one grant since ``begins``. The newest are read at most once, for all periods
    that are analyzed.

    ``last`` is the time of the newest call, and None if there is none. Without ``last``,
    ``has_calls_since`` is a query.
    """

    def __init__(self, grant: Grant, begins: datetime, *last: datetime | None) -> None:
        self.grant = grant
        self._begins = begins
        self._last = last
        self._newest: list[PastUse] | None = None

    def has_calls_since(self, since: datetime) -> bool:
        """Whether there is any. ``since`` must not be before ``begins``."""
        if not self._last:
            return select_calls(self.grant, since).exists()
        (last,) = self._last
        return last is not None and last >= since

    def load_newest(self, since: datetime, most: int) -> list[PastUse]:
        """The newest ``most`` of them. ``most`` must be the same each time."""
        if self._last and not self.has_calls_since(since):
            return []
        if self._newest is None:
            rows = select_calls(self.grant, self._begins).order_by("-received_at", "-id")
            self._newest = [*map(_make_use, _select_columns(self.grant, rows)[:most])]
        return [use for use in self._newest if use.at >= since]


def find_last_calls(grants: Iterable[int], since: datetime) -> dict[int, datetime | None]:
    """The time of the newest call that each of these grants (by number) is about, None if there is
    none.

    The calls of each server are read once for all its grants. Grants of a server with more than
    ``_READ_TOGETHER`` calls are left out, so the time that this takes is limited.
    """
    by_server: dict[str, list[_Names]] = defaultdict(list)
    for names in _iterate_names(grants):
        by_server[names.server].append(names)
    found: dict[int, datetime | None] = {}
    for server, held in by_server.items():
        times = _find_last_by_name(server, since)
        if times is not None:
            found |= {names.grant: _find_newest(names, times) for names in held}
    return found


@dataclass(frozen=True, slots=True)
class _Names:
    """The names that calls of a grant have; empty is any."""

    grant: int
    agent: str
    endpoint: str
    server: str
    kind: str
    tool: str


def _iterate_names(grants: Iterable[int]) -> Iterator[_Names]:
    columns = (
        "agent__slug",
        "endpoint__slug",
        "server__slug",
        "kind",
        "tool__server__slug",
        "tool__kind",
        "tool__name",
    )
    rows = Grant.objects.filter(pk__in=grants).values_list("pk", *columns)
    for pk, agent, endpoint, server, kind, tool_server, tool_kind, tool in rows:
        key = spell_offer_key(tool_kind, tool) if tool else ""
        yield _Names(pk, agent or "", endpoint or "", server or tool_server, tool_kind or kind, key)


def _find_last_by_name(server: str, since: datetime) -> dict[tuple[str, str, str], datetime] | None:
    """The newest call of a server by agent, endpoint and tool; None if there are too many calls to
    read."""
    calls = _select_decided_calls(
        Invocation.objects.filter(server_slug=server, received_at__gte=since)
    ).order_by("received_at")
    rows = calls.values_list("agent_slug", "endpoint_slug", "tool_name", "received_at")[
        : _READ_TOGETHER + 1
    ]
    times = {(agent, endpoint, tool): at for agent, endpoint, tool, at in rows}
    return times if len(rows) <= _READ_TOGETHER else None


def _find_newest(names: _Names, times: Mapping[tuple[str, str, str], datetime]) -> datetime | None:
    return max(
        (
            at
            for (agent, endpoint, tool), at in times.items()
            if (agent == names.agent if names.agent else endpoint == names.endpoint)
            and (
                tool == names.tool
                if names.tool
                else not names.kind or parse_offer_key(tool)[0] == names.kind
            )
        ),
        default=None,
    )


class Stream:
    """Calls in no order, read from the database by each iteration."""

    def __init__(self, grant: Grant, calls: QuerySet[Invocation]) -> None:
        self._rows = _select_columns(grant, calls.order_by())

    def __iter__(self) -> Iterator[PastUse]:
        return map(_make_use, stream_rows(self._rows))


def _select_columns(grant: Grant, calls: QuerySet[Invocation]) -> QuerySet[Invocation, _Row]:
    return calls.annotate(said=_select_arguments(grant)).values_list(
        "id", "tool_name", "received_at", "said"
    )


def _make_use(row: _Row) -> PastUse:
    call, name, at, said = row
    return PastUse(call, name, at, _parse_arguments(said))


def select_calls(grant: Grant, since: datetime) -> QuerySet[Invocation]:
    """Calls of what the grant covers, of its agent or by its endpoint."""
    tool = grant.tool
    rows = Invocation.objects.filter(
        server_slug=get_grant_server(grant).slug, received_at__gte=since
    )
    rows = (
        rows.filter(agent_slug=grant.agent.slug)
        if grant.agent
        else rows.filter(endpoint_slug=str(grant.endpoint))
    )
    if tool:
        rows = rows.filter(tool_name=tool.key)
    elif grant.kind:
        rows = rows.of_kind(grant.kind)
    return _select_decided_calls(rows)


def _select_decided_calls(calls: Calls) -> QuerySet[Invocation]:
    """Without the calls that were refused before they were decided on."""
    return calls.exclude(state=InvocationState.DENIED, binding="")


def get_grant_server(grant: Grant) -> Server:
    """The server that the grant is about."""
    server = grant.tool.server if grant.tool else grant.server
    assert server is not None  # one of the two is there
    return server


def _select_arguments(grant: Grant) -> Case | Value:
    """The arguments, where what is proposed or replayed depends on them: they can be some MiB of
    each of many calls."""
    if grant.tool:
        wanted = grant.tool.kind in (TOOL, PROMPT)
    else:
        wanted = grant.kind in READ or bool(grant.kind and grant.argument_pins)
    if not wanted:
        return Value("{}")
    short = LessThanOrEqual(Length("arguments"), _LONGEST)
    return Case(When(short, then=F("arguments")), default=Value(""), output_field=TextField())


def _parse_arguments(arguments: str) -> dict[str, Any] | None:
    try:
        found = json.loads(arguments)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
