"""The context bill as REST answers it, and what it is asked to hide."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Input, Slug, Text
from mcpregistry.calls.context_bill import Bill, Line
from mcpregistry.models import Agent, Endpoint


class BilledTool(Schema):
    """One definition of the list that hosts get."""

    name: str = Field(description="As hosts see it.")
    tool: str | None = Field(description="`server::name`; null for a tool of Slipsnisse's own, which no grant hides.")
    tokens: int = Field(description="Carried on every turn.")
    calls: int = Field(description="Of the calls looked at.")
    new: bool = Field(description="First seen or granted within the period: too early to tell.")
    unused: bool = Field(description="Not called in the period, all of which was looked at; it could be hidden.")


class BillOut(Schema):
    """What is carried on every turn."""

    agent: str
    endpoint: str
    hide_from: str
    tokens: int = Field(description="Of all definitions and instructions.")
    instructions: int = Field(description="Of these, the instructions of servers.")
    unused: int = Field(description="Of these, definitions that were not called.")
    calls_looked_at: int
    since: datetime = Field(description="The oldest call that was looked at.")
    complete: bool = Field(description="Every call of the period was looked at; else nothing is said to be unused.")
    kept: bool = Field(description="Calls are kept for the whole period.")
    tools: list[BilledTool] = Field(description="The dearest first.")
    left_out: int = Field(description="Tools beyond the limit; the sums count them.")


class Hide(Input):
    """``tools``: by `server::name` or as hosts see them."""

    agent: Slug
    endpoint: Slug = "default"
    hide_from: Literal["agent", "endpoint"] = "agent"
    tools: Annotated[list[Annotated[Text, Field(min_length=1, max_length=300)]], Field(min_length=1, max_length=1_000)]


class Hidden(Schema):
    """What hiding has changed: grants, and the tokens of every turn."""

    withdrawn: int
    given: int = Field(description="Grants for what stays.")
    tokens_before: int
    tokens_after: int


def bill_out(found: Bill, *, agent: Agent, endpoint: Endpoint, hide_from: str, limit: int) -> BillOut:
    """A bill as the answer."""
    unused = {line.tool_id for line in found.unused}
    return BillOut(
        agent=agent.slug, endpoint=endpoint.slug, hide_from=hide_from, tokens=found.total, instructions=found.instructions,
        unused=found.wasted, calls_looked_at=found.looked, since=found.since, complete=found.all, kept=found.kept,
        tools=[_tool_out(line, not line.own and line.tool_id in unused) for line in found.lines[:limit]],
        left_out=max(0, len(found.lines) - limit),
    )  # fmt: skip


def _tool_out(line: Line, unused: bool) -> BilledTool:
    return BilledTool(
        name=line.name, tool=None if line.own else f"{line.server}::{line.key}", tokens=line.tokens, calls=line.calls,
        new=line.new, unused=unused,
    )  # fmt: skip
