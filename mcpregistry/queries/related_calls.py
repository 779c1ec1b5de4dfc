"""What other apps know of a call: the run that made it, the run that it began. They register here;
nothing here knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mcpregistry.models import Invocation


@dataclass(frozen=True, slots=True)
class Kin:
    """A record that belongs to a call. ``how`` says what it is to it; people with ``permission``
    may follow ``url``."""

    how: str
    title: str
    url: str
    permission: str


Finder = Callable[[Invocation], Iterable[Kin]]
_finders: list[Finder] = []


def add_finder(finder: Finder) -> None:
    """Let a call's page ask this one too; called once, when an app is ready."""
    _finders.append(finder)


def kin_of(call: Invocation) -> list[Kin]:
    """All that apps know, for a call's page."""
    return [kin for finder in _finders for kin in finder(call)]
