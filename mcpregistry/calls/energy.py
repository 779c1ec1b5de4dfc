"""The energy of calls: set aside before a call goes out, charged when it has ended. Only for agents
that have a pool.

Calls of servers' tools cost by their time. A call that an expert tool answers costs by what its run
does.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.catalog import Catalogue, DownstreamTools
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec
from mcpregistry.services.energy import estimates, reservations
from mcpregistry.services.energy.estimates import Work
from mcpregistry.services.energy.reservations import Act, Shortage

log = structlog.get_logger(__name__)

_SERVERS = DownstreamTools().kind
# seconds at most and at least: others may have cost less than was set aside for them
_LOOK_AGAIN = 2.0, 0.2


class InsufficientEnergyError(SlipsnisseError):
    """The agent's pool has not enough for the call, which was not sent."""

    code = "INSUFFICIENT_ENERGY"


class NotReservedError(SlipsnisseError):
    """The database did not take the reservation, so the call was not sent."""

    code = "NOT_RECORDED"


class GroupedRequests:
    """Asks the database by one commit for all that calls of a pool want at this moment, while
    others go on asking.

    Each would wait for the commits of the others otherwise. Who asks alone waits for nobody.
    """

    def __init__(self) -> None:
        self._wanted: dict[int, list[tuple[Act, asyncio.Future[Any]]]] = {}
        self._asking: set[asyncio.Task[None]] = set()  # not to be cancelled with whoever came first

    async def ask(self, pool: int, act: Act) -> Any:
        """What ``act`` returns, from a database thread. Raises what it raises."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if (others := self._wanted.get(pool)) is not None:
            others.append((act, answer))
        else:
            self._wanted[pool] = [(act, answer)]
            task = asyncio.ensure_future(self._ask_database(pool))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        return await answer

    async def _ask_database(self, pool: int) -> None:
        try:
            while wanted := self._wanted[pool]:
                self._wanted[pool] = []
                try:
                    said = await db_call(
                        reservations.run_in_one_transaction, [act for act, _ in wanted]
                    )
                except Exception as error:  # noqa: BLE001 - whoever asked gets it
                    said = [error] * len(wanted)
                for (_, answer), each in zip(wanted, said, strict=True):
                    if answer.done():  # its caller has left
                        continue
                    answer.set_exception(each) if isinstance(
                        each, Exception
                    ) else answer.set_result(each)
        finally:  # nothing is left, unless the process ends
            del self._wanted[pool]


class Energy:
    """The energy of the calls of one pipeline."""

    def __init__(self) -> None:
        self._together = GroupedRequests()

    async def reserve(self, call: Call) -> None:
        """Set aside what the call is estimated to cost, waiting for it where its pool allows that.

        Raises InsufficientEnergy with the time until there is enough, and NotReserved.
        """
        pool = _find_pool(call)
        if pool is None:
            return
        began = time.monotonic()
        waited = 0.0
        while (short := await self._try_reserve(call, pool, waited)) is not None:
            left = began + short.wait - time.monotonic()
            if left <= 0 or short.soonest > left:
                raise _make_refusal(short)
            most, least = _LOOK_AGAIN
            await asyncio.sleep(min(max(min(short.seconds, most), least), left))
            waited = time.monotonic() - began

    async def settle(self, call: Call) -> None:
        """Charge the call that has ended. If the database does not take it now, the clock does it
        from the record."""
        pool = _find_pool(call)
        seen = call.request.catalogue
        if pool is None or (
            not call.fence and find_reported_pool(seen.endpoint, seen.agent) is not None
        ):
            # ``add_cost`` charges it, with what it reads; only approved calls may have nobody to be
            # told
            return
        try:
            await self._together.ask(pool, partial(reservations.settle, call_id=call.id))
        except Exception:  # the call has ended, and that is told whatever fails here
            log.exception("energy.not_settled", call=call.id)

    async def add_cost(self, call: Call, outcome: CallOutcome) -> CallOutcome:
        """With what the call has cost, by the books, where its endpoint tells that and its agent
        has a pool."""
        catalogue = call.request.catalogue
        pool = find_reported_pool(catalogue.endpoint, catalogue.agent)
        if pool is None or outcome.state not in TERMINAL or outcome.late:
            return outcome
        try:
            look = partial(reservations.load_charge, call_id=outcome.invocation_id, pool_id=pool)
            return replace(outcome, energy=await self._together.ask(pool, look))
        except Exception:  # nothing is said rather than something else than will be recorded
            log.exception("energy.cost_not_read", call=call.id)
            return outcome

    async def _try_reserve(self, call: Call, pool: int, waited: float) -> Shortage | None:
        agent = call.request.catalogue.agent.slug
        work = Work(call.entry.offer.tool, len(call.arguments_json.encode()))
        ask = partial(
            reservations.reserve,
            pool_id=pool,
            call_id=call.id,
            agent=agent,
            work=work,
            waited=waited,
        )
        try:
            short: Shortage | None = await self._together.ask(pool, ask)
        except Exception as error:  # whatever it was, nothing was sent, and the record shall say so
            log.exception("energy.not_reserved", call=call.id)
            raise NotReservedError(
                "The call was not made: its energy could not be reserved in the energy pool.",
                remedy=error_texts.ASK_OPERATOR,
            ) from error
        return short


def find_reported_pool(endpoint: EndpointSpec | None, agent: AgentSpec | None) -> int | None:
    """The key of the pool of which results there tell the agent; None: none do, or it has none."""
    return agent.energy_pool if endpoint and agent and endpoint.tell_energy else None


async def estimate_costs(catalogue: Catalogue) -> dict[int, float]:
    """Units that calls of the tools will cost the agent, by the tools' keys: of servers' tools,
    which alone are charged by their calls. Empty where the database does not say.
    """
    served = [
        entry.offer.tool for entry in catalogue.entries.values() if entry.offer.kind == _SERVERS
    ]
    try:
        return await db_call(estimates.estimate_specs, served, catalogue.agent.energy_pool)
    except Exception:
        log.exception("energy.not_estimated", agent=catalogue.agent.slug)
        return {}


def _find_pool(call: Call) -> int | None:
    served = call.entry.offer.kind == _SERVERS
    return call.request.catalogue.agent.energy_pool if served else None


def _make_refusal(short: Shortage) -> InsufficientEnergyError:
    said = (
        f"The call is estimated to cost {short.needed:.1f} units of energy, "
        f"but only {short.available:.1f} are left in the pool '{short.pool}'."
    )
    return InsufficientEnergyError(said, remedy=short.remedy)
