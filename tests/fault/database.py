"""A database that fails once, at the place that a cell names, and what the cells of all rooms need
for that.

Nothing here starts a process: a raise needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.db import connections

from mcpregistry import failpoints
from tests import waiting

T = TypeVar("T")


@contextmanager
def failing(point: str) -> Iterator[None]:
    """The database fails at ``NAME`` the first time it is passed, at ``NAME@2`` the second. It must
    be passed."""
    name, _, number = point.partition("@")
    with failpoints.arm_for_test(f"{name}:dberror@{number or 1}") as armed:
        yield
        assert armed.left <= 0, f"{point} was not reached"


async def reached() -> None:
    """Returns once the place that is to fail was passed: what a story sets off may come to it after
    the story."""
    await waiting.until(lambda: failpoints._armed.left <= 0)


def alone(look: Callable[[], T]) -> T:
    """Not in a database thread of ours: whoever looks is another process, whose database does not
    fail."""
    try:
        return look()
    finally:
        connections.close_all()


async def elsewhere(look: Callable[[], T]) -> T:
    """``look`` as another process would, while this one's database fails."""
    return await asyncio.to_thread(alone, look)


async def until(condition: Callable[[], T]) -> T:
    """Ask the database until it says so."""
    return await waiting.until(lambda: elsewhere(condition))
