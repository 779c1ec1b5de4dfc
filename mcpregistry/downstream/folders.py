"""Folders that programs of others have filled: looked through and removed without recursion,
however deep they are."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from typing import NamedTuple

MOST_DEPTH = 100  # folders in each other that are entered


class FolderEntry(NamedTuple):
    """A file, folder or link. ``depth``: 1 in the folder itself."""

    path: str
    stat: os.stat_result
    depth: int

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_too_deep(self) -> bool:
        """Whether it is a folder that is not entered."""
        return self.is_folder and self.depth >= MOST_DEPTH


def iterate_entries(root: str, *, skip_unreadable: bool = False) -> Iterator[FolderEntry]:
    """Everything below ``root``; what is removed in the meantime is left out.

    Raises OSError for a folder that cannot be read, unless ``skip_unreadable``.
    """
    folders = [(root, 1)]
    while folders:
        folder, depth = folders.pop()
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            if skip_unreadable:
                continue
            raise
        for name in names:
            path = os.path.join(folder, name)
            try:
                entry = FolderEntry(path, os.lstat(path), depth)
            except FileNotFoundError:
                continue
            yield entry
            if entry.is_folder and not entry.is_too_deep:
                folders.append((path, depth + 1))


def remove(root: str) -> None:
    """Remove a folder with everything in it, a file or a link; none is no error. Raises OSError.

    Folders in folders are moved up first, so no path becomes long, and no more than one folder is
    open at a time.
    """
    if os.path.islink(root) or os.path.isfile(root):
        os.unlink(root)
        return
    if not os.path.isdir(root):
        return
    os.chmod(root, 0o700)
    moved_name = secrets.token_hex(8)
    moved = 0
    while names := os.listdir(root):
        for path in (os.path.join(root, name) for name in names):
            if not _is_real_folder(path):
                os.unlink(path)
                continue
            for inner in _unlock_and_list(path):
                if _is_real_folder(inner):
                    os.chmod(inner, 0o700)  # moving a folder changes it
                    os.rename(inner, os.path.join(root, f"{moved_name}-{moved}"))
                    moved += 1
                else:
                    os.unlink(inner)
            os.rmdir(path)
    os.rmdir(root)


def _unlock_and_list(folder: str) -> list[str]:
    os.chmod(folder, 0o700)
    return [os.path.join(folder, name) for name in os.listdir(folder)]


def _is_real_folder(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)
