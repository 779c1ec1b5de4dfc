"""What a worker does when it is woken: thin tasks that take ids and call services.

Each may be delivered twice or never: the rows decide. All tasks of a worker process share one
``Prober``, made when the first test comes and closed when the worker stops.
"""

from __future__ import annotations

import threading
from typing import Any

import structlog
from celery import shared_task
from celery.signals import worker_process_shutdown, worker_shutdown
from django.utils import timezone

from mcpregistry.calls.background import Background
from mcpregistry.services import connections, health, holding, reaping, retention, testing
from mcpregistry.services.notifications_delivery import Deliverer
from mcpregistry.services.probing import Prober
from mcpregistry.services.wakeups import wake

log = structlog.get_logger(__name__)

_PROCESS = connections.process_name("worker")


@shared_task
def test_server(test_id: int) -> None:
    """Run a queued test (the id of a ServerTest)."""
    test = testing.run_test(test_id=test_id, probe=_prober().test, process=_PROCESS)
    if test is not None:
        log.info("server_tested", server=test.server.slug, verdict=test.verdict, code=test.error_code)


@shared_task
def refresh_server(server_id: int) -> None:
    """Connect, read the tools, note health."""
    testing.check_server(server_id=server_id, probe=_prober().test, process=_PROCESS)


@shared_task
def check_due_servers() -> None:
    """Every few seconds: each server whose check is due becomes a task of its own."""
    for server_id in health.due_servers(timezone.now()):
        wake("refresh_server", server_id)


@shared_task
def run_approved(call_id: str) -> None:
    """Run an approved call that no process waits for. Returns at once; the call takes as long as it takes."""
    background().run(call_id)


@shared_task
def run_ready() -> None:
    """Every few seconds: approved calls whose wake-up was lost, or whose caller has gone."""
    for call_id in holding.ready_by_themselves(timezone.now()):
        run_approved(call_id)


@shared_task
def reap() -> None:
    """Every few seconds: end what died, send again what was lost."""
    now = timezone.now()
    done = {
        "held_calls": holding.expire_due(now),
        "ends_forgotten": holding.forget_ends(now),
        "calls": reaping.reap_calls(now),
        "tests_given_up": testing.give_up_lost(now),
        "tests_resent": testing.resend_waiting(now),
        "connections": connections.forget_stale(now),
    }
    if any(done.values()):
        log.info("reaped", **done)


@shared_task
def deliver_notifications() -> None:
    """When something is to be told, and every few seconds: empty the outbox, without waiting for receivers."""
    _deliverer().kick()


@shared_task
def prune() -> None:
    """Every hour: forget what the site's retention says."""
    log.info("pruned", **retention.prune(timezone.now()))


_lock = threading.Lock()
_shared: Prober | None = None
_messenger: Deliverer | None = None
_starting = threading.Lock()
_calls: Background | None = None


def _prober() -> Prober:
    global _shared  # noqa: PLW0603  one per worker process is the point
    with _lock:
        _shared = _shared or Prober()
        return _shared


def _deliverer() -> Deliverer:
    global _messenger  # noqa: PLW0603  one per worker process is the point
    with _lock:
        _messenger = _messenger or Deliverer()
        return _messenger


def background() -> Background:
    """The engine of this worker process, started when first asked for."""
    global _calls  # noqa: PLW0603  one per worker process is the point
    with _starting:
        _calls = _calls or Background()
        return _calls


@worker_shutdown.connect
@worker_process_shutdown.connect
def _close_background(**_: Any) -> None:
    global _calls
    with _starting:
        calls, _calls = _calls, None
    if calls is not None:
        calls.close()


@worker_shutdown.connect
@worker_process_shutdown.connect
def _close_prober(**_: Any) -> None:
    global _shared
    with _lock:
        prober, _shared = _shared, None
    if prober is not None:
        prober.close()


@worker_shutdown.connect
@worker_process_shutdown.connect
def _close_deliverer(**_: Any) -> None:
    global _messenger
    with _lock:
        deliverer, _messenger = _messenger, None
    if deliverer is not None:
        deliverer.close()
