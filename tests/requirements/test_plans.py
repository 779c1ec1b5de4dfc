"""No list, filter, search, poll or figure goes through the record of calls or the audit log: each
is read by an index.

The plans are the databases' own, of the questions that the pages ask, with some thousands of rows
and statistics.
"""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from django.contrib import admin as site
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Model
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.models import Agent, ApprovalRequest, AuditEntry, Endpoint, Invocation, Server
from mcpregistry.queries import audit
from mcpregistry.queries.audit import search_entries
from mcpregistry.services.access import tokens
from mcpregistry.services.upkeep import statistics

pytestmark = pytest.mark.django_db
CALLS = "mcpregistry_invocation"
AUDIT = "mcpregistry_auditentry"
HELD = 20
PARTIAL = ("call_open", "call_odd", "call_by_request", "audit_of_kind")  # hold few rows each
ROWS = 3_000
LATE = "2100-01-01T00:00:00Z"
EARLY = "2020-01-01T00:00:00Z"


def _choose_state(number: int) -> str:
    if number < HELD:
        return "pending"
    return "succeeded" if number % 20 else "rejected"


def fill() -> None:
    now = timezone.now()
    numbers = itertools.count()
    Endpoint.objects.create(slug="there")
    Agent.objects.create(slug="there")  # without any to choose from a filter is none
    Server.objects.create(slug="there", command=["x"])
    Invocation.objects.bulk_create(
        [
            Invocation(
                id=f"{number:032x}",
                state=_choose_state(number),
                agent_slug=f"agent-{number % 50}",
                endpoint_slug=f"door-{number % 5}",
                server_slug=f"server-{number % 60}",
                tool_name=f"tool_{number % 70}",
                exposed_name=f"x__tool_{number % 70}",
                origin=("http", "stdio", "run")[number % 3],
                request_id=f"r{number}" if number % 9 == 0 else "",
                received_at=now - timedelta(minutes=number),
                writer="w",
                lease_until=now if number < HELD else None,
                outcome="allow",
            )
            for number in range(ROWS)
        ]
    )
    ApprovalRequest.objects.bulk_create(
        ApprovalRequest(
            id=call.pk,
            call=call,
            rule_name="r",
            rule_fingerprint="f",
            asked_at=call.received_at,
            decide_by=now,
            decided_at=None if call.state == "pending" else now,
        )
        for call in Invocation.objects.filter(state__in=["pending", "rejected"])
    )
    kinds = [*["call.dispatched", "call.succeeded"] * 20, *(f"odd.{number}" for number in range(4))]
    AuditEntry.objects.bulk_create(
        [
            AuditEntry(
                writer="w",
                seq=next(numbers) + 1,
                at=now,
                kind=kinds[number % len(kinds)],
                actor=f"agent-{number % 50}",
                subject=f"call:{number // 2:032x}",
                body="{}",
                prev="p",
                hash="h",
            )
            for number in range(ROWS)
        ]
    )


def looked_at() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")


@pytest.fixture
def admin(db: None) -> Client:
    fill()
    looked_at()
    owner = User.objects.create_superuser("owner")
    client = Client(
        HTTP_AUTHORIZATION=f"Bearer {tokens.issue_token(name='t', actor='t', user=owner)[1]}"
    )
    client.force_login(owner)
    return client


def plans(asked: CaptureQueriesContext) -> list[tuple[str, str]]:
    """Each question about calls or the log, with its plan."""
    explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
    found = []
    for query in [each["sql"] for each in asked.captured_queries]:
        if query.startswith("SELECT") and (CALLS in query or AUDIT in query):
            with connection.cursor() as cursor:
                cursor.execute(f"{explain} {query}".replace("%", "%%"), [])
                found.append((query, "\n".join(str(row[-1]) for row in cursor.fetchall())))
    return found


def scans(plan: str) -> list[str]:
    """Lines that say that a whole table, or a whole index of it, is gone through without an end."""
    lines = [line.strip() for line in plan.splitlines()]
    if connection.vendor == "postgresql":
        after = zip(lines, [*lines[1:], ""], strict=True)
        read = [
            (line, then) for line, then in after if f" on {CALLS}" in line or f" on {AUDIT}" in line
        ]
        whole = [line for line, then in read if not then.startswith(("Index Cond", "Recheck Cond"))]
    else:
        whole = [line for line in lines if line.startswith((f"SCAN {CALLS}", f"SCAN {AUDIT}"))]
    return [line for line in whole if not any(each in line for each in PARTIAL)]


