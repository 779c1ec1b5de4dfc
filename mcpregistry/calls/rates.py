"""Calls per minute of an agent, over all processes: each holds a small allotment of the one bucket
in the database.

Most calls spend of what this process holds, and ask nobody. When that is used up the next allotment
is fetched beside the call; only a call that finds nothing held waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field

import structlog

from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.rates import Purse, compute_allotment
from mcpregistry.domain.snapshot_specs import AgentSpec
from mcpregistry.services.budgets import rates

log = structlog.get_logger(__name__)


class RateLimitedError(SlipsnisseError):
    """The agent has made too many calls; nothing was sent."""

    code = "RATE_LIMITED"


class NotCountedError(SlipsnisseError):
    """The database did not take it, so the call was not sent."""

    code = "NOT_RECORDED"


@dataclass(slots=True)
class _RateLease:
    purse: Purse = field(default_factory=Purse)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    ahead: asyncio.Task[None] | None = None
    limit: int = 0


class CallRates:
    """What this process holds of each agent's calls per minute; for one event loop."""

    def __init__(self) -> None:
        self._held: dict[int, _RateLease] = defaultdict(_RateLease)

    async def take(self, agent: AgentSpec) -> None:
        """Count one call. Raises RateLimited with the seconds to wait, and NotCounted."""
        limit = agent.calls_per_minute
        if limit is None:
            return
        if limit == 0:
            raise RateLimitedError(
                f"The agent '{agent.slug}' cannot make calls: its rate limit is 0.",
                remedy="Ask the operator for a higher rate limit.",
            )
        held = self._held[agent.id]
        held.limit = limit
        if not held.purse.spend(time.monotonic(), limit):
            await self._fetch_and_spend(agent, held, limit)
        if held.purse.left == 0 and limit > 1 and held.ahead is None:
            held.ahead = asyncio.ensure_future(self._fetch_ahead(agent, held, limit))

    async def _fetch_and_spend(self, agent: AgentSpec, held: _RateLease, limit: int) -> None:
        """Nothing is held: what there is is fetched, once for all that wait here."""
        while not held.purse.spend(time.monotonic(), limit):
            async with held.asking:
                if held.purse.left:
                    continue
                self._refuse_while_empty(agent, held, limit)
                try:
                    await self._fetch(agent, held, limit)
                except Exception as error:  # whatever it was, the call shall end with a record
                    log.exception("rates.not_counted", agent=agent.slug)
                    raise NotCountedError(
                        "The call was not made: it could not be counted against the rate limit.",
                        remedy=error_texts.ASK_OPERATOR,
                    ) from error
                self._refuse_while_empty(agent, held, limit)

    @staticmethod
    def _refuse_while_empty(agent: AgentSpec, held: _RateLease, limit: int) -> None:
        left = held.purse.empty_until - time.monotonic()
        if left > 0:
            said = (
                f"The agent '{agent.slug}' has reached its rate limit (calls per minute: {limit:,}), "
                "counted over all endpoints and processes."
            )
            raise RateLimitedError(said, remedy=f"Try again in {max(1.0, left):.0f} s.")

    async def _fetch_ahead(self, agent: AgentSpec, held: _RateLease, limit: int) -> None:
        """So that the next call finds something; what goes wrong meets that one."""
        try:
            async with held.asking:
                if not held.purse.left and held.purse.empty_until <= time.monotonic():
                    await self._fetch(agent, held, limit)
        except Exception:
            log.exception("rates.not_fetched", agent=agent.slug)
        finally:
            held.ahead = None

    @staticmethod
    async def _fetch(agent: AgentSpec, held: _RateLease, limit: int) -> None:
        calls, wait = await db_call(
            rates.lease_calls, agent_id=agent.id, limit=limit, wanted=compute_allotment(limit)
        )
        held.purse.record_lease(calls, time.monotonic(), wait)

    async def close(self) -> None:
        """Give back what was not used. What the database does not take now, it has again within a
        minute by itself."""
        ahead = [each.ahead for each in self._held.values() if each.ahead is not None]
        await asyncio.gather(*ahead, return_exceptions=True)
        held = [(agent, each) for agent, each in self._held.items() if each.purse.left]
        self._held.clear()
        for agent, each in held:
            try:
                await db_call(
                    rates.give_back, agent_id=agent, limit=each.limit, calls=each.purse.left
                )
            except Exception:  # the others' are given back, and the process ends, all the same
                log.exception("rates.not_returned")
