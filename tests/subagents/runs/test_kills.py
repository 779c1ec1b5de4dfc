"""Workers are killed at random moments, again and again: no write is ever repeated, and every run
ends."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from django.db.models import F, Sum
from django.utils import timezone

from mcpregistry.domain.budgets import Unit, convert_dollars
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Budget, BudgetReservation, Invocation
from mcpregistry.services.budgets import spending
from mcpregistry.services.budgets.books import load_standings, save_budget
from mcpregistry.services.servers.connections import forget_stale
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.models import ExpertVersion, LanguageModel, Run, ToolCall
from tests import forkserver
from tests.calls.conftest import broken
from tests.fault.comparing import fits
from tests.subagents.kit import Bench, ready_provider
from tests.waiting import HANG_LIMIT

# ``python -m tests.fault.kills 300`` kills whole processes, as often as wanted.
# milliseconds of a worker's life, once it works
RUNS = 15
KILLS = 24
LONGEST = 400
A_FEW = 8  # kills; each hits every run that is under way
TEN = 10  # runs: more of them at once would take each other's time on a busy machine
EACH = 2  # kills at each failpoint: the first time that a worker gets there, and the second
POINTS = [
    "run_leased",
    "run_turn_begun",
    "run_turn_ended",
    "run_call_started",
    "run_call_answered",
    "run_call_ended",
    "run_ending",
    "after_send",
    "before_end",
]


@pytest.fixture
def crowd(site_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A writing expert tool, and many runs of it that nobody works on yet."""
    monkeypatch.setattr("subagents.services.runs.wake", lambda run: None)
    bench = Bench.__new__(Bench)
    bench.journal = tmp_path / "journal"
    provider = ready_provider("scripts", kind="compatible", base_url="http://127.0.0.1:9/v1")
    model = LanguageModel.objects.create(
        provider=provider, name="writer", input_price=1, output_price=5, tokenizer="gemini"
    )
    server = bench.server("slow", "write", "read", read_only=["read"], request_timeout=1)
    expert = bench.expert(model, uses=[server], max_seconds=3600, max_steps=20)
    for unit in Unit:
        row = Budget(
            slug=unit.value,
            agent=expert.agent,
            unit=unit.value,
            period="month",
            hard=Decimal(10**6),
        )
        save_budget(budget=row, actor="test")
    return bench


def killed(env: dict[str, str], folder: Path, seed: int, kills: int, way: str) -> dict[str, int]:
    """How many workers were killed, by failpoint, and how many runs they had."""
    program = ["-m", "tests.subagents.runs.killed_worker", str(seed), str(kills), way]
    with (folder / "said").open("w+") as said, (folder / "log").open("w+") as log:
        done = forkserver.popen(program, env=env, stdout=said, stderr=log)
        assert done.wait(6 * HANG_LIMIT) == 0, (folder / "log").read_text()[-3000:]
    print(hits := json.loads((folder / "said").read_text()))
    return hits


@pytest.mark.exhaustive
@pytest.mark.fault
def test_no_write_is_repeated_however_often_the_worker_dies(
    site_env: dict[str, str], tmp_path: Path, crowd: Bench
) -> None:
    started = [crowd.start(f"run-{n}") for n in range(RUNS)]
    hits = killed(site_env, tmp_path, 1, KILLS, str(LONGEST))
    assert hits["random"] == KILLS, "every kill hit a living worker"
    assert hits["runs"] >= RUNS, "and workers that had runs"
    _judge(crowd, started)


@pytest.mark.exhaustive
@pytest.mark.fault
def test_nor_wherever_it_dies(site_env: dict[str, str], tmp_path: Path, crowd: Bench) -> None:
    started = [crowd.start(f"run-{n}") for n in range(RUNS)]
    hits = killed(site_env, tmp_path, 3, EACH * len(POINTS), "failpoints")
    assert {point for point in POINTS if hits.get(point, 0) < EACH} == set(), hits
    _judge(crowd, started)


@pytest.mark.exhaustive
@pytest.mark.fault
@pytest.mark.one_database  # the two above die on both; here it is about the time that deaths cost
def test_with_the_default_time_nine_of_ten_answer_all_the_same(
    site_env: dict[str, str], tmp_path: Path, crowd: Bench
) -> None:
    seconds = int(HANG_LIMIT)  # the default on an idle machine; a slow one needs more
    body = json.loads(ExpertVersion.objects.get().body) | {"max_seconds": seconds}
    ExpertVersion.objects.update(body=json.dumps(body))
    started = [crowd.start(f"run-{n}") for n in range(TEN)]
    hits = killed(site_env, tmp_path, 4, A_FEW, str(LONGEST))
    assert hits["runs"] > 0
    writes = Counter(p["arguments"]["text"] for p in crowd.sent() if p["name"] == "write")
    assert [text for text, times in writes.items() if times > 1] == []
    assert not Run.objects.open().exists()
    assert Run.objects.filter(state=RunState.DONE, exit=Exit.ANSWER).count() >= 0.9 * len(started)


def _judge(bench: Bench, started: list[Run]) -> None:
    writes = Counter(p["arguments"]["text"] for p in bench.sent() if p["name"] == "write")
    assert [text for text, times in writes.items() if times > 1] == []
    states = Counter(Run.objects.values_list("state", flat=True))
    assert states == {RunState.DONE: len(started)}
    calls = list(ToolCall.objects.filter(name="slow__write"))
    assert len(calls) == 3 * len(started)
    for call in calls:
        assert fits(call, Invocation.objects.filter(pk=call.invocation).first(), writes), (
            call,
            call.state,
        )
    _budgets_agree()
    # as the clock does; the workers' own rows are older than the rule allows by now
    forget_stale(timezone.now())
    assert broken() == []
    unknown = sum(call.state == CallState.UNKNOWN for call in calls)
    print(f"{len(calls)} writes, {sum(writes.values())} received, {unknown} unknown")


def _budgets_agree() -> None:
    """Each turn and call is in the books once, whoever died in it: what they say is what the
    records of runs and calls say."""
    spending.settle_due()
    books = {row.unit: load_standings([row])[row.pk].book for row in Budget.objects.all()}
    ran = Run.objects.aggregate(
        cost=Sum("cost"), tokens=Sum(F("input_tokens") + F("output_tokens"))
    )
    sent = (
        Invocation.objects.exclude(dispatched_at=None)
        .exclude(state=InvocationState.NOT_SENT)
        .count()
    )
    spent = {unit: book.spent for unit, book in books.items()}
    assert spent == {"money": convert_dollars(ran["cost"]), "tokens": ran["tokens"], "calls": sent}
    held = {*BudgetReservation.objects.values_list("reference", flat=True)}
    assert not Invocation.objects.filter(pk__in=held).exists(), (
        "what is held is for calls that were never begun"
    )
    assert books["money"].reserved == books["tokens"].reserved == 0
