"""Sources of tools that other apps add to every engine: ``subagents`` adds one for expert tools.

Apart from the engine, because apps register while Django starts, also where no call is ever made: the engine brings
the whole MCP client along, two seconds of work that commands, `up` and the clock have no use for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpregistry.calls.catalog import Source
    from mcpregistry.calls.pipeline import Dispatcher

    SourceMaker = Callable[[Any], tuple[Source, Dispatcher]]  # given the engine

_makers: list[SourceMaker] = []


def add_source(make: SourceMaker) -> None:
    """Let engines made from now on offer, and dispatch to, another source of tools."""
    _makers.append(make)


def made_for(engine: object) -> list[tuple[Source, Dispatcher]]:
    """What was added, made for this engine; the engine asks once, when it is made."""
    return [make(engine) for make in _makers]
