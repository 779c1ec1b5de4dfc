"""Usage and failures that are alike, as REST shows them."""

from __future__ import annotations

from datetime import datetime

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import cap_text
from mcpregistry.queries.failures import Pattern
from mcpregistry.queries.usage import UsageRow

_MOST_TOOLS = 50  # of one pattern


class AdviceOut(Schema):
    """Advice about a tool, derived from its figures."""

    kind: str
    words: str
    remedy: str


class UsageOut(Schema):
    """One tool, server, agent, endpoint or expert tool in a period. Times are in milliseconds, with
    an error of at most 19 %.
    """

    server: str = Field(description="The server of a tool. Empty for other rows.")
    name: str = Field(description="Name of the row. Empty for calls of names that do not exist.")
    calls: int
    calls_before: int = Field(
        description="Number of calls in the previous period of the same length."
    )
    trend: float | None = Field(
        description="Relative change of the number of calls: 1 means twice as many. Null if there were none before."
    )
    errors: int
    error_rate: float | None
    codes: dict[str, int] = Field(description="Number of errors by error code.")
    refused: int = Field(
        description="Number of calls that were denied, rejected, expired, cancelled or void."
    )
    p50: float | None = Field(description="Median duration of the calls that needed no approval.")
    p95: float | None
    p95_before: float | None
    result_tokens: int = Field(
        description="Estimated tokens of the results, at four characters per token."
    )
    definition_tokens: int | None = Field(
        description="Tokens of the definitions on every turn of a model that sees them, estimated at four "
        "characters per token. For an agent, its longest list. For an endpoint, the longest list that an agent "
        "sees there."
    )
    cost: float | None = Field(description="Cost in US dollars, as far as it is known.")
    last_used: datetime | None
    advice: list[AdviceOut]


class FailingTool(Schema):
    """An affected tool."""

    server: str
    tool: str = Field(description="Name of the tool. Empty if no server has it.")
    count: int


class FailedCall(Schema):
    """An affected call."""

    id: str
    received_at: datetime


class PatternOut(Schema):
    """Failures with the same code and similar text."""

    code: str
    shape: str = Field(description="Error text without the parts that differ between calls.")
    count: int
    first: datetime
    last: datetime
    tools: list[FailingTool] = Field(description="Affected tools, most frequent first, at most 50.")
    examples: list[FailedCall] = Field(description="Newest of these calls, at most five.")


def usage_out(row: UsageRow) -> UsageOut:
    """A row as REST shows it."""
    return UsageOut(
        server=row.server,
        name=row.name,
        calls=row.tally.calls,
        calls_before=row.before.calls,
        trend=row.trend,
        errors=row.tally.errors,
        error_rate=row.tally.error_rate,
        codes=dict(row.codes),
        refused=row.tally.refused,
        p50=row.p50,
        p95=row.p95,
        p95_before=row.before.p95,
        result_tokens=row.result_tokens,
        definition_tokens=row.definition_tokens,
        cost=row.dollars,
        last_used=row.tally.last,
        advice=[
            AdviceOut(kind=each.kind, words=each.words, remedy=each.remedy) for each in row.advice
        ],
    )


def pattern_out(each: Pattern) -> PatternOut:
    """A pattern as REST shows it."""
    alike = each.alike
    return PatternOut(
        code=each.code,
        shape=cap_text(each.shape),
        count=alike.count,
        first=alike.first,
        last=alike.last,
        tools=[
            FailingTool(server=server, tool=tool, count=count)
            for server, tool, count in each.tools[:_MOST_TOOLS]
        ],
        examples=[FailedCall(id=call, received_at=at) for at, call in alike.examples],
    )
