"""A server made with the official SDK that speaks both protocol versions and asks in the way of the
older one.

``test_elicitation`` and ``test_sampling`` send a request of their own while the call waits, as
servers ported from SDK 1 do; ``in_rounds`` returns its question, as only the newer version allows.
Run it for stdio; ``make_server`` gives it for other transports.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel


class Person(BaseModel):
    username: str


def make_server(**options: Any) -> MCPServer:
    server = MCPServer("asker", instructions="asks", **options)

    @server.tool()
    async def test_elicitation(message: str, ctx: Context) -> str:
        """Ask the person. What goes wrong is said by the SDK."""
        answer = await ctx.elicit(message, Person)
        return (
            f"{answer.action}: {answer.data.username}"
            if answer.action == "accept"
            else answer.action
        )

    @server.tool()
    async def test_sampling(prompt: str, ctx: Context) -> str:
        """Ask the model. What goes wrong is the result, as in the SDK's example."""
        message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                asking = ctx.session.create_message(
                    [message], max_tokens=100, related_request_id=ctx.request_id
                )
                answer = await asking
        except Exception as error:
            return f"Sampling is not possible: {error}"
        return f"model: {answer.content.text if isinstance(answer.content, TextContent) else ''}"

    @server.tool()
    async def in_rounds(ctx: Context) -> InputRequiredResult | str:
        """Ask with the result, in the newer version alone."""
        answer = (ctx.input_responses or {}).get("who")
        if isinstance(answer, ElicitResult):
            return f"{answer.action}: {(answer.content or {}).get('username')}"
        schema = {"type": "object", "properties": {"username": {"type": "string"}}}
        params = ElicitRequestFormParams(message="Who?", requested_schema=schema)
        return InputRequiredResult(input_requests={"who": ElicitRequest(params=params)})

    @server.tool()
    async def pid(ctx: Context) -> str:
        """The process, and the protocol version that the caller speaks."""
        return f"{os.getpid()} {ctx.protocol_version}"

    return server


if __name__ == "__main__":
    make_server().run()
