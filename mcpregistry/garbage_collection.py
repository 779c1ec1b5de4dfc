"""When Python's garbage collector works: hardly while a process loads, briefly while it serves,
thoroughly when idle.

What was loaded stays, so no later collection needs to walk it: one that does stops every call of
the process for a tenth of a second. Memory that nothing refers to is freed at once in any case; the
collector is only for what refers to itself.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# new objects before the young are looked through; such looks before the next older
THRESHOLDS = (20_000, 20, 20)
_IDLE_SECONDS = 0.5  # without a call, before all is looked through
_SHORT_SECONDS = 0.02  # of processor time; what takes longer to walk is set aside, too
_SELDOM_SECONDS = 300.0  # between two times: it walks all that was ever loaded

_M_ARENA_MAX = -8  # malloc.h

_lock = threading.Lock()
_loading = 0  # how many are at it, in whatever threads
_settled = False


@contextmanager
def freeze_afterwards() -> Iterator[None]:
    """Whatever exists at the end counts as here to stay; nothing is collected before. For seconds,
    not for longer.

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


def settle() -> None:
    """This process has started: all of it is here to stay, and from now on it collects when it is
    idle (``Idle``).

    Web, ``runmcp`` and worker call it once they serve. It walks nothing itself, so it takes no
    time. What the C library keeps of the memory that loading has freed goes back to the system
    (about 1 MB).
    """
    global _settled  # noqa: PLW0603
    _settled = True
    gc.set_threshold(*THRESHOLDS)
    gc.freeze()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # glibc
        trim(0)


def share_heaps(most: int = 2) -> None:
    """Let all threads share a few heaps of the C library. Otherwise each busy thread gets its own,
    which keeps what it has freed.

    For processes in which threads rarely work at the same time, and of which there are many
    (``runmcp``).
    """
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # glibc
        set_option(_M_ARENA_MAX, most)


class Idle:
    """Looks through everything once no call has begun or ended for a moment. For one event loop; an
    engine has one."""

    def __init__(self) -> None:
        self._stirred = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._set_aside_at = -_SELDOM_SECONDS

    def stir(self) -> None:
        """A call has begun or ended. In a process that has not settled (a test, a command) it does
        nothing."""
        self._stirred = time.monotonic()
        if self._timer is None and _settled:
            self._timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._stirred + _IDLE_SECONDS - time.monotonic()
        if left > 0:
            self._timer = loop.call_later(left, self._look)
            return
        self._timer = None
        began = time.thread_time()  # not what others took meanwhile on a busy machine
        gc.collect()
        walked = time.thread_time() - began
        now = time.monotonic()
        if walked > _SHORT_SECONDS and now > self._set_aside_at + _SELDOM_SECONDS:
            self._set_aside_at = now
            _set_aside()


def _set_aside() -> None:
    """A new configuration, say, has come to stay. What was set aside before and is garbage by now
    goes first."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
