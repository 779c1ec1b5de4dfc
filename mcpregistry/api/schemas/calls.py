"""One tool call over REST: what goes in and what comes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.approvals import Ticket
from mcpregistry.api.schemas.basics import ConversationId, Input, Slug, Text


class CallMeta(Input):
    """Optional. Names, when given, must be those of the tool: a check against a mix-up."""

    server_name: Annotated[Text, Field(max_length=63)] | None = None
    tool_name: Annotated[Text, Field(max_length=500)] | None = None
    request_id: Annotated[Text, Field(max_length=100, description="To find the call again by.")] = ""


class CallOrder(Input):
    """What is called with: arguments, endpoint, and for people the agent they act for."""

    params: dict[str, Any] = Field(default={}, description="The tool's arguments.")
    endpoint: Slug = "default"
    agent: Slug | None = Field(default=None, description="Only for people: the agent they act for.")
    conversation: ConversationId | None = Field(default=None, description="An open conversation of the agent.")
    mcp: CallMeta = CallMeta()
    said: Annotated[Text, Field(max_length=2000)] = Field(
        default="", description="What you tell those who decide, if the call is held. Shown to them as yours."
    )


class CallEnergyOut(Schema):
    """What a call has cost of its agent's pool, as the books have it, and what was left then."""

    charged: float
    level: float


class CallResultMeta(Schema):
    """What is known of the call besides its result."""

    invocation_id: str
    state: str
    server_name: str
    tool_name: str
    request_id: str
    response_time: float = Field(description="Milliseconds.")
    content_type: Literal["text", "json", "binary"]
    content: Any = Field(description="The tool's result as MCP has it, untouched.")
    error_code: str
    remedy: str
    record: str = Field(default="", description="Empty; or why the call's record does not say the same yet.")
    warning: str = Field(
        default="",
        description="Empty; or what is odd about the result, such as that it breaks the tool's output schema.",
    )
    approval: Ticket | None = Field(default=None, description="With 202: the call is held, and this is its handle.")
    energy: CallEnergyOut | None = Field(
        default=None, description="On endpoints that tell it, for agents with an energy pool."
    )


class CallAnswer(Schema):
    """``success`` false with HTTP 200: the tool or its server failed; ``?strict=1`` answers 502 or 504 instead."""

    tool_name: str
    success: bool
    result: Any
    error: str | None
    mcp: CallResultMeta
