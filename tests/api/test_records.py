"""Calls and audit over REST: filters, stable pages, payloads, the proof of the log."""

from __future__ import annotations

import base64
import json
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from mcpregistry.models import AuditEntry, guards
from mcpregistry.services.records import archiving, audit, verification
from tests.api.conftest import new_call
from tests.fakes.tampered import process_wrote, seal, sealed_anew


@pytest.fixture
def viewer(db, caller):
    return caller("viewer")


def walk(viewer, path: str, between=lambda: None) -> list[str]:
    """Ids of all pages; ``between`` runs after each page."""
    seen = []
    cursor = ""
    while True:
        body = viewer.get(f"{path}&cursor={cursor}" if cursor else path).json()
        seen += [item["id"] for item in body["items"]]
        cursor = body["next"]
        if cursor is None:
            return seen
        between()


def test_pages_neither_repeat_nor_skip_while_calls_arrive(viewer):
    moment = timezone.now()
    for number in range(25):
        # five share each moment
        new_call(number, received_at=moment - timedelta(seconds=number // 5))
    before = [row["id"] for row in viewer.get("/invocations?limit=200").json()["items"]]
    number = iter(range(100, 200))

    def arrivals() -> None:
        new_call(next(number), received_at=moment + timedelta(seconds=1))
        new_call(next(number), received_at=moment - timedelta(seconds=2), id=f"zzz-{next(number)}")

    seen = walk(viewer, "/invocations?limit=4", arrivals)
    assert len(seen) == len(set(seen))
    assert [call for call in seen if call in set(before)] == before


def test_pages_survive_the_removal_of_the_row_they_stopped_at(viewer):
    calls = [new_call(number) for number in range(6)]
    first = viewer.get("/invocations?limit=3").json()
    calls[3].delete()
    rest = viewer.get(f"/invocations?limit=3&cursor={first['next']}").json()
    assert [item["id"] for item in rest["items"]] == ["call-000002", "call-000001", "call-000000"]


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.attack
@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "%00",
        "%F0%9F%98%80",
        encoded([]),
        encoded(["a"]),
        encoded(["not a date", "x"]),
        encoded([None, None]),
        encoded([{"a": 1}, "x"]),
        encoded(["2026-01-01T00:00:00Z", "a\x00b"]),
        encoded("text"),
        encoded([True, True]),
        "W" * 1999,
        encoded(["2026-01-01T00:00:00Z", ["x"]]),
        encoded([1e400, "x"]),
        encoded(["9" * 500, "x"]),
        encoded(["0001-01-01T00:00:00+14:00", "x"]),
    ],
)
def test_forged_cursors_are_refused(viewer, cursor):
    response = viewer.get(f"/invocations?cursor={cursor}")
    assert response.status_code in (400, 422)
    assert response.json()["remedy"]


@pytest.mark.attack
@pytest.mark.parametrize("value", [2**70, -(2**70), "1", None, 1.5, [1], True])
def test_forged_numeric_cursors_do_not_reach_the_database(viewer, value):
    assert viewer.get(f"/audit?cursor={encoded([value])}").status_code in (200, 400)


