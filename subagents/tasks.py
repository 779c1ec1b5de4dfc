"""Celery's tasks for runs. The rows decide; a message only says "look at this run"."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import structlog
from celery import shared_task
from celery.concurrency import get_implementation
from celery.signals import worker_init, worker_ready
from django.conf import settings
from django.db import DatabaseError, connection
from django.utils import timezone

from mcpregistry.db import read_database_now
from mcpregistry.models import SiteProcess
from mcpregistry.services.servers.connections import make_process_name
from mcpregistry.services.upkeep import dead_processes, processes
from mcpregistry.worker_runtime import runtime
from subagents import energy
from subagents.effort import cycle
from subagents.effort.driver import Loops
from subagents.llm.client import load_litellm
from subagents.llm.tokens import REFERENCE, counter
from subagents.maintenance import newer_images, queue, repeated_trials, request_lease
from subagents.maintenance.manager import Manager
from subagents.models import ExpertTool
from subagents.runs import lease, provider_probe
from subagents.runs.engine import RunEngine
from subagents.services import retention, runs
from subagents.services.headends import queue_places

log = structlog.get_logger(__name__)


@shared_task
def advance_run(run_id: str) -> None:
    """Work on the run as far as it goes. Returns at once; the thread with the event loop does the
    work."""
    runtime.calls.get().call_on_loop(_runs.get().engine.wake, run_id)


@shared_task
def test_provider(provider_id: int, model_id: int) -> None:
    """Ask one model of the provider for a word; the answer is noted with the provider. Returns at
    once."""
    runtime.calls.get().call_on_loop(provider_probe.begin, provider_id, model_id)


@shared_task
def advance_due() -> None:
    """Every two seconds: runs whose wake-up was lost, whose worker died, or whose time has come."""
    _warm_if_used()
    for run_id in runs.find_abandoned_runs():
        runs.cancel(run_id=run_id, actor="clock", reason="its caller has disconnected")
    for run_id in [*runs.list_due_runs(read_database_now()), *runs.wake_decided_runs()]:
        advance_run(run_id)
    work_maintenance()
    for key in cycle.list_due_agents(read_database_now()):
        runtime.calls.get().call_on_loop(_loops.get().driver.wake, key)


@shared_task
def work_maintenance() -> None:
    """When something is asked of the background sub-agent, and every two seconds. Returns at
    once."""
    if queue.list_due_requests(read_database_now(), 1):
        runtime.calls.get().call_on_loop(_maintenance.get().manager.look)


@shared_task
def regulate_energy() -> None:
    """Every two seconds: what the background sub-agent has used is charged, and its work follows
    the level."""
    energy.regulate()


@shared_task
def try_due() -> None:
    """Every minute: ask for trials of servers that are to be tried by the clock, or call themselves
    another version."""
    if asked := repeated_trials.ask_due(timezone.now()):
        log.info("trials_due", servers=asked)


@shared_task
def propose_images() -> None:
    """Every ten minutes: where newer versions shall be proposed, ask for the changes to newer
    container images."""
    if asked := newer_images.ask_new():
        log.info("images_proposed", servers=asked)


@shared_task
def sweep_headends() -> None:
    """Every 15 seconds: cancel runs whose clients were lost with their process, and delete old
    requests."""
    if any((done := queue_places.sweep()).values()):
        log.info("headends_swept", **done)


@shared_task
def prune_runs() -> None:
    """Every hour: forget stored outputs and the texts of old runs, as the site's retention says."""
    log.info("runs_pruned", **retention.prune(timezone.now()))


class _RunsHere:
    """The engine of runs on the loop of this worker's calls, which its runs make."""

    def __init__(self) -> None:
        self._calls = runtime.calls.get()
        self.engine = RunEngine(self._calls.engine, make_process_name("worker"))
        self._calls.call_on_loop(self.engine.start)

    def close(self) -> None:
        self._calls.await_on_loop(self.engine.stop())


class _MaintenanceHere:
    """The background sub-agent of this worker, on the same loop."""

    def __init__(self) -> None:
        self._calls = runtime.calls.get()
        self.manager = Manager(
            self._calls.engine, make_process_name("worker"), may_begin=energy.may_begin
        )

    def close(self) -> None:
        self._calls.await_on_loop(self.manager.stop())


class _LoopsHere:
    """The cycles of hosted agents, on the same loop."""

    def __init__(self) -> None:
        self._calls = runtime.calls.get()
        self.driver = Loops(self._calls.engine, make_process_name("worker"))

    def close(self) -> None:
        self._calls.await_on_loop(self.driver.stop())


_runs = runtime.before_calls(_RunsHere)
_loops = runtime.before_calls(_LoopsHere)
_maintenance = runtime.before_calls(_MaintenanceHere)


@worker_init.connect
def _free_predecessors(**_: object) -> None:
    """Runs of the worker that we replace are anybody's now, see ``mcpregistry.tasks``."""
    if settings.PREDECESSOR:
        dead = make_process_name("worker", settings.PREDECESSOR)
        log.info("freed", **{what: free(dead) for what, free in _FREED.items()})


@worker_init.connect
def load_early(sender: Any, **_: object) -> None:
    """Load for the first run while Celery still starts: a question may wait already, and nothing
    takes longer.

    Not in a process that will be forked: a module may be half imported then.
    """
    if get_implementation(sender.pool_cls) is get_implementation("threads"):
        threading.Thread(target=_look_early, name="early-look", daemon=True).start()


def _look_early() -> None:
    try:
        _warm_if_used()
    except DatabaseError:  # away, or not migrated yet: the clock looks again
        log.info("early_look_failed")
    finally:
        connection.close()


@worker_ready.connect
def _begin(**_: object) -> None:
    """Look what is left to do, and be ready where expert tools are in use."""
    threading.Thread(target=_look, name="first-look", daemon=True).start()


def _look() -> None:
    try:
        advance_due()
    except Exception:  # the database may be away; the clock looks again
        log.warning("first_look_failed", exc_info=True)
    finally:
        connection.close()


_warming = threading.Lock()  # held from the first warm-up on


def _warm_if_used() -> None:
    """Once there is an expert tool, load in a thread what its first run would have to wait for (5 s
    of work)."""
    if (
        not _warming.locked()
        and ExpertTool.objects.filter(enabled=True).exists()
        and _warming.acquire(blocking=False)
    ):
        threading.Thread(target=_load, name="warm-up", daemon=True).start()


def _load() -> None:
    try:
        load_litellm()
        counter(REFERENCE)("warm")
        _runs.get()
    except Exception:  # a run would meet the same, and say it
        log.warning("warm_up_failed", exc_info=True)
    finally:
        connection.close()


_FREED: dict[str, Callable[[str], list[str]]] = {
    "runs": lease.free,
    "maintenance": request_lease.free,
    "agents": cycle.AGENTS.free,
}


def _take_over_from(worker: SiteProcess, now: datetime) -> int:
    """Free what a dead worker had, and look for it at once instead of at the clock's next tick.

    If a living worker has the same name, the leases of the work itself decide.
    """
    if processes.is_process_alive(worker.name, now):
        return 0
    freed = sum(len(free(worker.name)) for free in _FREED.values())
    if freed:
        _look()
    return freed


dead_processes.add_cleanup_step("runs", _take_over_from)
