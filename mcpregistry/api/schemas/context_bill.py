"""The context bill as REST answers it, and what it is asked to hide."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Slug, StrictInput, Text
from mcpregistry.calls.context_bill import Bill, BillLine
from mcpregistry.models import Agent, Endpoint


class BilledTool(Schema):
    """One definition of the list that hosts get."""

    name: str = Field(description="Name of the tool, as hosts see it.")
    tool: str | None = Field(
        description="`server::name`, or null for a tool of Slipsnisse itself, which no grant can hide."
    )
    tokens: int = Field(description="Number of tokens that the definition adds to each turn.")
    calls: int = Field(description="Number of calls of the tool among the counted calls.")
    new: bool = Field(
        description="Whether the tool was first seen or granted within the period, which is too "
        "short to call it unused."
    )
    unused: bool = Field(
        description="Whether the tool was not called in the whole period and could be hidden."
    )


class BillOut(Schema):
    """The tokens that definitions add to every turn."""

    agent: str
    endpoint: str
    hide_from: str
    tokens: int = Field(description="Tokens of all definitions and instructions.")
    instructions: int = Field(
        description="Tokens of the instructions of servers, included in tokens."
    )
    unused: int = Field(
        description="Tokens of definitions that were not called, included in tokens."
    )
    calls_looked_at: int
    since: datetime = Field(description="Time of the oldest counted call.")
    complete: bool = Field(
        description="Whether all calls of the period were counted. If not, no tool is reported as unused."
    )
    kept: bool = Field(description="Whether calls are kept for the whole period.")
    tools: list[BilledTool] = Field(description="Tools, the largest definitions first.")
    left_out: int = Field(description="Number of tools beyond the limit. The sums include them.")


class Hide(StrictInput):
    """``tools``: names in the form `server::name`, or as hosts see them."""

    agent: Slug
    endpoint: Slug = "default"
    hide_from: Literal["agent", "endpoint"] = "agent"
    tools: Annotated[
        list[Annotated[Text, Field(min_length=1, max_length=300)]],
        Field(min_length=1, max_length=1_000),
    ]


class Hidden(Schema):
    """Changed grants, and tokens of every turn before and after."""

    withdrawn: int
    given: int = Field(description="Number of new grants for the other tools.")
    tokens_before: int
    tokens_after: int


def bill_out(
    found: Bill, *, agent: Agent, endpoint: Endpoint, hide_from: str, limit: int
) -> BillOut:
    """A bill as the answer."""
    unused = {line.tool_id for line in found.unused}
    return BillOut(
        agent=agent.slug,
        endpoint=endpoint.slug,
        hide_from=hide_from,
        tokens=found.total,
        instructions=found.instructions,
        unused=found.wasted,
        calls_looked_at=found.looked,
        since=found.since,
        complete=found.all,
        kept=found.kept,
        tools=[
            _tool_out(line, not line.own and line.tool_id in unused) for line in found.lines[:limit]
        ],
        left_out=max(0, len(found.lines) - limit),
    )


def _tool_out(line: BillLine, unused: bool) -> BilledTool:
    return BilledTool(
        name=line.name,
        tool=None if line.own else f"{line.server}::{line.key}",
        tokens=line.tokens,
        calls=line.calls,
        new=line.new,
        unused=unused,
    )
