"""Energy pools: what goes in and what comes out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.access import Long
from mcpregistry.api.schemas.basics import Input, Slug
from mcpregistry.domain.energy import OnEmpty
from mcpregistry.models import EnergyEntry, EnergyPool
from mcpregistry.models.energy import LowPolicy
from mcpregistry.services.energy import pools

Units = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class PoolChange(Input):
    """What may change of a pool; every key may be left out. What it holds is kept."""

    slug: Slug | None = None
    description: Long | None = None
    capacity: Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)] | None = None
    regeneration: Annotated[Units, Field(description="Units per second that come back.")] | None = None
    critical: Annotated[Units, Field(description="Below it the background sub-agent's work is cut back.")] | None = None
    resume: (
        Annotated[Units, Field(description="From it on, work that was paused for lack of energy goes on.")] | None
    ) = None
    low_policy: Annotated[LowPolicy, Field(strict=False)] | None = None
    on_empty: Annotated[OnEmpty, Field(strict=False, description="What becomes of calls without enough.")] | None = None
    max_wait: Annotated[float, Field(ge=0, le=45, description="Seconds that a call waits at most.")] | None = None
    per_call: Units | None = None
    per_second: Units | None = None
    per_kilobyte: Units | None = None
    per_1000_input: Annotated[Units, Field(description="Tokens that a model of an expert tool reads.")] | None = None
    per_1000_cached: Annotated[Units, Field(description="Of these, what its provider had in its cache.")] | None = None
    per_1000_output: Units | None = None


class PoolNew(PoolChange):
    """A new pool; it is full at first. Agents name it in ``energy_pool``."""

    slug: Slug


class PoolOut(Schema):
    """A pool and how it stands now."""

    slug: str
    description: str
    level: float = Field(description="Units now.")
    state: str = Field(description="ok, low, critical or empty.")
    reserved: float = Field(description="Units that calls which are out are estimated to cost.")
    seconds_to_full: float | None = Field(description="Null: it does not refill.")
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
    agents: list[str] = Field(description="Who draws on it; an agent is shown itself alone.")


class EnergyEntryOut(Schema):
    """One charge or gift; ``amount`` below zero was given."""

    id: int
    kind: str
    amount: float
    before: float
    after: float
    overdraft: float = Field(description="Units that were not there to be taken.")
    agent: str
    reference: str = Field(
        description="The id of the call; of the run or the maintenance request before a colon, then which charge of it."
    )
    at: datetime


class GrantEnergy(Input):
    """Units that a person gives."""

    amount: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


def pool_out(row: EnergyPool, *, to: str = "") -> PoolOut:
    """The pool as its answer; ``row.agents`` should be prefetched. ``to``: the agent that asks, if it is one."""
    stand = pools.standing(row)
    return PoolOut(
        slug=row.slug, description=row.description, level=stand.level, state=stand.state.value, reserved=stand.reserved,
        seconds_to_full=stand.seconds_to_full, capacity=row.capacity, regeneration=row.regeneration,
        critical=row.critical, resume=row.resume, low_policy=row.low_policy, on_empty=row.on_empty,
        max_wait=row.max_wait, per_call=row.per_call, per_second=row.per_second, per_kilobyte=row.per_kilobyte,
        per_1000_input=row.per_1000_input, per_1000_cached=row.per_1000_cached, per_1000_output=row.per_1000_output,
        agents=sorted(agent.slug for agent in row.agents.all() if to in ("", agent.slug)),
    )  # fmt: skip


def entry_out(row: EnergyEntry) -> EnergyEntryOut:
    """The entry as its answer."""
    return EnergyEntryOut(
        id=row.pk, kind=row.kind, amount=row.amount, before=row.before, after=row.after, overdraft=row.overdraft,
        agent=row.agent_slug, reference=row.reference, at=row.at,
    )  # fmt: skip
