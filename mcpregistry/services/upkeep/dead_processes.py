"""What ends with a process that is dead, whether its supervisor reports it or its lease has
expired.

This module ends calls. Other packages add what must happen to the work of their workers with
``add_cleanup_step``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog

from mcpregistry.models import SiteProcess
from mcpregistry.services.servers import connections
from mcpregistry.services.upkeep import processes, reaping

log = structlog.get_logger(__name__)

# Takes the dead process, and the time. Returns how much it ended or freed. Must be safe to call
# again.
Step = Callable[[SiteProcess, datetime], int]
_more_steps: dict[str, Step] = {}


def add_cleanup_step(what: str, function: Step) -> None:
    """Call ``function`` for each process whose lease has expired; ``what`` names in the log what it
    counts."""
    _more_steps[what] = function


def clean_up_dead_process(process: SiteProcess, now: datetime) -> None:
    """End the calls of a process whose lease has expired, and free what it worked on. Does nothing
    if it has returned."""
    if processes.has_process_returned(process):
        return
    done = {"calls": reaping.end_calls_of_expired_process(process, now)}
    if not processes.is_process_alive(process.name, now):
        connections.forget_process(process.name)
    done |= {what: function(process, now) for what, function in _more_steps.items()}
    if any(done.values()):
        log.warning("process_dead", process=process.name, **done)
