"""The SDK's client, and whatever downstream needs that the SDK has no public name for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from mcp.client._transport import TransportStreams
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

__all__ = ["CLIENT_NAME", "TransportStreams", "WithoutRootChanges", "build_request_meta"]


class WithoutRootChanges(Client):
    """Does not declare ``roots.listChanged``, because several hosts share the connection."""

    async def _build_session(self, exit_stack: AsyncExitStack) -> ClientSession:
        # The SDK has no option for it; the pinned version is held to this by a test.
        session = await super()._build_session(exit_stack)
        build = session._build_capabilities

        def build_without_changes(version: str) -> ClientCapabilities:
            declared = build(version)
            if declared.roots is None:
                return declared
            return declared.model_copy(update={"roots": RootsCapability()})

        session._build_capabilities = build_without_changes  # type: ignore[method-assign]
        return session


def build_request_meta(version: str, apps: Mapping[str, Any] | None) -> dict[str, Any]:
    """The ``_meta`` of our own requests to a modern server. ``apps``: the pages that the
    connection's only host can show."""
    return {
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: {"name": CLIENT_NAME, "version": VERSION},
        CLIENT_CAPABILITIES_META_KEY: {} if apps is None else {"extensions": {APPS: dict(apps)}},
    }
