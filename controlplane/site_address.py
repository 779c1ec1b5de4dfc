"""The address at which the site was last started, kept in ``var/address``.

``runmcp``, which a host starts on its own, reads it to link people to the approval page.
"""

from __future__ import annotations

from pathlib import Path

_DEFAULT = "http://127.0.0.1:8000"


def remember(var: Path, url: str) -> None:
    """Keep the address; ``manage.py up`` calls it once it listens."""
    (var / "address").write_text(f"{url}\n")


def last(var: Path) -> str:
    """The address that ``manage.py up`` listened on last, else its default."""
    try:
        return (var / "address").read_text().strip() or _DEFAULT
    except OSError:
        return _DEFAULT
