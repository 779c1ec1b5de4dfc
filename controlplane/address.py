"""Where the site was last started, kept under ``var/``: a host's ``runmcp`` tells people where to decide, too."""

from __future__ import annotations

from pathlib import Path

_DEFAULT = "http://127.0.0.1:8000"


def remember(var: Path, url: str) -> None:
    (var / "address").write_text(f"{url}\n")


def last(var: Path) -> str:
    """The address that ``manage.py up`` listened on last, else where it listens unless told otherwise."""
    try:
        return (var / "address").read_text().strip() or _DEFAULT
    except OSError:
        return _DEFAULT
