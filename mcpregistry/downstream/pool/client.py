"""The SDK's client as a connection uses it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from mcp.client.client import Client
from mcp.client.session import ClientSession
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    ClientCapabilities,
    RootsCapability,
)

from mcpregistry.domain.calls.forwarding import APPS
from mcpregistry.domain.version import VERSION

CLIENT_NAME = "slipsnisse"


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


def stamp_of_requests(version: str, apps: Mapping[str, Any] | None) -> dict[str, Any]:
    """The ``_meta`` of our own requests to a modern server. ``apps``: what the connection's only host says of pages."""
    return {
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: {"name": CLIENT_NAME, "version": VERSION},
        CLIENT_CAPABILITIES_META_KEY: {} if apps is None else {"extensions": {APPS: dict(apps)}},
    }
