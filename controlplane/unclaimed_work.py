"""Work that no worker takes, by kind, with how long the oldest has waited: for the overview,
``doctor`` and ``/readyz``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from mcpregistry.queries import attention
from mcpregistry.queries.row_counts import oldest
from subagents.maintenance import queue
from subagents.queries import list_unclaimed_expert_work

# By model: how one and several are named, and the columns of which the first that is filled says
# since when a row waits.
_KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "mcpregistry.approvalrequest": ("approved call has", "approved calls have", ("decided_at",)),
    "mcpregistry.delivery": ("notification has", "notifications have", ("next_at",)),
    "mcpregistry.servertest": ("server test has", "server tests have", ("requested_at",)),
    "mcpregistry.server": ("server check has", "server checks have", ("next_check_at",)),
    "mcpregistry.install": ("package has", "packages have", ("state_at",)),
    "mcpregistry.registrysource": ("registry update has", "registry updates have", ("asked_at",)),
    "subagents.run": ("run has", "runs have", ("lease_until", "wake_at", "created_at")),
    "subagents.maintenancerequest": (
        "maintenance request has",
        "maintenance requests have",
        ("lease_until", "created_at"),
    ),
    "subagents.effortagent": (
        "hosted agent has",
        "hosted agents have",
        ("lease_until", "wake_at", "idle_since"),
    ),
    "subagents.provider": ("provider test has", "provider tests have", ("test_asked_at",)),
}
MODELS = frozenset(_KINDS)


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """So many rows of a model that no worker takes. ``since``: how long the oldest has waited;
    None: unknown."""

    model: str
    count: int
    since: timedelta | None

    @property
    def words(self) -> str:
        """What has waited for how long, without the count."""
        one, many, _ = _KINDS[self.model]
        minutes = max(1, round(self.since.total_seconds() / 60)) if self.since is not None else 1
        if minutes == 1:
            longest = "1 minute"
        elif minutes < _HOURS:
            longest = f"{minutes} minutes"
        else:
            longest = f"{minutes // 60} hours"
        if self.count == 1:
            return f"{one} waited for a worker for {longest}"
        return f"{many} waited for a worker, the oldest one for {longest}"


_HOURS = 120  # minutes from which on hours are told


def find_unclaimed_work(models: Collection[str] = MODELS) -> list[Unclaimed]:
    """What of these models waits for longer than a worker that is free would need. One query for
    all."""
    now = timezone.now()
    rows: dict[str, QuerySet[Any]] = {
        f"mcpregistry.{name}": found
        for name, found in attention.list_unclaimed_by_model(now).items()
    }
    rows |= {f"subagents.{name}": found for name, found in list_unclaimed_expert_work(now).items()}
    rows["subagents.maintenancerequest"] = queue.find_unclaimed_requests(
        now, now - attention.UNCLAIMED_AFTER
    )
    found = oldest({model: (rows[model], _since(model)) for model in _KINDS if model in models})
    return [Unclaimed(model, *_add_age(found[model], now)) for model in _KINDS if model in found]


def _add_age(found: tuple[int, datetime | None], now: datetime) -> tuple[int, timedelta | None]:
    count, since = found
    return count, now - since if since is not None else None


def _since(model: str) -> Coalesce | str:
    columns = _KINDS[model][2]
    return Coalesce(*columns) if len(columns) > 1 else columns[0]
