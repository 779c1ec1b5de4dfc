"""What one stdio server may use: limits that the kernel keeps, and a look at the whole tree for
those that it does not.

Loaded by ``launcher.py`` for a server that has any; standard library only. Its lines in the
launcher's policy are ``M`` (memory, MB), ``P`` (processes), ``C`` (seconds of processor), ``F`` (MB
of each file) and ``O`` (open files of each process).

Memory is what the tree holds in truth (shared pages counted once, swapped ones too), looked at the
more often the nearer it is to its limit. The kernel's own limit of address space would end Node,
Java and Go at their start: they reserve gigabytes that they never use. It is asked for less: that
no process takes more private memory than the limit and ``SPARE``, so that one that runs away
between two looks meets an end.
"""

import ctypes
import os
import struct
import time

# of setrlimit, the same on x86-64 and ARM64
CPU = 0
FSIZE = 1
DATA = 2
NOFILE = 7
MB = 1 << 20
SPARE = 1 << 30
OFTEN = 0.1
SELDOM = 1.0
NEAR = 0.5
# threads that the limit of processes allows for each of them, all processes together
THREADS_EACH = 16
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
_TICKS = os.sysconf("SC_CLK_TCK")


def parse_limits(policy: str) -> dict[str, int]:
    """The limits that a policy names, by their letter."""
    return {
        line[0]: int(line[1:])
        for line in policy.split("\n")
        if line[:1] in ("M", "P", "C", "F", "O")
    }


def apply_limits(bounds: dict[str, int]) -> None:
    """Those that the kernel keeps, for this process and all that it starts. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    kept = {FSIZE: bounds.get("F", 0) * MB, NOFILE: bounds.get("O", 0)}
    # Beyond what the whole tree may: a look, which says why, comes before it.
    kept[CPU] = bounds["C"] + 5 if "C" in bounds else 0
    kept[DATA] = bounds["M"] * MB + SPARE if "M" in bounds else 0
    for what, most in kept.items():
        now = ctypes.create_string_buffer(16)
        libc.getrlimit(what, now)
        most = min(most, struct.unpack("QQ", now.raw)[1])  # noqa: PLW2901  nobody but root may raise it
        if most and libc.setrlimit(what, struct.pack("QQ", most, most)):
            raise OSError(ctypes.get_errno(), f"limit {what}")


class UsageWatch:
    """Looks at a server's tree; ``pause``: seconds between two, None where there is nothing to look
    for."""

    def __init__(self, bounds: dict[str, int], wrapped: int) -> None:
        self._bounds = {name: most for name, most in bounds.items() if name in ("M", "P", "C")}
        if "P" in bounds:  # otherwise one process could use up the machine's process ids
            self._bounds["T"] = bounds["P"] * THREADS_EACH
        self._wrapped = wrapped  # processes that are none of its own
        self._next = 0.0
        self.pause: float | None = OFTEN if self._bounds else None

    def is_due(self) -> bool:
        """Whether it is time to look."""
        return self.pause is not None and time.monotonic() >= self._next

    def check_usage(self, tree: list[int]) -> tuple[str, int, int] | None:
        """What the processes use more of than they may, how much, and how much they may; None while
        all is well."""
        near = 0.0
        for what, most in self._bounds.items():
            used = _USED[what](tree, most) - (self._wrapped if what == "P" else 0)
            if used > most:
                return what, used, most
            near = max(near, used / most)
        self.pause = OFTEN if near > NEAR else SELDOM
        self._next = time.monotonic() + self.pause
        return None


def _measure_memory_mb(pids: list[int], most: int) -> int:
    """Pages of all, first as each has them (cheap); where that is too much, those that several have
    are counted once.

    Files in memory (memfd) count as far as no process has them mapped.
    """
    held = _measure_memory_files_kb(pids)
    if (used := sum(map(_measure_resident_kb, pids)) + held >> 10) > most:
        used = (
            sum(map(_measure_own_kb, pids)) + max(held - sum(map(_measure_shared_kb, pids)), 0)
            >> 10
        )
    return used


def _measure_memory_files_kb(pids: list[int]) -> int:
    """What the files in memory hold that a process of these has open, each counted once."""
    held = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                if os.readlink(f"{folder}/{name}").startswith("/memfd:"):
                    file = os.stat(f"{folder}/{name}")
                    held[file.st_ino] = file.st_blocks // 2
        except OSError:  # the process has ended, closed the file, or cannot be read
            continue
    return sum(held.values())


def _measure_shared_kb(pid: int) -> int:
    """Its share of what lies in files in memory and is mapped."""
    words = _read_words(f"/proc/{pid}/smaps_rollup")
    return int(words[words.index(b"Pss_Shmem:") + 1]) if b"Pss_Shmem:" in words else 0


def _measure_resident_kb(pid: int) -> int:
    words = _read_words(f"/proc/{pid}/statm")
    return int(words[1]) * _PAGE_KB if len(words) > 1 else 0


def _measure_own_kb(pid: int) -> int:
    """Its share, and what is swapped out; all of it where it lets nobody look."""
    words = _read_words(f"/proc/{pid}/smaps_rollup")
    if b"Pss:" not in words:
        return _measure_resident_kb(pid)
    return sum(
        int(words[words.index(name) + 1]) for name in (b"Pss:", b"SwapPss:") if name in words
    )


def _measure_cpu_seconds(pids: list[int], most: int) -> int:
    """Of processor, with those that have ended."""
    return int(sum(map(_read_ticks, pids)) / _TICKS + sum(os.times()[2:4]))


def _read_ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
    except (OSError, ValueError):
        return 0


def _read_words(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read().split()
    except OSError:
        return []


def _count_processes(pids: list[int], most: int) -> int:
    return len(pids)


def _count_threads(pids: list[int], most: int) -> int:
    return sum(map(_count_process_threads, pids))


def _count_process_threads(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[17])
    except (OSError, ValueError, IndexError):
        return 0


_USED = {
    "M": _measure_memory_mb,
    "C": _measure_cpu_seconds,
    "P": _count_processes,
    "T": _count_threads,
}
