"""Child processes that never outlive us: own process group, and the kernel kills them when we die.

Linux only for the second half (``PR_SET_PDEATHSIG``); elsewhere an orderly stop still ends the
group. The kernel ties the signal to the *thread* that forked: start children from the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(parent: int | None = None) -> Callable[[], None]:
    """For ``preexec_fn``: SIGKILL this child when its parent ends, also when that happened
    already."""
    expected = parent if parent is not None else os.getpid()

    def arm() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != expected:
            os._exit(1)

    return arm


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the child and to whatever it started in its group; a dead one is no
    error."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def stop(
    process: subprocess.Popen[bytes], patience: float, number: signal.Signals = signal.SIGTERM
) -> int:
    """Ask the group to end, wait ``patience`` seconds, then kill it. Returns the exit code."""
    signal_group(process, number)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        signal_group(process, signal.SIGKILL)
    code = process.wait()
    # The child is gone; anything left in its group ignored the polite signal.
    signal_group(process, signal.SIGKILL)
    return code