def unbounded(what: str, asked: CaptureQueriesContext) -> list[str]:
    found = plans(asked)
    bounded = [
        query
        for query, plan in found
        if " WHERE " not in query and " LIMIT " in query and "TEMP" not in plan
    ]
    open_plans = [(query, plan) for query, plan in found if query not in bounded]
    return [f"{what}\n{line}\n{query}" for query, plan in open_plans for line in scans(plan)]


def got(address: str, client: Client) -> list[str]:
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(address)
    assert answer.status_code in (200, 204), address
    return unbounded(address, asked)


def listed(model: type[Model], query: str) -> list[str]:
    """The admin's list with its filters and counts, but for the page around it."""
    request = RequestFactory().get(f"/?{query}")
    request.user = User.objects.get(username="owner")
    with CaptureQueriesContext(connection) as asked:
        site.site._registry[model].get_changelist_instance(request)
    return unbounded(f"{model.__name__} {query}", asked)


REST = (
    [
        "/api/v1/invocations?" + each
        for each in (
            "state=succeeded",
            "state=rejected",
            "state=void",
            "state=pending",
            "agent=agent-1",
            "agent=nobody",
            "endpoint=nothing",
            "server=nothing",
            "tool=nothing",
            "tool=tool_1",
            "tool=x__tool_1",
            "origin=rest",
            "request_id=nothing",
            f"since={LATE}",
            f"until={EARLY}",
        )
    ]
    + [
        "/api/v1/audit?" + each
        for each in (
            "kind=odd.1",
            "kind=nothing",
            "actor=nobody",
            "subject=nothing",
            f"since={LATE}",
            f"until={EARLY}",
        )
    ]
    + [
        "/approvals/live/?v=0",
        "/approvals/live/?agent=nobody",
        "/api/v1/approvals?state=pending",
        "/api/v1/status",
        "/admin/analyzer/?days=90",
        "/api/v1/access/proposals?days=7",
        "/admin/context-bill/?agent=there&endpoint=there",
        "/usage/?by=tool&agent=agent-1&period=90d",
        "/usage/?by=tool&endpoint=door-1&period=24h",
        "/usage/usage.csv?by=agent&period=7d",
        "/api/v1/usage?by=tool&agent=agent-1&period=90d",
        "/api/v1/usage/failures?period=7d",
        "/usage/failures/?period=90d",
        "/search/?q=nothing-like-it",
    ]
)
LISTS = [
    (Invocation, each)
    for each in (
        "state__exact=rejected",
        "agent=nobody",
        "server=nothing",
        "origin=rest",
        "period=hour",
    )
] + [(AuditEntry, f"q={each}") for each in ("nothing", "odd.1", "agent-1", "call:")]


def test_what_lists_are_narrowed_to_is_found_by_an_index(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_BEGINNINGS", 20)  # of so few entries a thousand are worth a scan
    found = [said for address in REST for said in got(address, admin)]
    found += [said for model, query in LISTS for said in listed(model, query)]
    assert not found, "\n\n".join(found)


@pytest.mark.exhaustive
def test_whole_lists_are_read_in_the_order_of_an_index(admin: Client) -> None:
    for address in ("/api/v1/invocations", "/api/v1/audit"):
        with CaptureQueriesContext(connection) as asked:
            admin.get(address)
        for query, plan in plans(asked):
            assert "TEMP B-TREE FOR ORDER BY" not in plan, query


@pytest.mark.exhaustive
@pytest.mark.one_database
def test_the_clock_lets_sqlite_look_at_its_tables(db: None) -> None:
    fill()
    statistics.refresh()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM sqlite_stat1 WHERE tbl = %s", [CALLS])
        assert cursor.fetchone()[0] > 5
        cursor.execute(
            "SELECT stat FROM sqlite_stat1 WHERE tbl = %s AND idx IN ('call_by_time', 'call_by_agent')",
            [CALLS],
        )
        # not as guessed from a part
        assert [int(stat.split()[0]) for (stat,) in cursor.fetchall()] == [ROWS, ROWS]


@pytest.mark.exhaustive
def test_a_beginning_finds_entries_of_the_log(admin: Client) -> None:
    assert search_entries(AuditEntry.objects.all(), "call:0000").count() == 1_000
    assert {each.kind for each in search_entries(AuditEntry.objects.all(), "odd")} == {
        f"odd.{n}" for n in range(4)
    }
    assert search_entries(AuditEntry.objects.all(), "agent-1").count() == ROWS / 50
