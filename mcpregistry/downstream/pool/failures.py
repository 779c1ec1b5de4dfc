"""Finds the one typed error in what the SDK raises: groups of groups, or its own error codes."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT

from mcpregistry.domain.errors import ConnectionFailed, DownstreamError, ProtocolError, TimedOut, ToolRefused

log = structlog.get_logger(__name__)


def typed_error(error: BaseException, known: DownstreamError | None = None) -> DownstreamError:
    """The one typed error inside what the SDK raised (groups of groups, or its own error codes)."""
    leaves = list(_leaves(error))
    ours = next((leaf for leaf in leaves if isinstance(leaf, DownstreamError)), known)
    if isinstance(ours, ToolRefused):
        return ProtocolError(f"The server refused the handshake: {ours.message}")
    if ours is not None:
        return ours
    for leaf in leaves:
        if isinstance(leaf, MCPError):
            return _from_rpc(leaf)
    return _unexpected(error, leaves)


def _unexpected(error: BaseException, leaves: list[BaseException]) -> DownstreamError:
    log.warning("connection_failed", error=type(error).__name__, exc_info=error)
    if any(isinstance(leaf, TimeoutError) for leaf in leaves):
        return TimedOut("The server did not answer in time.")
    if any(isinstance(leaf, ValueError | RuntimeError) for leaf in leaves):
        return ProtocolError("The server's handshake is not one that MCP allows.")
    return ConnectionFailed("The connection failed.", remedy="The log of this site says why.")


def _from_rpc(error: MCPError) -> DownstreamError:
    if error.code == REQUEST_TIMEOUT:
        return TimedOut("The server did not answer the handshake in time.")
    return ConnectionFailed(
        f"The server refused the handshake (code {error.code}).", remedy="Check its protocol setting and its log."
    )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
        return
    yield error
    if error.__cause__ is not None:
        yield from _leaves(error.__cause__)
