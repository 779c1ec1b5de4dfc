"""What a local server uses while it is tried: memory and processes of its whole tree, and files it
holds open or writes.

Read from ``/proc``, so on Linux alone; elsewhere nothing is observed, and the report says so. What
is opened and closed between two looks is not seen, nor what the kernel refused: Landlock tells
nobody.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.folders import iterate_entries
from mcpregistry.downstream.transports.bubblewrap import PROGRAM
from mcpregistry.downstream.transports.sandbox import DEVICES, SYSTEM, find_needed_files

LOOK_SECONDS = 0.05
MOST_PROCESSES = 200
MOST_DESCRIPTORS = 256
MOST_FILES = 5_000
MOST_NAMED = 50
_LISTENS = "0A"
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024 if hasattr(os, "sysconf") else 4
# As Python, Node and shells say it, before and behind the path.
_DENIED = re.compile(
    r"(?i:permission denied|operation not permitted|read-only file system|eacces|eperm)[^\n/]{0,60}(/[\w.@+/-]{1,300})"
    r"|(/[\w.@+/-]{1,300})['\"]?: (?i:permission denied|operation not permitted|read-only file system)"
)


class ProcessUsage:
    """The most that was seen of one server. ``memory_kb`` and ``processes`` are None while nothing
    was."""

    def __init__(self, target: ServerTarget) -> None:
        path = os.environ.get("PATH", os.defpath)
        own: list[str] = []
        if target.argv:
            # of a server without a sandbox, whose first line nobody has to understand
            with suppress(ConfigInvalid):
                own = find_needed_files(target.argv[0], target.cwd, path)
        self._strict = target.sandbox is not None and target.sandbox.strict
        self._given = (*target.sandbox.write, *target.sandbox.read) if target.sandbox else ()
        # which the server is until its program is loaded
        launcher = os.path.dirname(os.path.realpath(__file__))
        self._usual = tuple(
            {*SYSTEM, *DEVICES, *map(os.path.realpath, own), find_home(target), launcher} - {""}
        )
        self.memory_kb: int | None = None
        self.processes: int | None = None
        self.elsewhere: set[str] = set()
        self.connected: set[int] = set()  # TCP ports, of others
        self.listened: set[int] = set()

    async def watch(self, pid_of: Callable[[], int | None]) -> None:
        """Look until cancelled, from when the server has a process id on."""
        while True:
            if (pid := pid_of()) is not None:
                await asyncio.to_thread(self.measure_tree, pid)
            await asyncio.sleep(LOOK_SECONDS if pid is not None else LOOK_SECONDS / 10)

    def measure_tree(self, pid: int) -> None:
        """Once, at the server and at what it has left to its supervisor."""
        tree = [each for each in _list_tree(pid) if not self._strict or _read_name(each) != PROGRAM]
        if not tree:
            return
        self.processes = max(self.processes or 0, len(tree))
        self.memory_kb = max(self.memory_kb or 0, sum(map(_read_memory_kb, tree)))
        opened = [path for each in tree for path in _iterate_open_targets(each)]
        files = (
            path
            for path in opened
            if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/memfd:"))
        )
        self.elsewhere.update(filter(None, map(self._find_policy_place, files)))
        if sockets := {path[8:-1] for path in opened if path.startswith("socket:[")}:
            connected, listened = _read_ports(sockets)
            self.connected |= connected
            self.listened |= listened

    def _find_policy_place(self, path: str) -> str:
        """The path of its policy that this file lies in, or the file; empty for its own program's
        and folder's."""
        within = [
            place
            for place in (*self._given, *self._usual)
            if path == place or path.startswith(f"{place}/")
        ]
        if not set(within) <= set(self._given):
            return ""
        return within[0] if within else path


def list_files(folder: str) -> dict[str, tuple[int, int]] | None:
    """Size and time of every file below the folder, by its path there; None where there are too
    many to look at."""
    found: dict[str, tuple[int, int]] = {}
    folders = 0
    for entry in iterate_entries(folder, skip_unreadable=True):
        if entry.is_folder:
            folders += 1
        else:
            found[os.path.relpath(entry.path, folder)] = (
                entry.stat.st_size,
                entry.stat.st_mtime_ns,
            )
        if max(folders, len(found)) > MOST_FILES:
            return None
    return found


def list_written_files(
    before: dict[str, tuple[int, int]] | None, after: dict[str, tuple[int, int]] | None
) -> list[str] | None:
    """Files that are new or changed, a few of them; None where that was not observed."""
    if before is None or after is None:
        return None
    return sorted(path for path, fact in after.items() if before.get(path) != fact)[:MOST_NAMED]


def find_denied_paths(log: str) -> list[str]:
    """Paths that the server's own log says it was refused."""
    return sorted({one or other for one, other in _DENIED.findall(log)})[:MOST_NAMED]


def find_home(target: ServerTarget) -> str:
    """The server's own folder without links; empty where it has none."""
    return os.path.realpath(target.sandbox.home) if target.sandbox else ""


def _list_tree(pid: int) -> list[int]:
    """The server and all that descends from its supervisor, which orphans are given to."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            parent = next(int(line.split()[1]) for line in file if line.startswith(b"PPid:"))
    except (OSError, StopIteration, ValueError):
        return []
    found = [*_iterate_children(parent)] if parent > 1 else [pid]
    for each in found:  # grows while we walk
        if len(found) >= MOST_PROCESSES:
            break
        found.extend(_iterate_children(each))
    return found[:MOST_PROCESSES]


def _iterate_children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
        except OSError:
            continue


def _read_memory_kb(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_KB
    except (OSError, IndexError, ValueError):
        return 0


def _iterate_open_targets(pid: int) -> Iterator[str]:
    """What its descriptors lead to: paths, and other things by the kernel's own names."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")[:MOST_DESCRIPTORS]
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue


def _read_ports(sockets: set[str]) -> tuple[set[int], set[int]]:
    """TCP ports that these sockets (by inode) are connected to, and those that they listen on."""
    connected: set[int] = set()
    listened: set[int] = set()
    for line in (line for table in ("tcp", "tcp6") for line in _read_lines(f"/proc/net/{table}")):
        words = line.split()
        if len(words) > 9 and words[9] in sockets:
            where, at = (listened, 1) if words[3] == _LISTENS else (connected, 2)
            where.add(int(words[at].rpartition(":")[2], 16))
    return connected - {0}, listened


def _read_lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.readlines()[1:]
    except OSError:
        return []


def _read_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""
