"""Tools that no server offers, such as expert tools, for queries about what agents are shown. Apps
report theirs at their start.

Apart from ``definition_sizes``, because each process loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mcpregistry.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class OwnDefinition:
    """A tool that no server offers, as an expert tool, and the agents and endpoints that show
    it."""

    name: str
    characters: int
    agents: frozenset[str]
    endpoints: frozenset[str]


Own = Callable[[Snapshot], Iterable[OwnDefinition]]
_more: list[Own] = []


def add_definitions(read: Own) -> None:
    """Let an app report the tools that it offers, from the configuration."""
    _more.append(read)


def list_own_definitions(snapshot: Snapshot) -> Iterator[OwnDefinition]:
    """All of them."""
    for read in _more:
        yield from read(snapshot)
