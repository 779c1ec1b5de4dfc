"""The one way from async code to the database.

Django's own bridge would push every caller outside an HTTP request onto one thread, and nobody
would close that thread's connections. ``db_call`` uses a small pool of threads of its own and
closes stale connections around each call, so write services synchronously and wrap them once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections

P = ParamSpec("P")
R = TypeVar("R")

_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="db")


async def db_call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run ``function`` in a database thread. Never hold a transaction across two calls."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _fresh, function, args, kwargs)


def _fresh(function: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        _keep()
        close_old_connections()


def _keep() -> None:
    """These few threads will be asked again, and opening a SQLite file costs ten times what a query does.

    PostgreSQL's connections go back to their pool.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "sqlite":
        connection.close_at = None  # until it breaks
