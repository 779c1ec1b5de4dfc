"""Permits: approvals given ahead, which only ever narrow what a request asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mcpregistry.models import Permit

LONGEST = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class PermitWish:
    """What an approver allows besides the call at hand: ``pins`` are some of its arguments, with their values."""

    until: datetime
    pins: Mapping[str, Any] = field(default_factory=dict)
    uses: int | None = None


def revoke(*, permit: Permit, actor: str) -> Permit:
    """End a permit now."""
    raise NotImplementedError
