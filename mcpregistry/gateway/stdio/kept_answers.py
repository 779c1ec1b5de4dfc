"""Answers that are kept on disk for starts of ``runmcp`` to come: their files. Standard library
only, as ``preload``."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class StoredAnswer(NamedTuple):
    """An answer of the real server. ``revision`` and ``until`` (epoch) bound a list's life; None:
    no bound."""

    result: str
    revision: int | None = None
    until: float | None = None


def load(path: Path) -> dict[str, StoredAnswer]:
    """Kept answers by question; none from a file that is missing or damaged."""
    try:
        return {
            question: StoredAnswer(*kept) for question, kept in json.loads(path.read_text()).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def save(path: Path, kept: dict[str, StoredAnswer]) -> None:
    """Write kept answers, replacing the file in one step; only the owner may read them."""
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.write_text(json.dumps(kept))
        draft.replace(path)
    except OSError as error:
        print(
            f"The answers for the next start could not be stored ({error}). The next start is slower.",
            file=sys.stderr,
        )


def read_change_time(path: Path | None) -> int:
    """Nanoseconds of the file's last change; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns if path else 0
    except OSError:
        return 0


def get_common_path(var: Path) -> Path:
    """Where the answers are that no endpoint's configuration changes."""
    return var / "openings" / "common.json"


def get_lists_path(var: Path, endpoint: str, agent: str) -> Path:
    """Where the list of tools is that the agent sees on the endpoint."""
    return var / "openings" / "lists" / f"{make_file_name(endpoint, agent)}.json"


def get_wanted_path(var: Path, endpoint: str, agent: str) -> Path:
    """A file that is touched by each start for this endpoint and agent, so that a web process
    prepares these first."""
    return var / "openings" / "wanted" / make_file_name(endpoint, agent)


def touch_wanted_file(path: Path) -> None:
    """Touch a file of ``get_wanted_path``, if a web process has kept answers here: where there is
    no site, nothing is made."""
    with suppress(OSError):  # as for answers that cannot be kept, the next start is slower
        path.parent.mkdir(exist_ok=True, mode=0o700)
        path.touch()


def make_file_name(*parts: str) -> str:
    """A name for a file that belongs to these texts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
