"""What calls had in common, so that a grant can be made as narrow as its use: always the same
arguments, a shared URI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcpregistry.domain.policy.access import match_pins
from mcpregistry.domain.text.redaction import MASK, REDACTED
from mcpregistry.domain.text.secret_names import is_secret_name

LEAST = 10  # calls before anything is concluded from them
_LONGEST = 200  # characters of a value that is worth pinning


@dataclass(slots=True)
class CommonArguments:
    """What every call so far has said alike. ``unknown``: how many said what is not known any
    more."""

    calls: int = 0
    unknown: int = 0
    _same: dict[str, Any] | None = field(default=None)

    def take(self, arguments: Mapping[str, Any] | None) -> None:
        """Look at one more call; None: its arguments are erased."""
        self.calls += 1
        if arguments is None:
            self.unknown += 1
        elif self._same is None:
            self._same = {
                name: value for name, value in arguments.items() if _is_pinnable(name, value)
            }
        else:
            self._same = {
                name: value
                for name, value in self._same.items()
                if match_pins({name: value}, arguments)
            }

    def pins(self) -> dict[str, Any]:
        """What can be pinned without stopping any of these calls; nothing of few calls, or where
        some are not known."""
        return dict(self._same or {}) if self.calls >= LEAST and not self.unknown else {}


def _is_pinnable(name: str, value: Any) -> bool:
    """Whether a value is plain and short, and fit to stand in a grant: what may be a secret is
    not."""
    if not isinstance(value, bool | int | str) or is_secret_name(name):
        return False
    return not isinstance(value, str) or (
        len(value) <= _LONGEST and REDACTED not in value and MASK not in value
    )


@dataclass(slots=True)
class Folder:
    """The folder that all URIs so far were below."""

    uris: int = 0
    _unknown: int = 0
    _first: str = ""
    _last: str = ""

    def take(self, uri: object) -> None:
        """Look at one more URI; anything but text is not known."""
        if not isinstance(uri, str):
            self._unknown += 1
            return
        self._first = min(self._first, uri) if self.uris else uri
        self._last = max(self._last, uri)
        self.uris += 1

    def narrower(self, pattern: str) -> str:
        """The narrowest pattern for all of them that ends at a folder, if it is narrower than
        ``pattern``; else empty."""
        if self.uris < LEAST or self._unknown:
            return ""
        first = self._first
        last = self._last
        shared = next(
            (
                place
                for place, pair in enumerate(zip(first, last, strict=False))
                if pair[0] != pair[1]
            ),
            len(first),
        )
        folder, slash, _ = first[:shared].rpartition("/")
        narrow = f"{folder}{slash}*"
        if not slash or folder.endswith(("/", ":")) or "*" in folder or narrow == pattern:
            return ""
        return narrow if not pattern or folder.startswith(pattern.rstrip("*")) else ""
