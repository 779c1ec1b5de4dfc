"""Whether the background sub-agent may work: it is switched on, and the cycles of whoever
supervises a request go on.

While it may not, what is queued stays queued, and what is under way stands still after the step
that is done.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Q, QuerySet

from mcpregistry.db import read_database_now
from mcpregistry.models import Configuration
from mcpregistry.services.configuration.dispatch import send_task
from mcpregistry.services.configuration.site import save_configuration
from subagents.domain.maintenance import ControlRequest
from subagents.models import EffortAgent, MaintenanceRequest
from subagents.models.maintenance import MaintenanceRequestQuerySet

OFF = "The sub-agent is disabled."


@transaction.atomic
def switch(*, on: bool, actor: str) -> bool:
    """Switch the sub-agent on or off for the whole site. Returns whether that was a change."""
    configuration = Configuration.load_for_update()
    if configuration.sub_agent_enabled == on:
        return False
    configuration.sub_agent_enabled = on
    save_configuration(configuration=configuration, actor=actor)
    if MaintenanceRequest.objects.open().exists():
        transaction.on_commit(lambda: send_task("subagents.tasks.work_maintenance"))
    return True


def filter_workable(rows: MaintenanceRequestQuerySet, now: datetime) -> MaintenanceRequestQuerySet:
    """Those of ``rows`` that may be worked on; what shall be cancelled may always be ended."""
    ending = Q(wish=ControlRequest.CANCEL)
    if _explain_no_work(now):
        return rows.filter(ending)
    led = Q(supervisor="") | Q(
        supervisor__in=_slugs(EffortAgent.objects.exclude(_build_stopped_filter(now)))
    )
    return rows.filter(
        ending | led & ~Q(agent__in=_slugs(EffortAgent.objects.filter(_build_stopped_filter(now))))
    )


def explain_pause(request: MaintenanceRequest) -> str:
    """Why nobody may work on this request now, in words for whoever asked; empty: somebody may."""
    now = read_database_now()
    if request.finished_at is not None or request.wish == ControlRequest.CANCEL:
        return ""
    if nothing := _explain_no_work(now):
        return nothing
    agents = EffortAgent.objects.all()
    if (
        request.supervisor
        and not agents.exclude(_build_stopped_filter(now))
        .filter(expert__agent__slug=request.supervisor)
        .exists()
    ):
        return f'The request is paused, because its supervisor, the hosted agent "{request.supervisor}", does not run. See Expert tools, Hosted agents.'
    if (
        request.agent
        and agents.filter(_build_stopped_filter(now), expert__agent__slug=request.agent).exists()
    ):
        return "The request is paused, because the hosted agent that made it does not run. See Expert tools, Hosted agents."
    return ""


def describe_status(request: MaintenanceRequest) -> str:
    """What is being done of it, or why nothing is."""
    return (request.message if request.substate else explain_pause(request)) or request.message


def _explain_no_work(now: datetime) -> str:
    """Why no request at all may be worked on."""
    if not Configuration.load().sub_agent_enabled:
        return OFF
    out = _slugs(EffortAgent.objects.filter(_build_stopped_filter(now), supervises=True)).first()
    return (
        f'The sub-agent is paused, because its supervisor, the hosted agent "{out}", does not run. See Expert tools, Hosted agents.'
        if out
        else ""
    )


def _build_stopped_filter(now: datetime) -> Q:
    """No worker drives the agent's cycles, or none has said for too long that it does."""
    return Q(lease_until=None) | Q(lease_until__lt=now)


def _slugs(rows: QuerySet[EffortAgent]) -> QuerySet[EffortAgent, str]:
    return rows.values_list("expert__agent__slug", flat=True)
