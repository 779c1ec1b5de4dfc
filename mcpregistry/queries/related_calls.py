"""What other apps know of a call: the run that made it, the run that it began. They register here;
nothing here knows them."""

from __future__ import annotations

from dataclasses import dataclass

from mcpregistry.extensions import list_extensions
from mcpregistry.models import Invocation


@dataclass(frozen=True, slots=True)
class Kin:
    """A record that belongs to a call. ``how`` says what it is to it; people with ``permission``
    may follow ``url``."""

    how: str
    title: str
    url: str
    permission: str


def kin_of(call: Invocation) -> list[Kin]:
    """All that apps know, for a call's page."""
    return [kin for extension in list_extensions() for kin in extension.find_related_records(call)]
