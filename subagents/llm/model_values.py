"""What goes to a model and what comes back, whoever the provider is; the same values for every
wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subagents.domain.finish_reasons import Finish

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """One model at one provider. ``base_url`` empty means the provider's own; ``timeout`` in
    seconds.

    ``networks``: private ones in which it may be reached.

    ``options`` are in the spelling of ``domain.model_options``; ``tool_choice`` is empty, ``auto``
    or ``required``.
    """

    kind: str
    model: str
    base_url: str = ""
    key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    tool_choice: str = ""
    max_output: int = 4096
    temperature: float = 0.0
    timeout: float = 60.0
    networks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call that the model wants. ``arguments`` is the text as it came; it may be no JSON at
    all."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one turn; ``input`` includes ``cached`` and ``cache_write``, ``output`` includes
    ``reasoning``."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What the model said. ``cost`` is litellm's own, or None.

    ``state``: what this provider wants to get back with this answer, unread by us (thinking blocks
    with their signatures, reasoning texts). None where it wants nothing. Only the very same model
    may be sent it again.
    """

    text: str
    calls: tuple[ToolUse, ...]
    usage: TokenUsage
    finish: Finish
    model: str
    cost: float | None = None
    state: Mapping[str, Any] | None = None
