"""Asking a worker to start soon. A message carries a task's name and ids, nothing else.

Whatever a message asks for is a row as well, so a lost one only delays the work until the next tick.
"""

from __future__ import annotations

import structlog

log = structlog.get_logger(__name__)

NO_BROKER = "The message broker does not answer; the work starts by itself once it is back."


def wake(task: str, *ids: int | str) -> bool:
    """Send ``mcpregistry.tasks.<task>`` with ids. False, within about a second, when the broker is away."""
    from celery import current_app
    from kombu.exceptions import OperationalError

    try:
        current_app.send_task(f"mcpregistry.tasks.{task}", args=list(ids), retry=False)
    except OperationalError as error:
        log.warning("broker_away", task=task, ids=ids, cause=type(error.__cause__ or error).__name__)
        return False
    return True
