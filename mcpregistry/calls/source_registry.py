"""Sources of tools that other apps add to every engine: ``subagents`` adds one for expert tools.

Apart from the engine, because apps register while Django starts, also where no call is ever made:
the engine brings the whole MCP client along, two seconds of work that commands, `up` and the clock
have no use for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpregistry.calls.catalog import ToolSource
    from mcpregistry.calls.execution import Dispatcher
    from mcpregistry.calls.sampling import Sampler

    SamplerMaker = Callable[[Any], Sampler]  # given the engine
    SourceMaker = Callable[[Any], tuple[ToolSource, Dispatcher]]  # given the engine

_makers: list[SourceMaker] = []
_samplers: list[SamplerMaker] = []


def add_source(make: SourceMaker) -> None:
    """Let engines made from now on offer, and dispatch to, another source of tools."""
    _makers.append(make)


def make_sources(engine: object) -> list[tuple[ToolSource, Dispatcher]]:
    """What was added, made for this engine; the engine asks once, when it is made."""
    return [make(engine) for make in _makers]


def set_sampler_maker(make: SamplerMaker) -> None:
    """Let engines made from now on answer by this what servers ask of models, see
    ``calls/sampling.py``."""
    _samplers.append(make)


def make_sampler(engine: object) -> Sampler | None:
    """The newest answerer, made for this engine; the engine asks once, when it is made."""
    return _samplers[-1](engine) if _samplers else None
