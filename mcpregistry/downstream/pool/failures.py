"""Finds the one typed error in what the SDK raises: groups of groups, or its own error codes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import structlog
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
from mcp_types.version import SUPPORTED_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import (
    ConnectionFailed,
    DownstreamError,
    ProtocolError,
    TimedOut,
    ToolRefused,
)
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.downstream.transports.wire import ChannelClosedError

TRY_PROTOCOL = "On the page of the server, choose another value for “Protocol”. Also read the log of the server."
_UNSUPPORTED = re.compile(r"Unsupported protocol version from the server: (.+)", re.DOTALL)

log = structlog.get_logger(__name__)


def find_typed_error(error: BaseException, known: DownstreamError | None = None) -> DownstreamError:
    """The one typed error inside what the SDK raised (groups of groups, or its own error codes)."""
    leaves = list(iterate_leaves(error))
    known = None if isinstance(known, ChannelClosedError) else known
    ours = next((leaf for leaf in leaves if isinstance(leaf, DownstreamError)), known)
    if isinstance(ours, ToolRefused):
        remedy = ours.remedy if ours.retry_after else TRY_PROTOCOL
        refused = ProtocolError(f"The server refused the handshake: {ours.message}", remedy=remedy)
        refused.retry_after = ours.retry_after
        return refused
    if ours is not None:
        return ours
    for leaf in leaves:
        if isinstance(leaf, MCPError):
            return _make_rpc_error(leaf)
        if isinstance(leaf, ValidationError):
            return _make_handshake_error(leaf)
        if version := _UNSUPPORTED.match(str(leaf)):
            return _make_version_error(version[1])
    return _make_unexpected_error(error, leaves)


def _make_version_error(version: str) -> ProtocolError:
    known = ", ".join(SUPPORTED_PROTOCOL_VERSIONS)
    return ProtocolError(
        f"The server uses protocol version '{clean_text(version, 60)}', which is not supported. Supported versions: {known}.",
        remedy="Use another version of the server.",
    )


def _make_handshake_error(error: ValidationError) -> ProtocolError:
    """The answer to ``initialize`` does not follow the protocol: name the members, never their
    values."""
    wrong = [
        f"{'.'.join(map(str, each['loc']))} ({each['msg']})"
        for each in error.errors(include_input=False)[:3]
    ]
    return ProtocolError(
        f"The server's answer to the handshake is not valid: {clean_text('; '.join(wrong), 300)}.",
        remedy="Use another version of the server, or report this to the developers of the server.",
    )


def _make_unexpected_error(error: BaseException, leaves: list[BaseException]) -> DownstreamError:
    log.warning("connection_failed", error=type(error).__name__, exc_info=error)
    if any(isinstance(leaf, TimeoutError) for leaf in leaves):
        return TimedOut("The server did not answer in time.")
    if any(isinstance(leaf, ValueError | RuntimeError) for leaf in leaves):
        return ProtocolError(
            "The server's answer to the handshake is not valid MCP.", remedy=TRY_PROTOCOL
        )
    return ConnectionFailed("The connection to the server failed.", remedy=error_texts.TRY_AGAIN)


def _make_rpc_error(error: MCPError) -> DownstreamError:
    if error.code == REQUEST_TIMEOUT:
        return TimedOut("The server did not answer the handshake in time.", remedy=TRY_PROTOCOL)
    if error.code == CONNECTION_CLOSED:
        return ConnectionFailed(
            "The server closed the connection during the handshake.",
            remedy="Read the log of the server.",
        )
    words = clean_text(str(error.error.message), 300).rstrip(".")
    return ConnectionFailed(
        f"The server refused the handshake (code {error.code}): {words}.", remedy=TRY_PROTOCOL
    )


def iterate_leaves(error: BaseException) -> Iterator[BaseException]:
    """The single errors inside groups of groups, and what caused them."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from iterate_leaves(inner)
        return
    yield error
    if error.__cause__ is not None:
        yield from iterate_leaves(error.__cause__)
