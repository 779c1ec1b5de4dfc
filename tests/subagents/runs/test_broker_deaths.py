"""Messages are lost, come twice, and the broker dies, as do workers: the rows decide, so no write
is repeated."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO

import pytest
from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from controlplane import embedded_broker, embedded_site
from controlplane.child_processes import die_with_parent, stop
from mcpregistry.models import Invocation
from mcpregistry.services.servers.connections import forget_stale
from mcpregistry.services.upkeep import reaping
from subagents.domain.lifecycle import CallState, RunState
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import Script
from subagents.models import Run, ToolCall
from subagents.services import runs
from tests import forkserver
from tests.calls.conftest import broken
from tests.externals import ROOT
from tests.subagents.kit import Bench, calls
from tests.waiting import HANG_LIMIT, eventually

SLOWLY = {"steps": 4, "pause": 0.05}


class Processes:
    """The broker, a worker and the clock of the site, each to be killed at will."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self._env = env
        self._folder = folder
        self._all: dict[str, subprocess.Popen[bytes] | forkserver.Process] = {}

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._all[name] = self._worker(log) if name == "worker" else self._popen(name, log)
        if name == "broker":
            assert embedded_broker.wait_until_it_answers(
                embedded_broker.socket_path(settings.VAR_DIR), HANG_LIMIT
            )

    def _worker(self, log: IO[bytes]) -> forkserver.Process:
        """It is started again and again, and would each time load models for seconds."""
        env = self._env | {forkserver.PRELOAD: "tests.fault.preloaded"}
        return forkserver.popen(
            embedded_site.worker().argv[1:], env=env, stdout=log, stderr=log, start_new_session=True
        )

    def _popen(self, name: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        command = (
            embedded_broker.command(settings.VAR_DIR)
            if name == "broker"
            else embedded_site.beat().argv
        )
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._env,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(),
            start_new_session=True,
        )

    def kill(self, name: str) -> None:
        self._all[name].send_signal(signal.SIGKILL)
        self._all.pop(name).wait(HANG_LIMIT)

    def tend(self) -> None:
        """As the site's supervisor: start again whoever has ended by itself.

        Celery's worker may, when the broker goes while it acknowledges: "Unrecoverable error:
        AttributeError".
        """
        for name in [name for name, process in self._all.items() if process.poll() is not None]:
            self.start(name)

    def ended(self, wanted: QuerySet[Run]) -> bool:
        self.tend()
        return not wanted.exists()

    def stop(self) -> None:
        for process in self._all.values():
            stop(process, 20)  # type: ignore[arg-type]  # a leaf has the face of a Popen


@pytest.fixture
def processes(site_env: dict[str, str], tmp_path: Path) -> Iterator[Processes]:
    made = Processes(site_env, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def bench(live_db: None, tmp_path: Path) -> Iterator[Bench]:
    models = ScriptedModels(Script())
    with run_server(models) as base:
        bench = Bench(base, models, tmp_path / "journal")
        server = bench.server(
            "slow", "write", "read", read_only=["read"], request_timeout=HANG_LIMIT
        )
        first = calls(
            *(("slow__write", {"text": f"{{{{ user.json.text }}}} {n}"} | SLOWLY) for n in "ab")
        )
        second = calls(("slow__write", {"text": "{{ user.json.text }} c"} | SLOWLY))
        bench.expert(
            bench.model("m", first, second, {"text": "done"}), uses=[server], max_seconds=3600
        )
        yield bench


def begin(bench: Bench, *names: str) -> list[Run]:
    return [bench.start(name) for name in names]


@pytest.mark.exhaustive
@pytest.mark.fault
def test_the_broker_and_the_worker_die_and_messages_are_lost_and_doubled(
    bench: Bench, processes: Processes
) -> None:
    for name in ("broker", "worker", "beat"):
        processes.start(name)
    started = begin(bench, "doubled-1", "doubled-2")
    for run in started * 5:
        runs.wake(run.pk)
    eventually(lambda: len(bench.sent()) >= 2, 4 * HANG_LIMIT)
    processes.kill("broker")
    started += begin(bench, "lost-1", "lost-2")  # nobody hears of these
    processes.start("broker")  # empty: what waited in it is lost
    eventually(
        lambda: processes.ended(Run.objects.open().filter(pk__in=[run.pk for run in started])),
        4 * HANG_LIMIT,
    )
    started += begin(bench, "killed-1", "killed-2", "killed-3")
    eventually(
        lambda: ToolCall.objects.filter(run__in=started[4:], state=CallState.STARTED).exists(),
        4 * HANG_LIMIT,
    )
    processes.kill("worker")
    processes.kill("broker")
    _time_passes()
    for name in ("broker", "worker"):
        processes.start(name)
    eventually(lambda: processes.ended(Run.objects.open()), 4 * HANG_LIMIT)
    _judge(bench, started)


def _time_passes() -> None:
    """As if nobody had come for an hour: the leases of the dead run out."""
    later = timezone.now() + timedelta(hours=1)
    reaping.reap_calls(later)
    Run.objects.open().update(lease_until=timezone.now() - timedelta(seconds=1))


def _judge(bench: Bench, started: list[Run]) -> None:
    assert Counter(Run.objects.values_list("state", flat=True)) == {RunState.DONE: len(started)}
    received = Counter(params["arguments"]["text"] for params in bench.sent())
    assert set(received.values()) == {1}, "a write was repeated"
    assert len(received) >= 3 * len(started) - 6
    for call in ToolCall.objects.filter(name="slow__write"):
        record = Invocation.objects.get(pk=call.invocation)
        assert (call.state, record.state) in {
            (CallState.DONE, "succeeded"),
            (CallState.UNKNOWN, "unknown"),
            (CallState.FAILED, "not_sent"),
        }
    forget_stale(timezone.now() + timedelta(minutes=5))
    assert broken() == []
