"""Whether the books of energy agree with the records: everything is charged once, and nobody for
time in which nothing ran."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Sum

from mcpregistry.domain.energy import OnEmpty
from mcpregistry.domain.lifecycle import SUPPOSED, InvocationState
from mcpregistry.models import Agent, EnergyEntry, EnergyPool, Invocation
from mcpregistry.services.energy import pools
from subagents import energy
from subagents.models import MaintenanceRequest, Turn
from tests.calls.conftest import ACTOR

PER_SECOND = 2.0  # units of energy that a call costs, the default of a pool
LEASE_STEP = 2.5  # seconds between two signs of life
CAPACITY = 100_000.0
_CLOSE = 1e-5  # sums of floating point
Kind = EnergyEntry.Kind


def give_pool(*agents: str, **fields: Any) -> EnergyPool:
    """A pool of these agents, which does not refill if no field says so."""
    facts: dict[str, Any] = {
        "slug": "shared",
        "capacity": CAPACITY,
        "regeneration": 0.0,
        "per_second": PER_SECOND,
    }
    pool = pools.save_pool(pool=EnergyPool(**facts | fields), actor=ACTOR)
    Agent.objects.filter(slug__in=agents).update(energy_pool=pool)
    return pool


def least_and_most(lived: float) -> tuple[float, float]:
    """What a call may cost whose process died after it had worked for so many seconds."""
    return PER_SECOND * max(0.0, lived - LEASE_STEP - 1), PER_SECOND * lived + 0.1


@dataclass(frozen=True)
class Known:
    """What is known of the processes and the server.

    ``dead``: when processes ended, by their ids. ``paused``: processes that were stopped for a
    while, whose signs of life ended earlier. ``received``: texts of the calls that the server has
    received.
    """

    dead: Mapping[int, float]
    paused: Container[int]
    received: Container[str]


def wrong_books(known: Known) -> list[str]:
    """What is wrong in the books."""
    energy.charge_used()
    return [each for pool in EnergyPool.objects.all() for each in _of_pool(pool, known)]


def _of_pool(pool: EnergyPool, known: Known) -> Iterator[str]:
    entries = list(EnergyEntry.objects.filter(pool=pool))
    paid = sum(entry.amount for entry in entries)
    if (
        not pool.regeneration and abs(pool.capacity - paid - pool.level) > _CLOSE
    ):  # else the invariants compare the entries
        yield f"the level of {pool} is {pool.level}, {paid} were charged"
    agents = list(pool.agents.values_list("slug", flat=True))
    charges: dict[str, list[EnergyEntry]] = {}
    for entry in entries:
        if entry.kind in (Kind.CALL, Kind.CORRECTION):
            charges.setdefault(entry.reference, []).append(entry)
    calls = {call.pk: call for call in Invocation.objects.filter(agent_slug__in=agents)}
    yield from (f"call {key} was charged, and has no record" for key in set(charges) - set(calls))
    for key, call in calls.items():
        yield from _of_call(pool, call, charges.get(key, []), known)
    yield from _of_turns(pool, entries, agents)
    yield from _of_work(entries, agents)


def _of_call(
    pool: EnergyPool, call: Invocation, charges: Sequence[EnergyEntry], known: Known
) -> Iterator[str]:
    cost = sum(charge.amount for charge in charges)
    if (
        call.dispatched_at is None
        or call.finished_at is None
        or call.state == InvocationState.NOT_SENT
        or not call.server_slug
    ):
        if cost:
            yield f"{call} was never sent, and cost {cost}"
        return
    seconds = (call.finished_at - call.dispatched_at).total_seconds()
    pid = int(call.writer.split(":")[2])
    if call.error_code != SUPPOSED:
        worked = max((charge.seconds or 0.0 for charge in charges), default=-1.0)
        waited = seconds - worked
        if abs(cost - PER_SECOND * worked) > _CLOSE or not (
            abs(waited) < _CLOSE or 0 < waited < pool.max_wait + 1
        ):
            yield f"{call} took {seconds} s and cost {cost} for {worked} s"
        if abs(waited) > _CLOSE and pool.on_empty != OnEmpty.WAIT:
            yield f"{call} took {seconds} s and was charged for {worked} s"
        return
    if not charges and json.loads(call.arguments).get("text") not in known.received:
        return  # its process died while it waited for a lock of the pool, before it was sent
    if pid in known.dead:
        seconds = min(seconds, max(0.0, known.dead[pid] - call.dispatched_at.timestamp()))
    least, most = least_and_most(seconds)
    may_have_waited = pid in known.paused or pool.on_empty == OnEmpty.WAIT
    if cost > most or (cost < least and pid in known.dead and not may_have_waited):
        yield f"{call} of a process that died after {seconds} s cost {cost}"


def _of_turns(pool: EnergyPool, entries: list[EnergyEntry], agents: list[str]) -> Iterator[str]:
    charged = {entry.reference: entry.amount for entry in entries if entry.kind == Kind.TURN}
    for turn in Turn.objects.filter(run__version__expert__agent__slug__in=agents):
        right = pool.rates.price_turn(
            input=turn.input_tokens, cached=turn.cached_tokens, output=turn.output_tokens
        )
        found = charged.pop(f"{turn.run_id}:{turn.number}", 0.0)
        if abs(found - right) > _CLOSE:
            yield f"{turn} cost {found} instead of {right}"
    yield from (f"turn {reference} was charged, and has no record" for reference in charged)


def _of_work(entries: list[EnergyEntry], agents: list[str]) -> Iterator[str]:
    charged = sum(entry.amount for entry in entries if entry.kind == Kind.MAINTENANCE)
    rows: Any = MaintenanceRequest.objects.filter(agent__in=agents)
    found = rows.aggregate(
        used=Sum("energy_total", default=0.0), left=Sum("energy_unreported", default=0.0)
    )
    if abs(found["used"] - found["left"] - charged) > _CLOSE or abs(found["left"]) > _CLOSE:
        yield f"the sub-agent used {found['used']}, {charged} were charged, {found['left']} were not yet"
