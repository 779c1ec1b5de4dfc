"""What a worker does for runs when it is woken. The rows decide; a message only says "look at this run"."""

from __future__ import annotations

import threading

import structlog
from celery import shared_task
from celery.signals import worker_process_shutdown, worker_ready, worker_shutdown
from django.db import connection
from django.utils import timezone

from mcpregistry.services.connections import process_name
from mcpregistry.tasks import background
from subagents.llm.tokens import REFERENCE, counter
from subagents.models import ExpertTool
from subagents.runs import probing
from subagents.runs.engine import RunEngine
from subagents.services import retention, runs

log = structlog.get_logger(__name__)

_lock = threading.Lock()
_engine: RunEngine | None = None


@shared_task
def advance_run(run_id: str) -> None:
    """Work on the run as far as it goes. Returns at once; the loop thread does it."""
    engine = _runs()
    background().soon(engine.wake, run_id)


@shared_task
def test_provider(provider_id: int, model_id: int) -> None:
    """Ask one model of the provider for a word; the answer is noted with the provider. Returns at once."""
    background().soon(probing.begin, provider_id, model_id)


@shared_task
def advance_due() -> None:
    """Every two seconds: runs whose wake-up was lost, whose worker died, or whose time has come."""
    for run_id in runs.left_alone():
        runs.cancel(run_id=run_id, actor="clock", reason="its caller is gone")
    for run_id in [*runs.due(timezone.now()), *runs.decided()]:
        advance_run(run_id)


@shared_task
def prune_runs() -> None:
    """Every hour: forget stored outputs and the texts of old runs, as the site's retention says."""
    log.info("runs_pruned", **retention.prune(timezone.now()))


def _runs() -> RunEngine:
    global _engine  # noqa: PLW0603 - one per worker process is the point
    with _lock:
        if _engine is None:
            here = background()
            _engine = RunEngine(here.engine, process_name("worker"))
            here.stops_first(_engine.stop)
        return _engine


@worker_shutdown.connect
@worker_process_shutdown.connect
def _forget(**_: object) -> None:
    global _engine  # noqa: PLW0603 - as above
    with _lock:
        _engine = None


@worker_ready.connect
def _warm(**_: object) -> None:
    """Where expert tools are in use, load the model library before the first run has to wait for it."""
    threading.Thread(target=_load_if_used, name="warm-up", daemon=True).start()


def _load_if_used() -> None:
    try:
        if ExpertTool.objects.filter(enabled=True).exists():
            counter(REFERENCE)("warm")
            _runs()
    except Exception:  # a run would meet the same, and say it
        log.warning("warm_up_failed", exc_info=True)
    finally:
        connection.close()
