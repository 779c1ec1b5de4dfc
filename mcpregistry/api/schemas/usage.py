"""Usage and failures that are alike, as REST shows them."""

from __future__ import annotations

from datetime import datetime

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import capped
from mcpregistry.queries.failures import Pattern
from mcpregistry.queries.usage import Row

_MOST_TOOLS = 50  # of one pattern


class AdviceOut(Schema):
    """What is odd about a tool by its own figures."""

    kind: str
    words: str
    remedy: str


class UsageOut(Schema):
    """One tool, server, agent, endpoint or expert tool in a period. Times are milliseconds, at most 19 % off."""

    server: str = Field(description="Of a tool; else empty.")
    name: str = Field(description="Empty: names that nobody has.")
    calls: int
    calls_before: int = Field(description="In as long a period before.")
    trend: float | None = Field(description="By how much there are more: 1 is twice as many. Null: none before.")
    errors: int
    error_rate: float | None
    codes: dict[str, int] = Field(description="Errors by their code.")
    refused: int = Field(description="Denied, rejected, expired, cancelled or void.")
    p50: float | None = Field(description="Of calls that nobody was asked about.")
    p95: float | None
    p95_before: float | None
    result_tokens: int = Field(description="About: a token for four characters.")
    definition_tokens: int | None = Field(
        description="Tokens of definitions on every turn of a model that is shown them, estimated at four characters each. "
        "Of an agent its longest list, of an endpoint the longest that an agent sees there."
    )
    cost: float | None = Field(description="US dollars, as far as they are known.")
    last_used: datetime | None
    advice: list[AdviceOut]


class FailingTool(Schema):
    """A tool that failed so."""

    server: str
    tool: str = Field(description="Empty: a name that no server has.")
    count: int


class FailedCall(Schema):
    """A call that failed so."""

    id: str
    received_at: datetime


class PatternOut(Schema):
    """Failures with one code and one shape of words."""

    code: str
    shape: str = Field(description="The words without what differs from one to the next.")
    count: int
    first: datetime
    last: datetime
    tools: list[FailingTool] = Field(description="The most frequent first, at most 50.")
    examples: list[FailedCall] = Field(description="The newest of these calls, at most five.")


def usage_out(row: Row) -> UsageOut:
    """A row as REST shows it."""
    return UsageOut(
        server=row.server, name=row.name, calls=row.tally.calls, calls_before=row.before.calls, trend=row.trend,
        errors=row.tally.errors, error_rate=row.tally.error_rate, codes=dict(row.codes), refused=row.tally.refused,
        p50=row.p50, p95=row.p95, p95_before=row.before.p95, result_tokens=row.result_tokens,
        definition_tokens=row.definition_tokens, cost=row.dollars, last_used=row.tally.last,
        advice=[AdviceOut(kind=each.kind, words=each.words, remedy=each.remedy) for each in row.advice],
    )  # fmt: skip


def pattern_out(each: Pattern) -> PatternOut:
    """A pattern as REST shows it."""
    alike = each.alike
    return PatternOut(
        code=each.code, shape=capped(each.shape), count=alike.count, first=alike.first, last=alike.last,
        tools=[FailingTool(server=server, tool=tool, count=count) for server, tool, count in each.tools[:_MOST_TOOLS]],
        examples=[FailedCall(id=call, received_at=at) for at, call in alike.examples],
    )  # fmt: skip
