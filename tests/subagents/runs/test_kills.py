"""Workers are killed at random moments, again and again: no write is ever repeated, and every run ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.models import Invocation
from mcpregistry.services.connections import forget_stale
from subagents.domain.lifecycle import CallState, RunState
from subagents.models import LanguageModel, Provider, Run, ToolCall
from tests.calls.conftest import broken
from tests.subagents.kit import Bench

RUNS, KILLS, LONGEST = 40, 100, 400  # milliseconds of a worker's life, once it works
EACH = 5  # kills at each failpoint
POINTS = [
    "run_leased", "run_turn_begun", "run_turn_ended", "run_call_started", "run_call_answered", "run_call_ended",
    "run_ending", "after_send", "before_end",
]  # fmt: skip
PROGRAM = Path(__file__).with_name("killed_worker.py")


@pytest.fixture
def crowd(site_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A writing expert tool, and many runs of it that nobody works on yet."""
    monkeypatch.setattr("subagents.services.runs.wake", lambda run: None)
    bench = Bench.__new__(Bench)
    bench.journal = tmp_path / "journal"
    provider = Provider.objects.create(slug="scripts", kind="compatible", base_url="http://127.0.0.1:9/v1")
    model = LanguageModel.objects.create(provider=provider, name="writer", free=True, tokenizer="gemini")
    server = bench.server("slow", "write", "read", read_only=["read"], request_timeout=1)
    bench.expert(model, uses=[server], max_seconds=3600, max_steps=20)
    return bench


def killed(env: dict[str, str], seed: int, kills: int, way: str) -> dict[str, int]:
    """How many workers were killed, by failpoint."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(seed), str(kills), way],
        env=env | {"PYTHONPATH": str(Path.cwd())}, capture_output=True, text=True, timeout=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.fault
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_write_is_repeated_however_often_the_worker_dies(site_env: dict[str, str], crowd: Bench, seed: int) -> None:
    started = [crowd.start(f"run-{n}") for n in range(RUNS)]
    hits = killed(site_env, seed, KILLS, str(LONGEST))
    assert hits == {"random": KILLS}, "every kill hit a living worker"
    _judge(crowd, started)


@pytest.mark.fault
@pytest.mark.timeout(400)
def test_nor_wherever_it_dies(site_env: dict[str, str], crowd: Bench) -> None:
    started = [crowd.start(f"run-{n}") for n in range(RUNS // 2)]
    hits = killed(site_env, 3, EACH * len(POINTS), "failpoints")
    assert {point for point in POINTS if hits.get(point, 0) < 2} == set(), hits
    _judge(crowd, started)


def _judge(bench: Bench, started: list[Run]) -> None:
    writes = Counter(p["arguments"]["text"] for p in bench.sent() if p["name"] == "write")
    assert [text for text, times in writes.items() if times > 1] == []
    states = Counter(Run.objects.values_list("state", flat=True))
    assert states == {RunState.DONE: len(started)}
    calls = list(ToolCall.objects.filter(name="slow__write"))
    assert len(calls) == 3 * len(started)
    for call in calls:
        _fits(call, Invocation.objects.filter(pk=call.invocation).first(), writes)
    forget_stale(timezone.now())  # as the clock does; the workers' own rows are older than the rule allows by now
    assert broken() == []
    unknown = sum(call.state == CallState.UNKNOWN for call in calls)
    print(f"{len(calls)} writes, {sum(writes.values())} received, {unknown} unknown")


def _fits(call: ToolCall, record: Any, writes: Counter[str]) -> None:
    """What we say of a write is what the server's journal says, or honestly that nobody knows."""
    assert record is not None
    received = writes[json.loads(call.arguments)["text"]]
    if call.state == CallState.DONE:
        assert received == 1
    elif call.state == CallState.FAILED:
        assert (received, record.state) == (0, "not_sent")
    else:
        assert (call.state, record.state) == (CallState.UNKNOWN, "unknown")
