"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], patience: float = 60.0) -> T:
    """The first true answer of ``look``; fails after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not (answer := look()):
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)
    return answer
