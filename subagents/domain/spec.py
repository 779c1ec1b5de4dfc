"""What a run works from, as plain values: one version of an expert tool, with its targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

DEFAULT_WINDOW = 131_072  # tokens, for a model whose window nobody has entered


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens. None: unknown."""

    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    free: bool = False

    @property
    def known(self) -> bool:
        return self.free or (self.input is not None and self.output is not None)


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """One model in the order of fallback. ``label`` is ``provider/model``."""

    model_id: int
    label: str
    provider: str
    window: int
    max_output: int
    buffer: int
    tokenizer: str
    prices: Prices

    @property
    def room(self) -> int:
        """Tokens that a request may have, so that the answer still fits."""
        return max(0, self.window - self.max_output - self.buffer)


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """Limits are None where there are none. ``max_seconds`` is wall-clock time without waiting for
    people."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    system_prompt: str
    targets: tuple[TargetSpec, ...]
    max_steps: int = 10
    max_seconds: float = 60
    max_tokens: int | None = None
    max_cost: Decimal | None = None
    max_energy: float | None = None
    max_calls: int = 100
    parallelism: int = 4
    parallel: bool = False  # also calls of tools that may change something, if no person is asked
    output_schema: Mapping[str, Any] | None = None
    tool_instructions: bool = True
    fail_on_server_death: bool = False
    max_result_bytes: int = 12_288
    temperature: float = 0.0
    answer_format: str = ""  # as the caller wants it, see ``formats``
    model_options: Mapping[str, Any] = field(default_factory=dict)  # of this run alone
