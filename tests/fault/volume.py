"""A small file system of its own, which can be filled to the last byte. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FILLER = "filler"


@contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[None]:
    """Mount it at ``folder``, which keeps its content."""
    owner = folder.stat()
    options = f"size={megabytes}m,mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    with tempfile.TemporaryDirectory(dir="/tmp") as aside:
        shutil.copytree(folder, aside, dirs_exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        shutil.copytree(aside, folder, dirs_exist_ok=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def can_mount() -> bool:
    """Whether this process may."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        try:
            with mounted(Path(folder), 1):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """There is no room within."""
    filler = folder / _FILLER
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        _fill(descriptor)
        yield
    finally:
        filler.unlink()
        os.close(descriptor)


def _fill(descriptor: int) -> None:
    for size in (1 << 20, 1 << 12):
        chunk = bytes(size)
        while True:
            try:
                if os.write(descriptor, chunk) < size:
                    break
            except OSError:
                break
