"""One tool call over REST: what goes in and what comes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.approvals import Ticket
from mcpregistry.api.schemas.basics import ConversationId, Slug, StrictInput, Text


class CallMeta(StrictInput):
    """Optional. If you give names, they are compared with those of the tool, to prevent mix-ups."""

    server_name: Annotated[Text, Field(max_length=63)] | None = None
    tool_name: Annotated[Text, Field(max_length=500)] | None = None
    request_id: Annotated[
        Text, Field(max_length=100, description="Id by which you can find the call again.")
    ] = ""


class CallOrder(StrictInput):
    """A call: arguments, endpoint, and for users the agent for which they make it."""

    params: dict[str, Any] = Field(default={}, description="Arguments of the tool.")
    endpoint: Slug = "default"
    agent: Slug | None = Field(
        default=None,
        description="Only with a user's token: the agent for which the user makes the call.",
    )
    conversation: ConversationId | None = Field(
        default=None, description="Id of an open conversation of the agent."
    )
    mcp: CallMeta = CallMeta()
    said: Annotated[Text, Field(max_length=2000)] = Field(
        default="",
        description="Message to the approvers, if the call is held. It is shown as your message.",
    )


class CallEnergyOut(Schema):
    """Energy that the call has used, and the level of the pool afterwards."""

    charged: float
    level: float


class CallResultMeta(Schema):
    """Facts about the call in addition to its result."""

    invocation_id: str
    state: str
    server_name: str
    tool_name: str
    request_id: str
    response_time: float = Field(description="Duration in milliseconds.")
    content_type: Literal["text", "json", "binary"]
    content: Any = Field(description="The unchanged result of the tool, as MCP defines it.")
    error_code: str
    remedy: str
    record: str = Field(
        default="",
        description="Why the record of the call does not have the same state yet. Empty if it has.",
    )
    warning: str = Field(
        default="",
        description="Problem with the result, for example that it does not match the output schema of the tool. "
        "Empty if there is none.",
    )
    approval: Ticket | None = Field(
        default=None, description="With status 202: the handle of the held call."
    )
    energy: CallEnergyOut | None = Field(
        default=None,
        description="Energy of the call, on endpoints with energy in results, for agents with an energy pool.",
    )


class CallAnswer(Schema):
    """If ``success`` is false with HTTP 200, the tool or its server failed. With ``?strict=1`` the
    status is 502 or 504 instead.
    """

    tool_name: str
    success: bool
    result: Any
    error: str | None
    mcp: CallResultMeta
