"""The clock's schedule. It is kept in memory, so a full disk or a damaged file cannot stop the
clock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery.beat import Scheduler

_SOON = timedelta(seconds=60)


class Clock(Scheduler):
    """Celery's scheduler without a file.

    A start forgets when each task last ran. What is to run once an hour therefore runs a minute
    after the start: otherwise it would never run on a site that is started every hour. Tasks look
    at due rows, so an extra run is harmless.
    """

    data: dict[str, Any]  # entries by name

    def setup_schedule(self) -> None:
        """Celery calls it once, before the first tick."""
        self.install_default_entries(self.data)
        self.merge_inplace(self.app.conf.beat_schedule)
        for entry in self.data.values():
            _run_soon(entry)


def _run_soon(entry: Any) -> None:
    interval = getattr(entry.schedule, "run_every", None)  # a time of day has none
    if interval is not None and interval > _SOON:
        entry.last_run_at -= interval - _SOON
