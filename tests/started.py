"""Counts the processes that a run of the suite starts, so that two runs can be compared.

``python -m tests`` names a file in ``TESTS_STARTED``. Each start is a line in it: those of the test
processes, and those of the processes that the fork server makes for them. What other programs start
is not counted.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENVIRONMENT = "TESTS_STARTED"
SITE = "site"
OTHER = "other"
# read once: processes that are forked get the environment of a site
_FILE = os.environ.get(ENVIRONMENT)
# words of the command line of a process of the site
_SITES = {"manage.py", "celery", "controlplane.web"}


def install() -> None:
    """Count what this process starts from now on."""
    if _FILE:
        sys.addaudithook(_hear)


def note(args: Sequence[Any], *, site: bool | None = None) -> None:
    """Count a process with this command line; whether it is one of the site can be seen from it, or
    is given."""
    if _FILE:
        of_site = (
            site
            if site is not None
            else any(os.path.basename(str(word)) in _SITES for word in args)
        )
        with open(_FILE, "a") as file:
            file.write(f"{SITE if of_site else OTHER}\n")


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        note([args[1]] if isinstance(args[1], str | bytes) else args[1])
    elif event == "os.fork":
        note([])


def count(path: Path) -> Counter[str]:
    """Return how many were started, ``SITE`` and ``OTHER``."""
    return Counter(path.read_text().splitlines() if path.exists() else [])
