"""Processes as tests look at them: any may end between two looks, and one that has ended but is not
collected runs no more."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

import psutil

from tests import forkserver


def runs(process: psutil.Process | int) -> bool:
    """Whether it still runs; given by its number where only that is known."""
    with contextlib.suppress(psutil.NoSuchProcess):
        known = psutil.Process(process) if isinstance(process, int) else process
        return known.is_running() and known.status() != psutil.STATUS_ZOMBIE
    return False


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those of them that still run."""
    return [each for each in processes if runs(each)]


def below(pid: int | None = None) -> set[psutil.Process]:
    """All that run below this process, at any depth; if none is named, below ours, with those that
    the fork server made."""
    leaves = forkserver.leaves() if pid is None else []
    found = set(leaves)
    for each in (psutil.Process(pid), *leaves):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(each.children(recursive=True))
    return set(alive(found))


def command_line(process: psutil.Process) -> str:
    """Its command line; empty once it has ended, and for a stranger's that may not be read."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return " ".join(process.cmdline())
    return ""


def with_words(
    wanted: str, processes: Iterable[psutil.Process] | None = None
) -> list[psutil.Process]:
    """Those (of all below ours, if none are given) whose command line has these words."""
    return [
        each
        for each in alive(below() if processes is None else processes)
        if wanted in command_line(each)
    ]


def servers_of(fake: str) -> list[psutil.Process]:
    """The servers of this name that run below us, without the processes that watch over them."""
    return [
        each
        for each in with_words(f"/{fake}.py")
        if re.fullmatch(rf"\S+ -S .*/{fake}\.py", command_line(each))
    ]
