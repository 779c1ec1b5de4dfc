"""What a server says about itself, and reading it anew without two readings crossing each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mcpregistry.domain.errors import DownstreamError
from mcpregistry.domain.offer_kinds import COMPLETIONS, KINDS, LOGGING, SUBSCRIPTIONS, TOOL

Era = Literal["legacy", "modern"]


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a server said about itself. ``tools`` are its raw definitions, repaired where they must
    be; ``others`` those of what else it offers, by kind.

    ``problems`` names definitions that were left out and why, ``changes`` those that hosts are
    shown with changes. Timings are milliseconds.
    """

    tools: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]
    instructions: str
    server_info: dict[str, Any]
    capabilities: dict[str, Any]
    era: Era
    protocol_version: str
    timings: dict[str, float] = field(default_factory=dict, compare=False)
    others: Mapping[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    read_at: float = field(default_factory=time.time, compare=False)  # seconds since the epoch

    def get_kind(self, kind: str) -> tuple[dict[str, Any], ...]:
        """What of this kind it listed last."""
        return self.tools if kind == TOOL else self.others.get(kind, ())

    @property
    def features(self) -> tuple[str, ...]:
        """What it says that it has besides lists: completions, logging, subscriptions; sorted."""
        said = self.capabilities
        resources = said.get("resources")
        subscribes = isinstance(resources, dict) and bool(resources.get("subscribe"))
        plain = (name for name in (COMPLETIONS, LOGGING) if isinstance(said.get(name), dict))
        return (*plain, *((SUBSCRIPTIONS,) if subscribes else ()))

    def can_notify_changes(self, kind: str) -> bool:
        """Whether it says that it tells when its list of this kind changes."""
        said = self.capabilities.get(KINDS[kind].capability)
        return isinstance(said, dict) and bool(said.get("listChanged"))


class SharedReading:
    """Runs ``read`` one at a time, so that an older list never replaces a newer one.

    Whoever asks while one runs shares the next one: what runs may have begun before the change that
    the asker heard of.
    """

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._one = asyncio.Lock()
        self._begun = 0
        self._ended = 0  # the number of the last reading that ended, well or with ``_error``
        self._error: DownstreamError | None = None

    async def __call__(self) -> None:
        """Returns after a reading that began after this call. Raises what that reading met
        (DownstreamError)."""
        asked = self._begun
        async with self._one:
            if self._ended <= asked:
                await self._read_once()
        if self._error is not None:
            raise self._error

    async def _read_once(self) -> None:
        self._begun += 1
        number = self._begun
        try:
            await self._read()
            self._error = None
        except DownstreamError as error:
            self._error = error
        self._ended = number
