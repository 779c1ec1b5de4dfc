"""``manage.py soloworker``: worker and clock in one process without a broker, while standard input
stays open."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

from celery import Celery, current_app
from celery.beat import EmbeddedService
from django.core.management.base import BaseCommand, CommandError

from mcpregistry.garbage_collection import freeze_afterwards

_PATIENCE = 10.0  # seconds that work in hand gets when the input ends


class Command(BaseCommand):
    """Runs Celery on an in-memory broker; ``gateway.stdio.own_worker`` starts it."""

    help = (
        "Does the work of the worker and the scheduler in one process. `runmcp --config` starts it if no worker runs. "
        'Each line of standard input starts a task: ["task", [ids]]. When standard input ends, the process stops.'
    )
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        app = current_app
        if not app.conf.broker_url.startswith("memory:"):
            raise CommandError(
                "This command runs without a broker, so that it does not take the work of other workers. Set "
                "CELERY_BROKER_URL=memory://."
            )
        app.conf.broker_transport_options = {"polling_interval": 0.05}
        with freeze_afterwards():
            # Before there are threads: of clock and worker, the second would not wait for what the
            # first still imports.
            app.loader.import_default_modules()
        threading.Thread(target=_listen, args=(app,), name="stdin", daemon=True).start()
        clock: Any = EmbeddedService(app, thread=True, scheduler_cls=app.conf.beat_scheduler)
        clock.start()
        app.worker_main(
            [
                "--quiet",
                "worker",
                "--pool",
                "threads",
                "--concurrency",
                "4",
                "--without-mingle",
                "--without-gossip",
                "--without-heartbeat",
                "--hostname",
                f"solo-{os.getpid()}@%h",
            ]
        )


def _listen(app: Celery) -> None:
    for line in sys.stdin.buffer:
        task, ids = json.loads(line)
        app.send_task(task, args=ids)
    timer = threading.Timer(_PATIENCE, os._exit, [1])
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)
