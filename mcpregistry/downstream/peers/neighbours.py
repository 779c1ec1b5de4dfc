"""Finds the other processes of the site on this machine: each has a file with its address in the
same folder.

Such a file is called MACHINE-PID.peer, so that those of other machines, and of processes that have
ended, can be told apart.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def announce(marker: Path, address: str) -> None:
    """Let the others find this process at its address."""
    marker.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = marker.with_suffix(".new")
    written.write_text(address)
    written.replace(marker)


def list_neighbours(marker: Path) -> list[str]:
    """The addresses of the others, for the process with this file. The files of processes that have
    ended are deleted."""
    found = []
    for path in sorted(marker.parent.glob(f"{marker.stem.rpartition('-')[0]}-*.peer")):
        pid = path.stem.rpartition("-")[2]
        if path == marker or not pid.isdecimal():
            continue
        if not is_alive(int(pid)):
            path.unlink(missing_ok=True)
            continue
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            found.append(path.read_text())
    return found


def is_alive(pid: int) -> bool:
    """Whether a process of this machine is alive. One that has ended and that its parent has not
    waited for is not (on Linux)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (ProcessLookupError, OverflowError):
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # no such folder here, or it ends at this moment
        return not Path("/proc/self/stat").exists()
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
