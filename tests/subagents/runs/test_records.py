"""What a run writes when a turn begins, and what of it is told in the end."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from mcpregistry.db import db_call
from subagents.leased.leases import Lease, LostLease
from subagents.models import Run
from subagents.runs import lease, records
from subagents.services.accounting import list_entries
from tests.subagents.kit import Bench, calls


@pytest.fixture
def held(bench: Bench) -> Lease:
    bench.expert(bench.model("m", {"text": "because"}))
    taken = lease.take(bench.start().pk, worker="w")
    assert taken is not None
    return taken


def test_a_turn_that_changes_nothing_is_begun_without_a_write(held: Lease) -> None:
    records.begin_turn(held, worst=Decimal(0))
    assert Run.objects.get().state == "running"
    with CaptureQueriesContext(connection) as asked:
        records.begin_turn(held, worst=Decimal(0))
    assert [each["sql"].split()[0] for each in asked] == ["SELECT"]
    records.begin_turn(held, worst=Decimal("0.5"))
    assert Run.objects.get().reserved_cost == Decimal("0.5")
    records.begin_turn(held, worst=Decimal(0))
    assert Run.objects.get().reserved_cost == 0


@pytest.mark.parametrize("worst", [Decimal(0), Decimal("0.5")])
def test_no_turn_is_begun_without_the_lease(held: Lease, worst: Decimal) -> None:
    records.begin_turn(held, worst=Decimal(0))
    Run.objects.update(fence=F("fence") + 1)
    with pytest.raises(LostLease):
        records.begin_turn(held, worst=worst)
    assert Run.objects.get().reserved_cost == 0


@pytest.mark.parametrize(("before", "after"), [(None, "0.5"), ("0.25", "0.75")])
def test_a_turn_that_was_cut_off_counts_as_spent(
    held: Lease, before: str | None, after: str
) -> None:
    Run.objects.update(cost=before)
    records.begin_turn(held, worst=Decimal("0.5"))
    Run.objects.update(lease_until=None)  # its worker died
    assert lease.take(held.key, worker="another") is not None
    run = Run.objects.get()
    assert (run.cost, run.reserved_cost) == (Decimal(after), 0)


def test_a_run_without_prices_stays_without_a_cost(held: Lease) -> None:
    records.begin_turn(held, worst=Decimal(0))
    Run.objects.update(lease_until=None)
    assert lease.take(held.key, worker="another") is not None
    assert Run.objects.get().cost is None


async def test_what_a_run_has_used_stands_in_its_accounting(bench: Bench, worker: Any) -> None:
    """By itself, with nothing of it written by a test: what the provider said it counted, and every
    tool call."""

    def prepare() -> Run:
        asked = calls(
            ("echo__echo", {"text": "hello"}), usage={"input": 300, "output": 40, "cached": 100}
        )
        answer = {"text": "done", "usage": {"input": 500, "output": 60}}
        bench.expert(bench.model("m", asked, answer), uses=[bench.server()])
        return bench.start()

    # before there is a worker, which hears of changes a moment later
    begun = await db_call(prepare)
    run = await (await worker()).drive(begun)
    first, tool, second = await db_call(lambda: list(list_entries(run)))
    counted = (
        "type",
        "status",
        "model",
        "inputTokens",
        "outputTokens",
        "totalTokens",
        "cachedTokens",
    )
    assert [first[name] for name in counted] == ["llm", "ok", "m", 300, 40, 340, 100]
    assert [second[name] for name in counted] == ["llm", "ok", "m", 500, 60, 560, 0]
    assert (tool["type"], tool["status"], tool["mcpServer"], tool["command"]) == (
        "tool",
        "done",
        "echo",
        "echo",
    )
    assert min(first["latency"], tool["latency"]) > 0
