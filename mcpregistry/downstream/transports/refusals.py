"""What an HTTP error of a server means for a request, in the server's own words where it has
any."""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import msgspec

from mcpregistry.domain.errors import (
    ConnectionFailed,
    DownstreamError,
    ResourceLimit,
    SessionLost,
    ToolRefused,
)
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.downstream.http_client.client import HttpReply, make_status_error
from mcpregistry.downstream.transports.messages import parse_message, read_reply

MOST_BYTES = 64 * 1024
MOST_WORDS = 300  # characters
LONGEST_PAUSE = 900.0  # seconds, whatever ``Retry-After`` says
TOO_MANY = 429


async def read_refusal(reply: HttpReply, *, session: bool = False) -> DownstreamError | None:
    """The error for a reply with an HTTP error; None for any other. ``session``: the request named
    one."""
    if reply.status < 400:
        return None
    by_status = make_status_error(reply.status, session=session)
    body = await _read_body(reply)
    message = _parse_body(body)
    if (
        message is not None
        and "error" in message
        and reply.status != 401
        and not isinstance(by_status, SessionLost)
    ):
        error: DownstreamError = _make_rpc_error(message)
    else:
        error = by_status or ConnectionFailed(
            f"The server answered HTTP {reply.status} without an MCP message.",
            remedy="Check that the URL is the address at which the server offers MCP.",
            sent=True,
        )
        error = _add_words(error, reply.status, _find_words(body, reply.content_type, message))
    if pause := _read_pause(reply):
        error.retry_after = pause
        again = (
            "then call again"
            if isinstance(error, ToolRefused)
            else "and check whether the call ran before you repeat it"
        )
        error.remedy = f"Wait {math.ceil(pause)} s, {again}."
    return error


def _make_rpc_error(message: dict[str, Any]) -> DownstreamError:
    try:
        read_reply(message)
    except DownstreamError as error:
        return error
    return ConnectionFailed(
        "The server answered with an HTTP error status and a result at the same time.", sent=True
    )


def _add_words(error: DownstreamError, status: int, words: str) -> DownstreamError:
    if status == TOO_MANY:  # it was not processed (RFC 6585, section 4)
        said = f": {words}" if words else "."
        refused = ToolRefused(
            f"The server received too many requests (HTTP {status}){said}", rpc_code=0
        )
        refused.remedy = "Wait a moment, then call again."
        return refused
    if not words:
        return error
    return type(error)(
        f"{error.message.rstrip('.')}: {words}", remedy=error.remedy, sent=error.sent
    )


async def _read_body(reply: HttpReply) -> bytes:
    if reply.is_stream:
        return b""
    parts: list[bytes] = []
    try:
        async for piece in reply.read_pieces(MOST_BYTES):
            parts.append(piece)
    except (ResourceLimit, ConnectionFailed):  # what has arrived says enough
        pass
    return b"".join(parts)[:MOST_BYTES]


def _parse_body(body: bytes) -> dict[str, Any] | None:
    try:
        return parse_message(body)
    except DownstreamError:
        return None


def _find_words(body: bytes, content_type: str, message: dict[str, Any] | None) -> str:
    if message is None and content_type == "text/plain":
        return _format_line(body.decode(errors="replace"))
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return _format_line(_extract_sentence(value) or "")


def _extract_sentence(value: object) -> str | None:
    """The sentence of the usual forms of errors: JSON-RPC, OAuth (RFC 6749), problem details (RFC
    9457), and others."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return None
    keys = ("error_description", "message", "detail", "title", "error")
    return next((said for key in keys if (said := _extract_sentence(value.get(key)))), None)


def _format_line(text: str) -> str:
    return clean_text(" ".join(text.split()), MOST_WORDS)


def _read_pause(reply: HttpReply) -> float:
    """Seconds that the server asks to wait: a number or a date (RFC 9110, section 10.2.3)."""
    text = reply.headers.get("Retry-After", "").strip()
    if reply.status not in (TOO_MANY, 503) or not text:
        return 0.0
    if text.isascii() and text.isdecimal():
        seconds = float(text[:9])
    else:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time()
        except (ValueError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_PAUSE)
