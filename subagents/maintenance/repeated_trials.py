"""Trials that repeat: by the clock, as often as people have set for a server, and when it calls
itself another version."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from mcpregistry.models import Server
from subagents.domain.maintenance import Kind, Priority
from subagents.maintenance import queue
from subagents.models import MaintenanceRequest, TrialReport

# not sooner again, should it call itself otherwise at each start
AFTER_A_VERSION = timedelta(hours=1)


def ask_due(now: datetime) -> list[str]:
    """Ask for the trials that are due. Returns the servers' short names; whoever else asks at the
    same time gets others."""
    wanted = Server.objects.active().filter(trial_hours__gt=0).order_by("pk")
    return [slug for key, slug in wanted.values_list("pk", "slug") if _ask(key, now)]


@transaction.atomic
def _ask(server_id: int, now: datetime) -> bool:
    server = (
        Server.objects.select_for_update(no_key=True)
        .filter(pk=server_id, trial_hours__gt=0)
        .first()
    )
    if server is None or not _is_due(server, now):
        return False
    queue.ask(
        kind=Kind.TRY, params={"server": server.slug}, actor=queue.CLOCK, priority=Priority.LOW
    )
    return True


def _is_due(server: Server, now: datetime) -> bool:
    asked = MaintenanceRequest.objects.filter(kind=Kind.TRY, server_slug=server.slug)
    if asked.open().exists():
        return False
    newest = asked.order_by("-created_at").values_list("created_at", flat=True).first()
    if newest is None:
        return True
    last = TrialReport.objects.filter(server=server).first()
    says = str(server.server_info.get("version", ""))[:200]
    other = last is not None and bool(says and last.version) and says != last.version
    return now - newest >= (AFTER_A_VERSION if other else timedelta(hours=server.trial_hours))
