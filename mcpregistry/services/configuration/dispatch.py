"""Waking a worker. A message carries a task's name and ids, nothing else.

Whatever a message asks for is a row as well, so a lost one only delays the work until the next
tick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

log = structlog.get_logger(__name__)

NO_BROKER = "The message broker does not answer. The work starts automatically when the broker is available again."


Carrier = Callable[[str, Sequence[int | str]], bool]
_carrier: Carrier | None = None


def set_local_carrier(carrier: Carrier | None) -> None:
    """Hand this process's messages to a worker of its own instead of the broker; None: to the
    broker again."""
    global _carrier  # noqa: PLW0603 - one way out per process
    _carrier = carrier


def wake_worker(task: str, *ids: int | str) -> bool:
    """Send ``mcpregistry.tasks.<task>`` with ids. False, within about a second, when the broker is
    away."""
    return send_task(f"mcpregistry.tasks.{task}", *ids)


def send_task(task: str, *ids: int | str) -> bool:
    """Send a task by its whole name, with ids; for other apps. False when the broker is away."""
    if _carrier is not None:
        return _carrier(task, ids)
    from kombu.exceptions import OperationalError

    try:
        get_celery_app().send_task(task, args=list(ids), retry=False)
    except OperationalError as error:
        log.warning(
            "broker_away", task=task, ids=ids, cause=type(error.__cause__ or error).__name__
        )
        return False
    return True


def get_celery_app() -> Any:
    """The project's Celery app; where it is not loaded (runmcp), Celery's own with the same
    settings."""
    from celery import current_app

    if current_app.main == "default":
        current_app.config_from_object("django.conf:settings", namespace="CELERY")
    return current_app
