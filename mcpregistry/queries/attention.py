"""Things on the overview that need a person: packages, registries, energy pools, offers that were
left out, work that waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q, QuerySet

from mcpregistry.domain.host_definitions import keep_left_out
from mcpregistry.domain.installs.states import WORKED, InstallState
from mcpregistry.models import (
    ApprovalRequest,
    Delivery,
    EnergyPool,
    Install,
    RegistrySource,
    Server,
    ServerTest,
)

UNCLAIMED_AFTER = timedelta(minutes=1)  # a worker that is free takes work within a second


def query_waiting_packages() -> QuerySet[Install]:
    """Packages whose lock waits for a person."""
    return Install.objects.filter(state=InstallState.WAITING)


def query_unread_registries(now: datetime) -> QuerySet[RegistrySource]:
    """Return the registries whose last reading failed and that no worker reads at present."""
    return RegistrySource.objects.exclude(error="").filter(
        Q(lease_until=None) | Q(lease_until__lt=now)
    )


@dataclass(frozen=True, slots=True)
class IncompleteServer:
    """An active server of which something is left out, with the reasons as its page lists them."""

    pk: int
    slug: str
    reasons: list[str]


def list_incomplete_servers() -> list[IncompleteServer]:
    """Return the servers of whose lists something could not be taken when they were last read."""
    rows = (
        Server.objects.active()
        .exclude(left_out="")
        .order_by("slug")
        .values_list("pk", "slug", "left_out")
    )
    found = (IncompleteServer(pk, slug, keep_left_out(told)) for pk, slug, told in rows)
    return [each for each in found if each.reasons]


def count_empty_pools(now: datetime) -> int:
    """The number of energy pools that are empty. Their level rises with time, so it is calculated
    here."""
    return sum(
        pool.word(pool.stand.level_at(now)).value == "empty" for pool in EnergyPool.objects.all()
    )


def list_unclaimed_by_model(now: datetime) -> dict[str, QuerySet[Any]]:
    """Work that no worker has taken for ``UNCLAIMED_AFTER``, by model."""
    before = now - UNCLAIMED_AFTER
    not_read = Q(tried_at=None) | Q(tried_at__lt=F("asked_at"))
    return {
        "approvalrequest": ApprovalRequest.objects.filter_left_to_workers(before),
        "delivery": Delivery.objects.due(before),
        "server": Server.objects.due_for_check(before).filter(
            Q(check_until=None) | Q(check_until__lt=before)
        ),
        "servertest": ServerTest.objects.filter(
            verdict=ServerTest.Verdict.QUEUED, requested_at__lt=before
        ),
        "install": Install.objects.filter(state__in=[*WORKED], state_at__lt=before),
        "registrysource": RegistrySource.objects.filter(not_read, asked_at__lt=before),
    }
