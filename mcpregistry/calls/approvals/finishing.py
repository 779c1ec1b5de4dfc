"""Waiting for what must not be interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def finish_despite_cancel(work: Awaitable[T]) -> tuple[T, bool]:
    """Wait for it even while being cancelled; tells whether that happened."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:  # noqa: BLE001, S110 - it is raised below
            pass
    return task.result(), cancelled
