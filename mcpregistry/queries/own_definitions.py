"""Tools that no server offers, such as expert tools, for queries about what agents are shown. Apps
report theirs at their start.

Apart from ``definition_sizes``, because each process loads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.extensions import list_extensions


@dataclass(frozen=True, slots=True)
class OwnDefinition:
    """A tool that no server offers, as an expert tool, and the agents and endpoints that show
    it."""

    name: str
    characters: int
    agents: frozenset[str]
    endpoints: frozenset[str]


def list_own_definitions(snapshot: Snapshot) -> Iterator[OwnDefinition]:
    """All of them."""
    for extension in list_extensions():
        yield from extension.list_own_definitions(snapshot)
