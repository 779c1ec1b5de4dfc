"""The table of who can call what, and what the access analyzer proposes, as REST answers them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import BaseModel, Field

from mcpregistry.api.schemas.basics import StrictInput, Text
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.models import Agent, Grant, Tool
from mcpregistry.services.policy.analyzer import DAYS
from mcpregistry.services.policy.findings import Findings
from mcpregistry.services.policy.table import AccessTable

RiskWord = Literal["low", "medium", "high"]


# no Schema: of thousands in an answer each would look for attributes of a record
class AccessCell(BaseModel):
    """What one agent can do with the tool."""

    agent: str
    standing: str = Field(
        description="allow, ask or deny; hidden if the agent does not see the tool; absent if no agent can use it now."
    )
    word: str = Field(description="The reason as a short code.")
    why: str = Field(description="The reason as a sentence, with what to do.")
    lacks: list[str] = Field(
        description="Who needs a grant so that the agent sees the tool: agent, endpoint. If empty, no grant is missing."
    )


class AccessRow(Schema):
    """One tool and what each agent can do with it."""

    tool: str
    server: str
    risk: str
    agents: list[AccessCell]


class NarrowerGrant(Schema):
    """One of the grants that would replace the wider one."""

    tool: str | None
    server: str | None
    kind: str
    uri: str
    argument_pins: dict[str, Any]


class NarrowerOut(Schema):
    """The proposal for a grant."""

    kind: str = Field(description="Kind of proposal: withdraw, tools, pins or uri.")
    key: str = Field(description="Identifies exactly this proposal. Send it to apply the proposal.")
    says: str
    after: list[NarrowerGrant] = Field(
        description="Grants that replace the grant. If empty, the grant is revoked without replacement."
    )
    calls: int = Field(
        description="Number of replayed calls that the grant covers: all calls of the period, or the newest 2,000 "
        "if there are more."
    )
    complete: bool = Field(
        description="Whether all calls of the period were replayed. If not, a proposal of pins or uri is a "
        "guess. To have all calls replayed, request this grant alone by its number. All calls are also replayed "
        "before a proposal is applied."
    )
    since: datetime
    stopped: int = Field(
        description="Number of these calls that the new grants would not have allowed."
    )
    unjudged: int = Field(
        description="Number of these calls whose arguments are erased or too long to read, or whose tool no longer "
        "exists."
    )


class GrantProposalOut(Schema):
    """A grant and the proposal for it."""

    grant: int
    about: str
    as_of: datetime | None = Field(
        description="When the grant was analyzed. Null if it is new or was changed; it is then analyzed within the "
        "hour."
    )
    proposal: NarrowerOut | None


class Apply(StrictInput):
    """``pins``: for a proposal of argument pins, the arguments to pin. If left out, all of them are
    pinned."""

    key: Annotated[Text, Field(min_length=1, max_length=64)]
    days: Annotated[int, Field(ge=1, le=365)] = DAYS
    pins: Annotated[list[Text], Field(max_length=100)] | None = None


class Applied(Schema):
    """The number of new grants."""

    grants: int


def proposal_out(grant: Grant, findings: Findings) -> GrantProposalOut:
    """A grant with its proposal as the answer."""
    found = findings.proposals.get(grant.pk)
    as_of = findings.made.get(grant.pk)
    if found is None:
        return GrantProposalOut(grant=grant.pk, about=str(grant), as_of=as_of, proposal=None)
    after = [
        NarrowerGrant(
            tool=str(row.tool) if row.tool else None,
            server=row.server.slug if row.server else None,
            kind=row.kind,
            uri=row.uri,
            argument_pins=row.argument_pins,
        )
        for row in found.after
    ]
    shown = NarrowerOut(
        kind=found.kind,
        key=found.key,
        says=found.says,
        after=after,
        calls=found.looked.calls,
        complete=found.looked.all,
        since=found.looked.since,
        stopped=found.stops,
        unjudged=found.unjudged,
    )
    return GrantProposalOut(grant=grant.pk, about=str(grant), as_of=as_of, proposal=shown)


def row_out(tool: Tool, agents: Sequence[Agent], table: AccessTable) -> AccessRow:
    """A row of the table as its answer."""
    cells = [
        AccessCell(
            agent=agent.slug,
            standing=cell.standing,
            word=cell.word,
            why=cell.why,
            lacks=list(cell.lacks),
        )
        for agent, cell in zip(agents, table.build_row(tool, agents), strict=True)
    ]
    return AccessRow(
        tool=str(tool), server=tool.server.slug, risk=assess_risk(tool).level, agents=cells
    )
