"""Budgets over REST: made, changed and read, by agents their own."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.budgets import Unit
from mcpregistry.models import AuditEntry, Budget, Endpoint
from mcpregistry.services.budgets import books
from tests.api.conftest import new_agent

pytestmark = pytest.mark.one_database


def spend(agent: str, unit: Unit, number: int) -> None:
    with transaction.atomic():
        for row in books.lock_budgets([agent], [unit]):
            books.spend(
                row, "turn", number, agent=agent, reference=f"r:{number}", now=timezone.now()
            )


def test_a_budget_is_made_spent_of_and_read_by_its_agent(db, caller) -> None:
    admin = caller("admin")
    robot = caller("agent")
    assert (
        admin.post(
            "/budgets", {"slug": "m", "agent": "none", "unit": "money", "hard": 1}
        ).status_code
        == 404
    )
    new_agent("eve")
    for agent, slug in (("robot", "mine"), ("eve", "hers")):
        made = admin.post(
            "/budgets",
            {
                "slug": slug,
                "agent": agent,
                "unit": "money",
                "period": "month",
                "soft": 0.5,
                "hard": 0.75,
                "time_zone": "Asia/Tokyo",
            },
        )
        assert made.status_code == 201, made.content
    assert {
        name: made.json()[name]
        for name in ("spent", "reserved", "level", "soft", "hard", "period", "enabled")
    } == {
        "spent": 0,
        "reserved": 0,
        "level": "ok",
        "soft": 0.5,
        "hard": 0.75,
        "period": "month",
        "enabled": True,
    }
    assert made.json()["period_end"].endswith("15:00:00Z"), "midnight in Tokyo"
    spend("robot", Unit.MONEY, 60_000_000)
    read = robot.get("/budgets/mine").json()
    assert (read["spent"], read["level"]) == (0.6, "soft limit reached")
    assert [each["slug"] for each in robot.get("/budgets").json()["items"]] == ["mine"]
    assert robot.get("/budgets/hers").status_code == 404
    assert robot.patch("/budgets/mine", {"hard": 100}).status_code == 403
    assert [each["amount"] for each in robot.get("/budgets/mine/entries").json()["items"]] == [0.6]
    assert [
        each["slug"] for each in admin.get("/budgets?agent=eve&unit=money").json()["items"]
    ] == ["hers"]
    changed = admin.patch("/budgets/mine", {"soft": None, "hard": 0.6, "enabled": False})
    assert (changed.json()["level"], changed.json()["soft"], changed.json()["enabled"]) == (
        "spent",
        None,
        False,
    )
    assert admin.delete("/budgets/mine").status_code == 204
    assert [row.slug for row in Budget.objects.all()] == ["hers"]
    kinds = list(
        AuditEntry.objects.filter(subject="budget:mine")
        .order_by("id")
        .values_list("kind", flat=True)
    )
    assert kinds == ["budget.created", "budget.changed", "budget.deleted"]


def test_a_budget_of_an_endpoint_is_found_by_it_and_seen_by_no_agent(db, caller) -> None:
    admin = caller("admin")
    robot = caller("agent")
    Endpoint.objects.create(slug="team")
    given = {"slug": "door", "unit": "calls", "hard": 5}
    assert admin.post("/budgets", given | {"endpoint": "none"}).status_code == 404
    for wrong in (given, given | {"endpoint": "team", "agent": "robot"}):
        assert admin.post("/budgets", wrong).status_code == 422
    made = admin.post("/budgets", given | {"endpoint": "team"})
    assert (made.status_code, made.json()["agent"], made.json()["endpoint"]) == (201, "", "team")
    assert [each["slug"] for each in admin.get("/budgets?endpoint=team").json()["items"]] == [
        "door"
    ]
    assert admin.get("/budgets?endpoint=other").json()["items"] == []
    assert robot.get("/budgets/door").status_code == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"hard": -1},
        {"hard": None},
        {"soft": 9},
        {"unit": "euros"},
        {"period": "year"},
        {"time_zone": "Mars"},
        {"hard": 1.5},
        {"hard": 1e12},
        {"extra": 1},
    ],
)
def test_what_makes_no_budget_is_refused_with_its_reason(db, caller, wrong) -> None:
    new_agent("robot")
    refused = caller("admin").post(
        "/budgets", {"slug": "b", "agent": "robot", "unit": "calls", "hard": 5} | wrong
    )
    assert refused.status_code == 422, refused.content
    assert not Budget.objects.exists()


def test_a_longer_list_asks_no_more_questions(db, caller, django_assert_max_num_queries) -> None:
    admin = caller("admin")
    new_agent("robot")
    for number in range(12):
        admin.post("/budgets", {"slug": f"b{number}", "agent": "robot", "unit": "calls", "hard": 5})
    with django_assert_max_num_queries(12):
        assert len(admin.get("/budgets").json()["items"]) == 12
