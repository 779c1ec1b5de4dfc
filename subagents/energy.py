"""The owners of the background sub-agent's effort: what it has used is taken from the pools of the
agents that asked.

The sub-agent counts what it uses and knows no pool (an import contract holds that). Here its count
is taken, and where a pool runs low its work is finished, paused or cancelled; what was paused for
that goes on when enough is back.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from mcpregistry.db import read_database_now
from mcpregistry.domain.energy import EnergyLevel
from mcpregistry.domain.errors import Conflict
from mcpregistry.models import Agent, EnergyEntry, EnergyPool, EnergyReservation
from mcpregistry.models.energy import LowPolicy
from mcpregistry.services.energy import pools
from subagents.domain.maintenance import ControlRequest, Priority, State
from subagents.maintenance import queue
from subagents.models import MaintenanceRequest, Run

PAUSED = "Paused, because there is not enough energy. The request continues when there is enough."
_CANCELLED = "there was not enough energy"
# per cent, where the pool decides by how far the work is
_FINISHED_FROM = 80
_CANCELLED_BELOW = 50


def regulate() -> None:
    """Every two seconds, by the clock: charge what was used, cut back where that is too much, go on
    where it is back."""
    charge_used()
    _forget_turns()
    for pool in _query_working_pools():
        decide(pool)


def decide(pool: EnergyPool) -> list[str]:
    """Cut back the sub-agent's work for this pool's agents, or let it go on. Returns what was done,
    a phrase each.

    ``pool``: of a query ``with_reserved``.
    """
    stand = pools.load_pool_standing(pool)
    if stand.state in (EnergyLevel.CRITICAL, EnergyLevel.EMPTY):
        return _cut_back(pool, _open_of(pool))
    if stand.level >= pool.resume:
        return _go_on(pool, _open_of(pool).filter(wish=ControlRequest.PAUSE, wish_reason=PAUSED))
    return []


def may_begin(request_id: str) -> bool:
    """Whether a worker may begin a request now, for which its agent pays. If its pool is too low,
    the request is paused."""
    request = (
        MaintenanceRequest.objects.open()
        .filter(pk=request_id, state=State.QUEUED)
        .exclude(agent="")
        .first()
    )
    if request is None or request.wish:
        return True
    pool_id = Agent.objects.filter(slug=request.agent).values_list("energy_pool", flat=True).first()
    if pool_id is None:
        return True
    charge(request.agent, pool_id)
    decide(EnergyPool.objects.with_reserved().get(pk=pool_id))
    request.refresh_from_db(fields=["wish"])
    return not request.wish


def _forget_turns() -> None:
    """Turns of runs that have ended without those who write them: of an agent that had another pool
    by then, or none."""
    open_runs = Run.objects.open().filter(pk=OuterRef("call_id"))
    EnergyReservation.objects.filter(~Exists(open_runs), kind=EnergyReservation.Kind.TURN).delete()


def charge_used() -> float:
    """Take what the sub-agent has used for agents with a pool since the last time. Returns how much
    that was."""
    asked = (
        MaintenanceRequest.objects.filter(energy_unreported__gt=0).exclude(agent="").values("agent")
    )
    owners = (
        Agent.objects.exclude(energy_pool=None)
        .filter(slug__in=asked)
        .values_list("slug", "energy_pool")
    )
    return sum(charge(slug, pool) for slug, pool in owners if pool is not None)


@transaction.atomic
def charge(agent: str, pool_id: int) -> float:
    """Take what the sub-agent has used for this agent since the last time from its pool. Returns
    how much that was.

    Count and entries in one transaction: a process that dies here neither loses a unit nor takes it
    twice."""
    pool = pools.lock_pool(pool_id)
    used = queue.take_energy(MaintenanceRequest.objects.filter(agent=agent))
    now = read_database_now()
    for request, units in used.items():
        # With the time, since one request is charged many times, and no two entries of a kind share
        # a reference.
        reference = f"{request}:{now:%Y%m%dT%H%M%S%f}"
        pools.charge_pool(
            pool, EnergyEntry.Kind.MAINTENANCE, units, now=now, agent=agent, reference=reference
        )
    return sum(used.values())


def exclude_pooled(requests: QuerySet[MaintenanceRequest]) -> QuerySet[MaintenanceRequest]:
    """Those whose count nobody takes here: who could take it ahead of the pool would pay
    nothing."""
    return requests.exclude(agent__in=Agent.objects.exclude(energy_pool=None).values("slug"))


def _query_working_pools() -> QuerySet[EnergyPool]:
    """Pools of which an agent has asked for something that has not ended."""
    asked = MaintenanceRequest.objects.open().exclude(agent="").values("agent")
    return EnergyPool.objects.filter(agents__slug__in=asked).distinct().with_reserved()


def _open_of(pool: EnergyPool) -> QuerySet[MaintenanceRequest]:
    return (
        MaintenanceRequest.objects.open()
        .filter(agent__in=pool.agents.values("slug"))
        .order_by("created_at", "id")
    )


def _cut_back(pool: EnergyPool, requests: Iterable[MaintenanceRequest]) -> list[str]:
    did = []
    for request in requests:
        match wish_for(request, LowPolicy(pool.low_policy)):
            case ControlRequest.PAUSE:
                with suppress(Conflict):  # it has ended meanwhile
                    queue.pause(request_id=request.pk, actor=_actor(pool), reason=PAUSED)
                    did.append(f"paused {request}")
            case ControlRequest.CANCEL:
                queue.cancel(request_id=request.pk, actor=_actor(pool), reason=_CANCELLED)
                did.append(f"cancelled {request}")
    return did


def wish_for(request: MaintenanceRequest, policy: LowPolicy) -> ControlRequest:
    """What becomes of a request while the level is critical. One that nobody has begun waits,
    whatever the policy."""
    if request.wish:
        return ControlRequest.NONE
    if request.state == State.QUEUED:
        return ControlRequest.PAUSE
    if policy == LowPolicy.AUTO:
        if request.progress >= _FINISHED_FROM:
            return ControlRequest.NONE
        cancel = request.priority == Priority.LOW and request.progress < _CANCELLED_BELOW
        return ControlRequest.CANCEL if cancel else ControlRequest.PAUSE
    return {LowPolicy.PAUSE: ControlRequest.PAUSE, LowPolicy.CANCEL: ControlRequest.CANCEL}.get(
        policy, ControlRequest.NONE
    )


def _go_on(pool: EnergyPool, requests: Iterable[MaintenanceRequest]) -> list[str]:
    did = []
    for request in requests:
        with suppress(Conflict):  # it has ended meanwhile
            queue.resume(request_id=request.pk, actor=_actor(pool))
            did.append(f"resumed {request}")
    return did


def _actor(pool: EnergyPool) -> str:
    return f"energy:{pool.slug}"
