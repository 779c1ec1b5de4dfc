"""What an installer has left on disk: looked through before it is kept, made read-only, and taken away again."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from mcpregistry.domain.installs.reasons import InstallFailed, too_much

MOST_BYTES, MOST_FILES = 500 << 20, 60_000
_READ_ONLY = 0o555


def verify(root: str, *, may_lead_to: frozenset[str] = frozenset()) -> tuple[int, int]:
    """Bytes and files below ``root``. Raises InstallFailed for too many, and for whatever leads or reaches out of it.

    ``may_lead_to`` are the files outside that links may name: the interpreter of a virtual environment.
    """
    place = os.path.realpath(root)
    total = count = 0
    for path, mode, size in _files(place):
        total, count = total + size, count + 1
        if total > MOST_BYTES or count > MOST_FILES:
            raise too_much("files", f"{MOST_BYTES >> 20} MB or {MOST_FILES:,} files")
        if stat.S_ISLNK(mode):
            _check_link(place, path, may_lead_to)
        elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise _odd(place, path, "is no file")
        elif mode & (stat.S_ISUID | stat.S_ISGID) and not stat.S_ISDIR(mode):
            raise _odd(place, path, "would run with the rights of another user")
    return total, count


def size(root: str) -> tuple[int, int]:
    """Bytes and files below ``root`` as they are now; what goes away meanwhile is not counted."""
    total = count = 0
    for _, _, each in _files(root):
        total, count = total + each, count + 1
    return total, count


def seal(root: str) -> None:
    """Nobody writes there any more: not the site by mistake, nor a server that runs from it."""
    for path, mode, _ in _files(root):
        if not stat.S_ISLNK(mode):
            os.chmod(path, stat.S_IMODE(mode) & _READ_ONLY)
    os.chmod(root, _READ_ONLY & os.stat(root).st_mode)


def remove(root: str) -> None:
    """Take the folder away, whatever stands in it; none is no error. Raises OSError where it cannot be."""
    if os.path.islink(root) or os.path.isfile(root):
        os.unlink(root)
        return
    if not os.path.isdir(root):
        return
    for folder, _, _ in os.walk(root):  # top down: a folder is opened before it is walked into
        os.chmod(folder, 0o700)
    shutil.rmtree(root)


def _files(root: str) -> Iterator[tuple[str, int, int]]:
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            yield path, found.st_mode, found.st_size


def _check_link(root: str, path: str, may_lead_to: frozenset[str]) -> None:
    target = os.path.realpath(path)
    if target in may_lead_to:
        return
    if os.path.isabs(os.readlink(path)) or not Path(target).is_relative_to(root):
        raise _odd(root, path, "is a link that leads out of its folder")


def _odd(root: str, path: str, what: str) -> InstallFailed:
    return InstallFailed(
        f"{os.path.relpath(path, root)[:200]!r} in it {what}.", remedy="Do not use this package; tell its maker."
    )
