"""The table of who can call what, and what the access analyzer proposes, as REST answers them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import BaseModel, Field

from mcpregistry.api.schemas.basics import Input, Text
from mcpregistry.domain.policy.risk import risk_of
from mcpregistry.models import Agent, Grant, Tool
from mcpregistry.services.policy.analyzer import DAYS
from mcpregistry.services.policy.findings import Findings
from mcpregistry.services.policy.table import Table

RiskWord = Literal["low", "medium", "high"]


class AccessCell(BaseModel):  # no Schema: of thousands in an answer each would look for attributes of a record
    """What one agent may do with the tool."""

    agent: str
    standing: str = Field(
        description="allow, ask or deny; hidden: the agent does not see it; absent: no agent can use it now."
    )
    word: str = Field(description="The reason in a word.")
    why: str = Field(description="The reason in a sentence, with what to do.")
    lacks: list[str] = Field(
        description="Who needs a grant for the agent to see it: agent, endpoint. Empty: that is not it."
    )


class AccessRow(Schema):
    """One tool and the agents."""

    tool: str
    server: str
    risk: str
    agents: list[AccessCell]


class NarrowerGrant(Schema):
    """One grant that would take the place of the wider one."""

    tool: str | None
    server: str | None
    kind: str
    uri: str
    argument_pins: dict[str, Any]


class NarrowerOut(Schema):
    """What is proposed of a grant."""

    kind: str = Field(description="withdraw, tools, pins or uri")
    key: str = Field(description="Of exactly this proposal; send it to apply it.")
    says: str
    after: list[NarrowerGrant] = Field(description="What takes its place; empty: nothing.")
    calls: int = Field(
        description="Calls of what the grant is about that were replayed: all of the period, or the newest 2,000 of more."
    )
    complete: bool = Field(
        description="Whether these were all calls of the period. If not, a proposal of pins or uri is a guess: "
        "ask for this grant alone, by its number, to have all of them read. Applying it reads them in any case."
    )
    since: datetime
    stopped: int = Field(description="Of these calls, those that would not have been allowed.")
    unjudged: int = Field(
        description="Of these calls, those whose arguments are erased or too long to read, or whose tool is gone."
    )


class GrantProposalOut(Schema):
    """A grant, and what is proposed of it."""

    grant: int
    about: str
    as_of: datetime | None = Field(
        description="When it was analyzed. Null: it is new or was changed, and the clock will analyze it within the hour."
    )
    proposal: NarrowerOut | None


class Apply(Input):
    """``pins``: of a proposal to pin arguments those that shall be pinned; all if it is left out."""

    key: Annotated[Text, Field(min_length=1, max_length=64)]
    days: Annotated[int, Field(ge=1, le=365)] = DAYS
    pins: Annotated[list[Text], Field(max_length=100)] | None = None


class Applied(Schema):
    """How many grants there are in its place."""

    grants: int


def proposal_out(grant: Grant, findings: Findings) -> GrantProposalOut:
    """A grant with its proposal as the answer."""
    found, as_of = findings.proposals.get(grant.pk), findings.made.get(grant.pk)
    if found is None:
        return GrantProposalOut(grant=grant.pk, about=str(grant), as_of=as_of, proposal=None)
    after = [
        NarrowerGrant(
            tool=str(row.tool) if row.tool else None, server=row.server.slug if row.server else None, kind=row.kind,
            uri=row.uri, argument_pins=row.argument_pins,
        )
        for row in found.after
    ]  # fmt: skip
    shown = NarrowerOut(
        kind=found.kind, key=found.key, says=found.says, after=after, calls=found.looked.calls,
        complete=found.looked.all, since=found.looked.since, stopped=found.stops, unjudged=found.unjudged,
    )  # fmt: skip
    return GrantProposalOut(grant=grant.pk, about=str(grant), as_of=as_of, proposal=shown)


def row_out(tool: Tool, agents: Sequence[Agent], table: Table) -> AccessRow:
    """A row of the table as its answer."""
    cells = [
        AccessCell(agent=agent.slug, standing=cell.standing, word=cell.word, why=cell.why, lacks=list(cell.lacks))
        for agent, cell in zip(agents, table.row(tool, agents), strict=True)
    ]
    return AccessRow(tool=str(tool), server=tool.server.slug, risk=risk_of(tool).level, agents=cells)
