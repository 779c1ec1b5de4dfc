"""What an installer has left on disk: looked through before it is kept, made read-only, and taken
away again."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mcpregistry.domain.installs.reasons import InstallFailed, explain_excess_usage
from mcpregistry.downstream.folders import MOST_DEPTH, iterate_entries, remove

__all__ = ["make_read_only", "measure_size", "remove", "verify"]

MOST_BYTES = 500 << 20
MOST_FILES = 60_000
_READ_ONLY = 0o555


def verify(root: str, *, may_lead_to: frozenset[str] = frozenset()) -> tuple[int, int]:
    """Bytes and files below ``root``. Raises InstallFailed for too many, and for whatever leads or
    reaches out of it.

    ``may_lead_to`` are the files outside that links may name: the interpreter of a virtual
    environment.
    """
    place = os.path.realpath(root)
    total = 0
    count = 0
    for entry in iterate_entries(place):
        path = entry.path
        mode = entry.stat.st_mode
        total = total + entry.stat.st_size
        count = count + 1
        if total > MOST_BYTES or count > MOST_FILES:
            raise explain_excess_usage(
                "disk space", f"{MOST_BYTES >> 20} MB or {MOST_FILES:,} files"
            )
        if entry.is_too_deep:
            raise _make_odd_error(place, path, f"is more than {MOST_DEPTH} folders deep")
        if stat.S_ISLNK(mode):
            _check_link(place, path, may_lead_to)
        elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise _make_odd_error(place, path, "is not a regular file, folder or link")
        elif mode & (stat.S_ISUID | stat.S_ISGID) and not stat.S_ISDIR(mode):
            raise _make_odd_error(
                place, path, "would run with the permissions of another user (setuid or setgid)"
            )
    return total, count


def measure_size(root: str) -> tuple[int, int]:
    """Bytes and files below ``root`` as they are now; what goes away meanwhile is not counted."""
    total = 0
    count = 0
    for entry in iterate_entries(root, skip_unreadable=True):
        total = total + entry.stat.st_size
        count = count + 1
    return total, count


def make_read_only(root: str) -> None:
    """Nobody writes there any more: not the site by mistake, nor a server that runs from it."""
    for entry in iterate_entries(root):
        if not stat.S_ISLNK(entry.stat.st_mode):
            os.chmod(entry.path, stat.S_IMODE(entry.stat.st_mode) & _READ_ONLY)
    os.chmod(root, _READ_ONLY & os.stat(root).st_mode)


def _check_link(root: str, path: str, may_lead_to: frozenset[str]) -> None:
    target = os.path.realpath(path)
    if target in may_lead_to:
        return
    if os.path.isabs(os.readlink(path)) or not Path(target).is_relative_to(root):
        raise _make_odd_error(root, path, "is a link to a place outside of the package")


def _make_odd_error(root: str, path: str, what: str) -> InstallFailed:
    return InstallFailed(
        f"{os.path.relpath(path, root)[:200]!r} in the package {what}.",
        remedy="Do not use this package. Report the problem to its publisher.",
    )
