"""The clock: what it has to run, and that no file can stop it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.beat import Service
from django.conf import settings

from controlplane.celery import app


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The scheduler that ``celery beat`` would make; what it sends goes nowhere."""
    made: Any = Service(app, scheduler_cls=app.conf.beat_scheduler).get_scheduler()
    sent: list[str] = []
    monkeypatch.setattr(made, "apply_async", lambda entry, **_: sent.append(entry.task))
    made.sent = sent
    yield made
    made.close()


def tick(scheduler: Any) -> list[str]:
    """The tasks that are due now."""
    before = len(scheduler.sent)
    while scheduler.tick() == 0:
        pass
    return scheduler.sent[before:]


@pytest.mark.fault
def test_clock_runs_whatever_files_an_earlier_one_has_left() -> None:
    """Of a clock whose disk was full at its start an empty file stayed, which stopped every later
    clock."""
    names = ("beat-schedule", "beat-schedule.db", "__db.beat-schedule", "__db.beat-schedule.db")
    left = [settings.VAR_DIR / name for name in names]
    for path in left:
        path.write_bytes(b"")
    try:
        scheduler: Any = Service(app, scheduler_cls=app.conf.beat_scheduler).get_scheduler()
        assert set(settings.TICKS) <= set(scheduler.schedule)
        scheduler.close()
        assert {path.read_bytes() for path in left} == {b""}
    finally:
        for path in left:
            path.unlink(missing_ok=True)


@pytest.mark.fault
def test_clock_writes_no_file(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(settings.VAR_DIR.iterdir())

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shelve.open", full)
    monkeypatch.setattr(Path, "open", full)
    tick(scheduler)
    scheduler.sync()
    assert set(settings.VAR_DIR.iterdir()) == before


def test_every_task_runs_within_a_minute_of_a_start(scheduler: Any) -> None:
    for entry in scheduler.schedule.values():
        if entry.task in settings.TICKS:
            assert 0 < entry.is_due()[1] <= 60, entry


def test_a_task_runs_again_after_its_interval(scheduler: Any) -> None:
    name = "mcpregistry.tasks.prune"
    assert name not in tick(scheduler)
    entry = scheduler.schedule[name]
    entry.last_run_at -= entry.schedule.run_every
    assert entry.is_due().is_due
    following = entry.next()
    assert not following.is_due().is_due
    assert following.is_due().next > 3_000
