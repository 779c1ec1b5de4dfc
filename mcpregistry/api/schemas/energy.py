"""Energy pools: what goes in and what comes out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.access import Long
from mcpregistry.api.schemas.basics import Slug, StrictInput
from mcpregistry.domain.energy import OnEmpty
from mcpregistry.models import EnergyEntry, EnergyPool
from mcpregistry.models.energy import LowPolicy
from mcpregistry.services.energy import pools

Units = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class PoolChange(StrictInput):
    """Changes of a pool. You can leave out any key. The level is kept."""

    slug: Slug | None = None
    description: Long | None = None
    capacity: Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)] | None = None
    regeneration: (
        Annotated[Units, Field(description="Units that are refilled per second.")] | None
    ) = None
    critical: (
        Annotated[
            Units,
            Field(description="Below this level, the work of the background sub-agent is reduced."),
        ]
        | None
    ) = None
    resume: (
        Annotated[
            Units,
            Field(
                description="At this level, work that was paused because of low energy continues."
            ),
        ]
        | None
    ) = None
    low_policy: Annotated[LowPolicy, Field(strict=False)] | None = None
    on_empty: (
        Annotated[
            OnEmpty, Field(strict=False, description="What happens to calls without enough energy.")
        ]
        | None
    ) = None
    max_wait: (
        Annotated[
            float,
            Field(
                ge=0, le=45, description="Maximum number of seconds that a call waits for energy."
            ),
        ]
        | None
    ) = None
    per_call: Units | None = None
    per_second: Units | None = None
    per_kilobyte: Units | None = None
    per_1000_input: (
        Annotated[
            Units, Field(description="Units for 1,000 input tokens of a model of an expert tool.")
        ]
        | None
    ) = None
    per_1000_cached: (
        Annotated[
            Units,
            Field(
                description="Units for 1,000 input tokens that the provider read from its cache."
            ),
        ]
        | None
    ) = None
    per_1000_output: Units | None = None


class PoolNew(PoolChange):
    """A new pool, which is full at first. Agents refer to it in ``energy_pool``."""

    slug: Slug


class PoolOut(Schema):
    """A pool and its current state."""

    slug: str
    description: str
    level: float = Field(description="Current level in units.")
    state: str = Field(description="State of the pool: ok, low, critical or empty.")
    reserved: float = Field(description="Estimated units of running calls.")
    seconds_to_full: float | None = Field(
        description="Seconds until the pool is full. Null if it does not refill."
    )
    capacity: float
    regeneration: float
    critical: float
    resume: float
    low_policy: str
    on_empty: str
    max_wait: float
    per_call: float
    per_second: float
    per_kilobyte: float
    per_1000_input: float
    per_1000_cached: float
    per_1000_output: float
    agents: list[str] = Field(description="Agents that use the pool. An agent sees only itself.")


class EnergyEntryOut(Schema):
    """One charge or refill. ``amount`` is negative if units were added."""

    id: int
    kind: str
    amount: float
    before: float
    after: float
    overdraft: float = Field(
        description="Units that were charged although the pool did not have them."
    )
    agent: str
    reference: str = Field(
        description="Id of the call. For a run or a maintenance request, its id and the number of the charge, "
        "separated by a colon."
    )
    at: datetime


class GrantEnergy(StrictInput):
    """Units that a user adds."""

    amount: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


def pool_out(row: EnergyPool, *, to: str = "") -> PoolOut:
    """The pool as its answer; ``row.agents`` should be prefetched. ``to``: the agent that asks, if
    it is one."""
    stand = pools.load_pool_standing(row)
    return PoolOut(
        slug=row.slug,
        description=row.description,
        level=stand.level,
        state=stand.state.value,
        reserved=stand.reserved,
        seconds_to_full=stand.seconds_to_full,
        capacity=row.capacity,
        regeneration=row.regeneration,
        critical=row.critical,
        resume=row.resume,
        low_policy=row.low_policy,
        on_empty=row.on_empty,
        max_wait=row.max_wait,
        per_call=row.per_call,
        per_second=row.per_second,
        per_kilobyte=row.per_kilobyte,
        per_1000_input=row.per_1000_input,
        per_1000_cached=row.per_1000_cached,
        per_1000_output=row.per_1000_output,
        agents=sorted(agent.slug for agent in row.agents.all() if to in ("", agent.slug)),
    )


def entry_out(row: EnergyEntry) -> EnergyEntryOut:
    """The entry as its answer."""
    return EnergyEntryOut(
        id=row.pk,
        kind=row.kind,
        amount=row.amount,
        before=row.before,
        after=row.after,
        overdraft=row.overdraft,
        agent=row.agent_slug,
        reference=row.reference,
        at=row.at,
    )
