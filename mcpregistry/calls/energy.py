"""The energy of calls: set aside before a call goes out, charged when it has ended. Only for agents that have a pool.

Calls of servers' tools cost by their time. A call that an expert tool answers costs by what its run does.
"""

from __future__ import annotations

import asyncio
import math
import time

import structlog
from django.db import DatabaseError

from mcpregistry.calls.call import Call
from mcpregistry.calls.catalog import DownstreamTools
from mcpregistry.db import db_call
from mcpregistry.domain.energy import estimate
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.services.energy import reservations
from mcpregistry.services.energy.reservations import Shortage

log = structlog.get_logger(__name__)

_SERVERS = DownstreamTools().kind
_LOOK_AGAIN = 2.0  # seconds: others may have cost less than was set aside for them


class InsufficientEnergy(SlipsnisseError):
    """The agent's pool has not enough for the call, which was not sent."""

    code = "INSUFFICIENT_ENERGY"


class NotReserved(SlipsnisseError):
    """The database did not take the reservation, so the call was not sent."""

    code = "NOT_RECORDED"


async def reserve(call: Call) -> None:
    """Set aside what the call is estimated to cost, waiting for it where its pool allows that.

    Raises InsufficientEnergy with the time until there is enough, and NotReserved.
    """
    pool = _pool(call)
    if pool is None:
        return
    until = time.monotonic()
    while (short := await _tried(call, pool)) is not None:
        left = until + short.wait - time.monotonic()
        if left <= 0 or short.seconds > left:
            raise _refusal(call, short)
        await asyncio.sleep(min(short.seconds, _LOOK_AGAIN))


async def settle(call: Call) -> None:
    """Charge the call that has ended. If the database does not take it now, the clock does it from the record."""
    if _pool(call) is None:
        return
    try:
        await db_call(reservations.settle, call_id=call.id)
    except DatabaseError:
        log.exception("energy.not_settled", call=call.id)


def _pool(call: Call) -> int | None:
    served = call.entry.offer.kind == _SERVERS
    return call.request.catalogue.agent.energy_pool if served else None


async def _tried(call: Call, pool: int) -> Shortage | None:
    try:
        return await db_call(
            reservations.reserve,
            pool_id=pool, call_id=call.id, agent=call.request.catalogue.agent.slug, amount=_estimate(call),
        )  # fmt: skip
    except DatabaseError as error:
        log.exception("energy.not_reserved", call=call.id)
        raise NotReserved(
            "The call was not made: its energy could not be set aside.",
            remedy="The database does not take it, the log says why. Ask the operator.",
        ) from error


def _estimate(call: Call) -> float:
    tool = call.entry.offer.tool
    return estimate(tool.data, operators=tool.energy, destructive=tool.destructive, open_world=tool.open_world)


def _refusal(call: Call, short: Shortage) -> InsufficientEnergy:
    said = f"The call is estimated to cost {short.needed:.1f} units of energy; {short.available:.1f} are left in '{short.pool}'."
    if math.isinf(short.seconds):
        return InsufficientEnergy(said, remedy="It will not be enough by itself: ask the operator.")
    return InsufficientEnergy(said, remedy=f"Call again in {math.ceil(short.seconds)} seconds.")
