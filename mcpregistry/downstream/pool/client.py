"""The SDK's client as a connection uses it."""

from __future__ import annotations

from contextlib import AsyncExitStack

from mcp.client.client import Client
from mcp.client.session import ClientSession
from mcp_types import ClientCapabilities, RootsCapability

APPS = "io.modelcontextprotocol/ui"  # the extension MCP Apps


class WithoutRootChanges(Client):
    """Declares no word of changed roots: several hosts share the connection, and none of them speaks for all."""

    async def _build_session(self, exit_stack: AsyncExitStack) -> ClientSession:
        # The SDK has no option for it; the pinned version is held to this by a test.
        session = await super()._build_session(exit_stack)
        build = session._build_capabilities

        def built(version: str) -> ClientCapabilities:
            said = build(version)
            return said.model_copy(update={"roots": RootsCapability()}) if said.roots is not None else said

        session._build_capabilities = built  # type: ignore[method-assign]
        return session
