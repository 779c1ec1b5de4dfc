"""Python's garbage collector while a process loads what it will keep.

While modules are loaded nothing is garbage, yet looking for it takes a quarter of the time. And what was loaded stays, so
no later collection needs to walk it: one that does stops every call of the process for a tenth of a second.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_loading = 0  # how many are at it, in whatever threads


@contextmanager
def lasting() -> Iterator[None]:
    """Whatever exists at the end counts as here to stay; nothing is collected before. For seconds, not for longer.

    The site's processes enter it while they start, and whoever imports something large later.
    """
    global _loading  # noqa: PLW0603 - the collector is one per process
    with _lock:
        _loading += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _loading -= 1
            if not _loading:
                gc.freeze()
                gc.enable()
