"""Energy pools over REST: made, changed, given to agents, and read by the agents that draw on
them."""

from __future__ import annotations

import pytest
from django.utils import timezone

from mcpregistry.models import Agent, EnergyEntry, EnergyPool, Invocation
from tests.api.conftest import new_agent

pytestmark = pytest.mark.one_database


def test_a_pool_is_made_given_to_an_agent_and_filled(db, caller) -> None:
    admin = caller("admin")
    robot = caller("agent")
    made = admin.post("/energy", {"slug": "p", "capacity": 50, "regeneration": 0})
    assert made.status_code == 201, made.content
    assert {
        name: made.json()[name]
        for name in ("level", "state", "reserved", "seconds_to_full", "agents")
    } == {
        "level": 50,
        "state": "ok",
        "reserved": 0,
        "seconds_to_full": 0,
        "agents": [],
    }
    assert robot.get("/energy").json()["items"] == []
    assert robot.get("/energy/p").status_code == 404, "it draws on none"
    assert admin.patch("/agents/robot", {"energy_pool": "none"}).status_code == 404
    assert admin.patch("/agents/robot", {"energy_pool": "p"}).json()["energy_pool"] == "p"
    new_agent("eve")
    admin.patch("/agents/eve", {"energy_pool": "p"})
    assert admin.get("/energy/p").json()["agents"] == ["eve", "robot"]
    told = [robot.get("/energy/p").json(), *robot.get("/energy").json()["items"]]
    assert [each["agents"] for each in told] == [["robot"]] * 2, "it learns nothing of others"
    admin.patch("/agents/eve", {"energy_pool": None})
    smaller = admin.patch("/energy/p", {"capacity": 20, "critical": 5, "resume": 5})
    assert (smaller.json()["capacity"], smaller.json()["level"]) == (20, 20)
    given = admin.post("/energy/p/grant", {"amount": 7})
    assert (given.status_code, given.json()["amount"], given.json()["after"]) == (201, -7, 20)
    kinds = [each["kind"] for each in admin.get("/energy/p/entries").json()["items"]]
    assert kinds == ["grant", "setting"]
    assert robot.get("/energy/p/entries").json()["items"] == [], "none of them is its own"
    assert admin.delete("/energy/p").status_code == 409
    assert admin.patch("/agents/robot", {"energy_pool": None}).json()["energy_pool"] is None
    assert admin.delete("/energy/p").status_code == 204
    assert not EnergyPool.objects.exists()


def test_a_call_says_what_it_has_cost(db, caller) -> None:
    pool = EnergyPool.objects.create(slug="p")
    now = timezone.now()
    for number in range(3):
        Invocation.objects.create(
            id=f"{number}" * 32,
            state="succeeded",
            agent_slug="robot",
            tool_name="t",
            exposed_name="t",
            origin="http",
            writer="w",
            received_at=now,
            finished_at=now,
        )
    paid = {"pool": pool, "before": 9, "after": 5, "at": now}
    EnergyEntry.objects.create(kind="call", amount=4, reference="1" * 32, **paid)
    EnergyEntry.objects.create(kind="turn", amount=3, reference="2" * 32, **paid)
    viewer = caller("admin")
    listed = {
        each["id"][0]: each["energy_consumed"]
        for each in viewer.get("/invocations").json()["items"]
    }
    assert listed == {"0": None, "1": 4, "2": None}
    assert viewer.get("/invocations/" + "1" * 32).json()["energy_consumed"] == 4


def test_a_pool_says_what_becomes_of_calls_and_of_work_without_enough(db, caller) -> None:
    made = caller("admin").post(
        "/energy", {"slug": "p", "on_empty": "wait", "low_policy": "finish"}
    )
    assert (made.status_code, made.json()["on_empty"], made.json()["low_policy"]) == (
        201,
        "wait",
        "finish",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": 0},
        {"capacity": "1e999"},
        {"regeneration": -1},
        {"on_empty": "later"},
        {"max_wait": 46},
        {"resume": 1},
    ],
)
def test_what_makes_no_pool_is_refused_with_its_reason(db, caller, wrong) -> None:
    refused = caller("admin").post("/energy", {"slug": "p"} | wrong)
    assert refused.status_code == 422, refused.content
    assert not EnergyPool.objects.exists()


def test_a_longer_list_asks_no_more_questions(db, caller, django_assert_max_num_queries) -> None:
    for number in range(20):
        row = EnergyPool.objects.create(slug=f"p{number}")
        new_agent(f"a{number}")
        Agent.objects.filter(slug=f"a{number}").update(energy_pool=row)
    viewer = caller("viewer")
    with django_assert_max_num_queries(12):
        assert len(viewer.get("/energy").json()["items"]) == 20
