"""What is no JSON-RPC message of MCP, said as JSON-RPC says it; for both doors, in front of the
SDK.

The SDK takes a request whose id is null for a notification and keeps silent, so that its host waits
for ever; it answers a batch with the words of its validator, and on a pipe neither with anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pydantic_core
import structlog
from anyio import to_thread
from mcp.shared.inbound import unsupported_protocol_version_rejection
from mcp.types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, ErrorData
from mcp_types import CONNECTION_CLOSED, PROTOCOL_VERSION_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcpregistry.domain.calls.outcome_texts import CUT_OFF
from mcpregistry.domain.text.almost_json import BOM, REPLACED, repair_text
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.domain.text.unique_keys import RepeatedKeyError, check_keys

log = structlog.get_logger(__name__)

_Found = TypeVar("_Found")
_LARGE = 64 * 1024  # bytes
_HEAD = 512  # bytes in which the id of a broken message is looked for, at its start and at its end
_ID = rb'"id"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*"|-?\d{1,20})\s*'
_ID_FIRST = re.compile(
    rb'\s*\{(?:\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,)*\s*' + _ID + rb"[,}]"
)
_ID_LAST = re.compile(rb"[,{]\s*" + _ID + rb"\}\s*\Z")
_SAFE_LEVELS = 200  # of the SDK's parser
MOST_SAID = 200  # characters of an error's own words
_TOO_DEEP = "The message is nested too deeply."


async def run_in_thread_if_large(data: bytes, look: Callable[[bytes], _Found]) -> _Found:
    """Return what ``look`` finds in a message. A thread looks through a large one, so that the loop
    is not blocked."""
    return await to_thread.run_sync(look, data) if len(data) > _LARGE else look(data)


def encode_message(message: dict[str, Any]) -> bytes:
    """A message as JSON, also one with halves of surrogate pairs in it."""
    try:
        return msgspec.json.encode(message)
    except (msgspec.EncodeError, UnicodeEncodeError, TypeError):
        return encode_lossy_json(message).encode()


def replace_invalid_text(data: bytes) -> bytes:
    """The same bytes; if they are JSON but for characters that are not Unicode, with those
    replaced."""
    try:
        msgspec.json.decode(data)
    except RecursionError:
        return data
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        data = data.removeprefix(BOM)
        try:
            repaired = repair_text(data)
        except RecursionError:
            return data
        if repaired is not None and repaired != data:
            log.warning("host.text_replaced", hint=f"A message from a host: {REPLACED}")
        return repaired or data
    return data


def salvage_id(data: bytes) -> int | str | None:
    """The id of a request that cannot be parsed, so that its host does not wait for ever; None if
    it cannot be found."""
    found = (
        (_ID_FIRST.match(data[:_HEAD]) or _ID_LAST.search(data[-_HEAD:]))
        if b'"method"' in data
        else None
    )
    try:
        known = msgspec.json.decode(found[1]) if found else None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None
    return known if type(known) in (int, str) else None


def explain_cut(error: ErrorData) -> ErrorData:
    """Say of a request that was cut off that it may have run.

    The SDK answers it with "Connection closed" when this process stops, which sounds as if nothing
    had happened.
    """
    is_cut = (error.code, error.message) == (CONNECTION_CLOSED, "Connection closed")
    return error.model_copy(update={"message": CUT_OFF}) if is_cut else error


def find_message_error(data: bytes) -> dict[str, Any] | None:
    """The error to answer these bytes with, or None for what the SDK is to look at."""
    try:
        message = msgspec.json.decode(data)
    except RecursionError:
        return make_error_reply(salvage_id(data), PARSE_ERROR, _TOO_DEEP)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        return make_error_reply(
            salvage_id(data),
            PARSE_ERROR,
            f"The message is not valid JSON: {str(error)[:MOST_SAID]}",
        )
    if isinstance(message, list):
        return make_error_reply(
            None,
            INVALID_REQUEST,
            "MCP has no batches since 2025-06-18. Send each message on its own.",
        )
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return make_error_reply(
            None, INVALID_REQUEST, 'This is not a JSON-RPC message: "jsonrpc": "2.0" is missing.'
        )
    return _check_fields(message) or _check_repeated_keys(message, data)


def _check_fields(message: dict[str, Any]) -> dict[str, Any] | None:
    known = message["id"] if "id" in message and type(message["id"]) in (int, str) else None
    if "method" not in message:
        answers = known is not None and ("result" in message or "error" in message)
        return (
            None
            if answers
            else make_error_reply(
                known, INVALID_REQUEST, "The message is neither a request nor an answer."
            )
        )
    if not isinstance(message["method"], str):
        return make_error_reply(known, INVALID_REQUEST, "The method must be a string.")
    if "id" in message and known is None:
        return make_error_reply(
            None, INVALID_REQUEST, "The id of a request must be a string or a whole number."
        )
    if not isinstance(message.get("params", {}), dict):
        return make_error_reply(known, INVALID_REQUEST, "The parameters must be an object.")
    if known is not None and not _has_valid_progress_token(message):
        return make_error_reply(
            known, INVALID_PARAMS, "The progressToken must be a string or a whole number."
        )
    return None


def _has_valid_progress_token(message: dict[str, Any]) -> bool:
    """The SDK takes true for 1. Null counts as left out."""
    meta = message.get("params", {}).get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    return token is None or type(token) in (int, str)


def _check_repeated_keys(message: dict[str, Any], data: bytes) -> dict[str, Any] | None:
    known = message["id"] if "method" in message and type(message.get("id")) in (int, str) else None
    try:
        check_keys(data)
    except RepeatedKeyError as error:
        return make_error_reply(known, INVALID_REQUEST, f"{error} {error.remedy}")
    except RecursionError:
        return make_error_reply(known, PARSE_ERROR, _TOO_DEEP)
    return None


def check_parser_depth(data: bytes) -> dict[str, Any] | None:
    """The error for a message with more levels than the SDK's parser bears, wherever that one reads
    it (all but the modern era over HTTP); ours bears more. It would keep silent on a pipe, and show
    its validator's words over HTTP."""
    if data.count(b"[") + data.count(b"{") < _SAFE_LEVELS:
        return None
    try:
        pydantic_core.from_json(data)
    except ValueError:
        return make_error_reply(msgspec.json.decode(data).get("id"), PARSE_ERROR, _TOO_DEEP)
    return None


def make_error_reply(request_id: int | str | None, code: int, message: str) -> dict[str, Any]:
    """A JSON-RPC error response."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def check_version_header(version: str, data: bytes) -> dict[str, Any] | None:
    """The error for a request whose version nobody serves and which only the header names; None for
    all others.

    The SDK would ask it for the envelope of a version that its host does not speak. One that has
    the envelope is the SDK's: it compares the two first.
    """
    if not version or version in HANDSHAKE_PROTOCOL_VERSIONS:
        return None
    rejection = unsupported_protocol_version_rejection(version)
    message = msgspec.json.decode(data) if rejection else {}
    meta = message.get("params", {}).get("_meta")
    if (
        rejection is None
        or "id" not in message
        or (isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta)
    ):
        return None
    refusal = make_error_reply(message["id"], rejection.code, rejection.message)
    refusal["error"]["data"] = rejection.data
    return refusal


async def send_reply(send: Any, status: int, answer: dict[str, Any]) -> None:
    """Answer an HTTP request with one JSON-RPC message."""
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(answer)})
