"""Calls per minute over all processes: each takes a few at a time out of the agent's one bucket."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import transaction

from mcpregistry.db import read_database_now
from mcpregistry.domain.rates import Bucket
from mcpregistry.models import Agent, RateLevel


@transaction.atomic
def lease_calls(*, agent_id: int, limit: int, wanted: int) -> tuple[int, float]:
    """(calls that were taken out of the agent's bucket, at most ``wanted``; seconds until there is
    one, if none was).

    ``limit``: calls per minute, above 0. A bucket that nobody has used yet is full, as is that of
    an agent that is gone.
    """
    now = read_database_now()
    if (
        not Agent.objects.select_for_update(no_key=True).filter(pk=agent_id).exists()
    ):  # one after the other, also for a new bucket
        return wanted, 0.0
    row = RateLevel.objects.filter(agent_id=agent_id).first()
    bucket = Bucket(row.level, row.at.timestamp()) if row else Bucket(float(limit), now.timestamp())
    after, taken = bucket.take_calls(wanted, now.timestamp(), limit)
    if taken:
        values = {"level": after.level, "at": datetime.fromtimestamp(after.at, UTC)}
        RateLevel.objects.update_or_create(agent_id=agent_id, defaults=values)
    return taken, 0.0 if taken else after.wait(now.timestamp(), limit)


def give_back(*, agent_id: int, limit: int, calls: int) -> None:
    """A process that ends did not use them."""
    with transaction.atomic():
        row = RateLevel.objects.select_for_update().filter(agent_id=agent_id).first()
        if row is not None:
            RateLevel.objects.filter(pk=row.pk).update(level=min(float(limit), row.level + calls))
