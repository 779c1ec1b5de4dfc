"""What an Idempotency-Key is told once its call is over, whoever came with it: REST, or a form on a
page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from django.db import Error

log = structlog.get_logger(__name__)


async def write_key_note(note: Callable[[], Awaitable[None]]) -> None:
    """Make the note, ``idempotency.keep`` or ``release``, as well as it can: what became of the
    call is told, whatever fails after it.

    A repetition with the key then gets the end from the call's own record, which the key names.
    """
    try:
        await note()
    except Error:
        log.exception("calls.key_not_recorded")