def test_filters(viewer):
    new_call(
        1,
        state="denied",
        agent_slug="ann",
        tool_name="say",
        exposed_name="echo__say",
        origin="stdio",
    )
    new_call(
        2, server_slug="git", endpoint_slug="work", tool_name="status", exposed_name="git__status"
    )
    new_call(3, request_id="r-1", received_at=timezone.now() - timedelta(days=2))
    yesterday = (timezone.now() - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def found(query: str) -> list[int]:
        return sorted(
            int(item["id"][-1]) for item in viewer.get(f"/invocations?{query}").json()["items"]
        )

    assert found("") == [1, 2, 3]
    assert found("state=denied") == [1]
    assert found("agent=ann&origin=stdio") == [1]
    assert (
        found("server=git")
        == found("endpoint=work")
        == found("tool=git__status")
        == found("tool=status")
        == [2]
    )
    assert found("q=r+1") == [3]
    assert found("q=xyzzyqq") == []
    assert found("request_id=r-1") == found(f"until={yesterday}") == [3]
    assert found(f"since={yesterday}") == [1, 2]
    assert found("agent=nobody") == []


@pytest.mark.attack
@pytest.mark.parametrize(
    "query",
    [
        "state=nope",
        "since=yesterday",
        "since=1",
        "since=0001-01-01T00:00:00%2B14:00",
        "limit=0",
        "limit=100000",
        "limit=x",
        "agent=a%00b",
        "tool=%00",
    ],
)
def test_unfit_filters_are_refused(viewer, query):
    assert viewer.get(f"/invocations?{query}").status_code == 422


@pytest.mark.attack
def test_other_columns_cannot_be_reached_through_the_query(viewer):
    new_call(1)
    for query in (
        "writer=x",
        "arguments__contains=x",
        "id__regex=^b",
        "order_by=-result",
        "_connector=OR",
    ):
        answer = viewer.get(f"/invocations?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "BAD_REQUEST")


def test_a_call_shows_its_payloads_and_lists_do_not(viewer):
    new_call(1, arguments='{"a":"\\u0000\\ud800"}', result='{"content":[]}')
    new_call(2, arguments="", result=json.dumps("x" * 1_100_000))
    detail = viewer.get("/invocations/call-000001").json()
    assert detail["arguments"] == {"a": "\x00\ud800"}
    assert detail["result"] == {"content": []}
    assert viewer.get("/invocations/call-000002").json()["result"] is None
    assert "arguments" not in viewer.get("/invocations").json()["items"][0]
    assert viewer.get("/invocations/nope").status_code == 404


def test_the_audit_log_is_filtered_and_proved(viewer):
    audit.record_entry(
        kind="server.created", actor="user:ann", subject="server:git", lifecycle="draft"
    )
    audit.record_entry(kind="server.deleted", actor="user:bob", subject="server:git")
    items = viewer.get("/audit?actor=user:ann").json()["items"]
    assert [(item["kind"], item["facts"]["lifecycle"]) for item in items] == [
        ("server.created", "draft")
    ]
    assert len(viewer.get("/audit?subject=server:git&kind=server.deleted").json()["items"]) == 1
    ever = "since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z"
    assert len(viewer.get(f"/audit?actor=user:ann&{ever}").json()["items"]) == 1
    assert viewer.get("/audit/verification").json()["intact"] is None  # nobody has verified it yet
    sealed_anew()
    verification.verify_log(timezone.now())
    proof = viewer.get("/audit/verification").json()
    assert (proof["intact"], proof["entries"], proof["problems"]) == (
        True,
        AuditEntry.objects.count(),
        [],
    )


def test_the_verification_says_what_is_in_archives(viewer, tmp_path):
    sealed_anew()
    process_wrote("web:1", 5, minutes_ago=200 * 24 * 60)
    assert seal() is not None
    archiving.archive_entries(timezone.now(), timedelta(days=90), tmp_path, str)
    verification.verify_log(timezone.now())
    proof = viewer.get("/audit/verification").json()
    assert proof["intact"] is True
    assert proof["notes"][0].startswith("4 entries of 1 chain are in archives (audit-000001-")


@pytest.mark.attack
def test_a_changed_audit_entry_is_found(viewer):
    audit.record_entry(kind="server.created", actor="user:ann", subject="server:git")
    guards.drop_guards()
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE mcpregistry_auditentry SET actor = 'user:eve' WHERE kind = 'server.created'"
            )
    finally:
        guards.install_guards()
    sealed_anew()
    verification.verify_log(timezone.now())
    proof = viewer.get("/audit/verification").json()
    assert proof["intact"] is False
    assert len(proof["problems"]) == 1
