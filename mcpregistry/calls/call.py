"""The values that travel through the pipeline. Nothing in them changes once made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mcpregistry.calls.catalog import Catalogue, Entry
from mcpregistry.domain.lifecycle import State
from mcpregistry.domain.policy import Decision

# progress, total or None, message or None; called on the event loop, must not block
OnProgress = Callable[[float, float | None, str | None], None]


@dataclass(frozen=True, slots=True)
class CallRequest:
    """What a face hands in. ``meta`` is the host's ``_meta`` as far as it may go downstream."""

    catalogue: Catalogue
    name: str
    arguments: Mapping[str, Any]
    origin: str
    host_name: str = ""
    request_id: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    on_progress: OnProgress | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request that found its tool and was decided on; ``arguments_json`` are the bytes to be sent."""

    id: str
    request: CallRequest
    entry: Entry
    arguments_json: str
    binding: str
    decision: Decision
    received_at: datetime
    started: float  # monotonic seconds


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call ended. ``result`` is the server's own result object, or None when there was none."""

    invocation_id: str
    state: State
    result: dict[str, Any] | None = None
    error_code: str = ""
    message: str = ""
    remedy: str = ""
    duration_ms: float = 0.0
