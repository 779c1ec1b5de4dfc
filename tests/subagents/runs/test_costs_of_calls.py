"""What expert tools cost, as usage counts it by the hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from mcpregistry.models import CountedSpan, Invocation, SpanUsage
from mcpregistry.models.usage import SpanLength
from mcpregistry.services.records import call_hours
from subagents.models import Run
from subagents.services.offers import SERVER
from tests.subagents.kit import Bench

AT = datetime(2026, 1, 10, 10, 20, tzinfo=UTC)


def test_a_run_that_goes_on_after_its_call_has_ended_is_counted_when_it_is_over(
    bench: Bench,
) -> None:
    bench.expert(bench.model("m", {"text": "because"}))
    Invocation.objects.create(
        id="c", state="cancelled", server_slug=SERVER, tool_name="x", received_at=AT, finished_at=AT
    )
    run = bench.start()
    Run.objects.filter(pk=run.pk).update(call_id="c", cost=Decimal("0.25"))
    call_hours.count_due(AT + timedelta(hours=1))
    assert counted() == (1, 25_000_000)
    much_later = AT + timedelta(hours=30)
    assert call_hours.count_due(much_later) == 29, (
        "the empty hours since then, and not that one again"
    )
    Run.objects.filter(pk=run.pk).update(cost=Decimal("0.75"), finished_at=AT + timedelta(hours=2))
    assert call_hours.count_due(much_later) == 1
    assert counted() == (0, 75_000_000)
    assert call_hours.count_due(much_later) == 0


def counted() -> tuple[int, int | None]:
    """Of the call's hour: what may still change, and the cost."""
    hour = {"span": SpanLength.HOUR, "begins": AT.replace(minute=0)}
    return CountedSpan.objects.get(**hour).unsettled, SpanUsage.objects.get(**hour).cost
