"""Celery's tasks: what a worker does when it is woken. They take ids and call services.

Each may be delivered twice or never: the rows decide. What needs an event loop is in
``worker_runtime``.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import shared_task
from celery.signals import worker_init
from celery.worker.control import inspect_command
from django.conf import settings
from django.utils import timezone

from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.services import host_sessions, host_streams
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.budgets import spending
from mcpregistry.services.energy import reservations, usage
from mcpregistry.services.installs import install_cleanup
from mcpregistry.services.policy import findings, permits
from mcpregistry.services.records import (
    call_hours,
    newest_seal,
    seals,
    search_index,
    sinks,
    usage_sums,
    verification,
)
from mcpregistry.services.servers import checks, connections, placement, trials
from mcpregistry.services.servers.targets import list_passed_variables
from mcpregistry.services.upkeep import dead_processes, processes, reaping, retention, statistics
from mcpregistry.worker_runtime import runtime

log = structlog.get_logger(__name__)

_PROCESS = connections.make_process_name("worker")


@inspect_command(args=[("names", list)], signature="[NAME1 [NAME2 [...]]]")
def unseen_variables(_state: object, names: list[str], **_: object) -> list[str]:
    """Which of these variables servers and providers do not get here; ``runmcp --config`` asks it
    over the broker."""
    return sorted({*names} - {*list_passed_variables()})


@shared_task
def test_server(test_id: int) -> None:
    """When somebody asked for a test. Returns at once."""
    runtime.shares.get().look_for_tests()


@shared_task
def refresh_server(server_id: int) -> None:
    """When somebody asked for a server's definitions to be read. Returns at once."""
    runtime.shares.get().look_for_checks()


@shared_task
def check_due_servers() -> None:
    """Every few seconds: check the servers whose time has come, and begin tests whose message was
    lost."""
    runtime.shares.get().look_for_checks()
    runtime.shares.get().look_for_tests()


@shared_task
def run_approved(call_id: str) -> None:
    """Run an approved call that no process waits for. Returns at once; the call takes as long as it
    takes."""
    runtime.calls.get().run(call_id)


@shared_task
def run_ready() -> None:
    """Every few seconds: approved calls whose wake-up was lost, or whose caller has gone."""
    for call_id in held_calls.list_calls_for_workers(timezone.now()):
        run_approved(call_id)


@shared_task
def reap() -> None:
    """Every few seconds: end what died, send again what was lost."""
    now = read_database_now()  # by which the leases were written
    done = {
        "held_calls": held_calls.expire_due(now),
        "dead_seats": held_calls.leave_dead_seats(now),
        "ends_forgotten": held_calls.forget_ends(now),
        "calls": reaping.reap_calls(now) if reaping.note_clock_look(now) else 0,
        "uses_given_back": permits.give_back_left(now),
        "tests_given_up": trials.give_up_lost(now),
        "tests_resent": trials.resend_waiting(now),
        "connections": connections.forget_stale(now),
        "session_owners": placement.forget_old(),
        "energy_charged": reservations.settle_due(),
        "budgets_charged": spending.settle_due(),
        "sessions_ended": host_sessions.end_idle_sessions(now),
        "streams_forgotten": host_streams.delete_old_streams(now),
    }
    if any(done.values()):
        log.info("reaped", **done)


@shared_task
def count_usage() -> None:
    """Every minute: what calls of the tools that are in use take, for estimates; and the words of
    new calls, to be found."""
    search_index.index_due()
    usage.count_due(read_database_now())


@shared_task
def count_calls() -> None:
    """Every few minutes: what the calls of the hours that are over come to, for pages that show
    weeks."""
    call_hours.count_due(now := read_database_now())
    usage_sums.refresh_sums(now)


@shared_task
def analyze_access() -> None:
    """Every minute: analyze the grants that are due, for one second."""
    findings.refresh_findings(read_database_now())


@shared_task
def work_install(install_id: int) -> None:
    """When a package was asked for, or approved. Returns at once."""
    runtime.shares.get().look_for_installs()


@shared_task
def sweep_installs() -> None:
    """Every half minute: what became of installations whose worker died, and which folders nobody
    needs."""
    done = install_cleanup.sweep_installs(read_database_now())
    if any(done.values()):
        log.info("installs_swept", **done)


@shared_task
def sync_registry(source_id: int) -> None:
    """When somebody asked for a registry to be read. Returns at once."""
    runtime.shares.get().look_for_registries()


@shared_task
def sync_due_registries() -> None:
    """Every minute: read the registries whose hour has come."""
    runtime.shares.get().look_for_registries()


@shared_task
def deliver_notifications() -> None:
    """When something is to be told, and every few seconds: empty the outbox, without waiting for
    receivers."""
    runtime.deliverer.get().kick()


@shared_task
def seal_audit() -> None:
    """Twice a minute: seal how far the chains of the audit log have come, and hand the seals over
    to be kept elsewhere."""
    seals.replace_lost("clock")
    seals.seal_new_entries(read_database_now())
    _keep_newest_seal()
    sinks.deliver_seals()


def _keep_newest_seal() -> None:
    """In the file of this machine, which the first verification makes."""
    try:
        loss = newest_seal.keep_newest_seal(make=False)
    except (OSError, SlipsnisseError) as error:
        log.warning("audit.newest_seal_not_kept", error=f"{type(error).__name__}: {error}")
        return
    if loss:
        log.error("audit.cut_back", found=loss)


@shared_task
def verify_audit() -> None:
    """Every ten minutes, and when somebody asks for it: verify what is new in the audit log, and
    some of what is older."""
    report = verification.verify_log(read_database_now())
    if report.problems:
        log.error("audit.broken", problems=len(report.problems), first=report.problems[0])


@shared_task
def prune() -> None:
    """Every hour: forget what the site's retention says, and let the database look at what is
    left."""
    log.info("pruned", **retention.prune(timezone.now()))
    statistics.refresh()


@worker_init.connect
def _bury_predecessor(**_: Any) -> None:
    """Of the worker that we replace our supervisor knows that it is dead: no lease of its work need
    run out."""
    if settings.PREDECESSOR:
        dead = connections.make_process_name("worker", settings.PREDECESSOR)
        now = read_database_now()
        buried = {
            "calls": reaping.end_calls_of_predecessor("worker", settings.PREDECESSOR),
            **{
                what: sum(take_back(each, now) for each in processes.find_processes_by_name(dead))
                for what, take_back in _TAKEN_BACK.items()
            },
        }
        log.info("buried", **buried)


# What a dead worker had, which other workers do, or which ends.
_TAKEN_BACK: dict[str, dead_processes.Step] = {
    "checks": lambda worker, now: checks.free_checks(worker.pk),
    "tests": lambda worker, now: trials.give_up_of(worker.pk, now),
    "installs": lambda worker, now: install_cleanup.take_back_of(worker.pk, now),
}
for _what, _take_back in _TAKEN_BACK.items():
    dead_processes.add_cleanup_step(_what, _take_back)
