"""What a worker keeps between its tasks is made once, and closed in order whatever fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mcpregistry.worker_runtime import RuntimePart, WorkerRuntime
from tests.waiting import HANG_LIMIT


class Thing:
    """Notes when it is closed."""

    def __init__(self, name: str, closed: list[str], *, fails: bool = False) -> None:
        self.name = name
        self.closed = closed
        self.fails = fails

    def close(self) -> None:
        self.closed.append(self.name)
        if self.fails:
            raise RuntimeError("it does not want to")


def test_many_threads_that_ask_at_once_get_the_same_one():
    together = threading.Barrier(8)
    made: list[Thing] = []

    def make() -> Thing:
        made.append(Thing("one", []))
        return made[0]

    part = RuntimePart(make)

    def ask() -> Thing:
        together.wait(HANG_LIMIT)
        return part.get()

    with ThreadPoolExecutor(8) as threads:
        found = [future.result() for future in [threads.submit(ask) for _ in range(8)]]
    assert len(made) == 1
    assert set(found) == set(made)


@pytest.mark.parametrize("failing", ["none", "runs", "calls", "shares", "deliverer"])
def test_who_makes_work_for_others_is_closed_before_them_and_one_that_fails_keeps_no_other(failing):
    closed: list[str] = []
    runtime = WorkerRuntime()
    runs = runtime.before_calls(lambda: Thing("runs", closed, fails=failing == "runs"))
    for name in ("calls", "shares", "deliverer"):
        part = RuntimePart(lambda name=name: Thing(name, closed, fails=name == failing))
        setattr(runtime, name, part)
        part.get()
    runs.get()
    runtime.close()
    assert closed == ["runs", "calls", "shares", "deliverer"]
    runtime.close()
    assert closed == ["runs", "calls", "shares", "deliverer"]  # what is closed is gone


def test_what_nobody_asked_for_is_not_made_to_be_closed():
    WorkerRuntime().close()
