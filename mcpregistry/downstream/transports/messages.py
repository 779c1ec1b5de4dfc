"""JSON-RPC messages as bytes: requests of ours written, and what servers send read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from mcp_types import INTERNAL_ERROR
from mcp_types.version import OLDEST_SUPPORTED_VERSION

from mcpregistry.domain.errors import ProtocolError, ToolRefused
from mcpregistry.domain.text.almost_json import BOM, REPLACED, repair_text
from mcpregistry.downstream.limits import make_too_deep_error
from mcpregistry.downstream.transports.request_ids import parse_own_id
from mcpregistry.downstream.transports.server_request import ProgressCallback, ServerRequest

REPAIR_WARNING = {
    "level": "warning",
    "logger": "slipsnisse",
    "data": f"A message from the server: {REPLACED}",
}
NO_WORDS = "The server refused the request without a reason."
MOST_CODE = 60  # characters of a code that is a text
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, ValueError)
_decode = msgspec.json.Decoder().decode


def _ignore() -> None:
    return


# One of our ids as a member of the outermost object: before anything nests, or just before its end.
_ID_FIRST = re.compile(rb'\s*\{[^{}\[\]]*?"id"\s*:\s*"?(\d{7,15})["\s,}]')
_ID_LAST = re.compile(rb'"id"\s*:\s*"?(\d{7,15})"?\s*\}\s*$')


def encode_request(request_id: int, request: ServerRequest) -> bytes:
    """The request as one line of JSON-RPC."""
    params = request.params
    if request.on_progress is not None:
        params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": request_id}}
    return msgspec.json.encode(
        {"jsonrpc": "2.0", "id": request_id, "method": request.method, "params": params}
    )


def parse_message(
    data: bytes | bytearray, on_repaired: Callable[[], None] = _ignore
) -> dict[str, Any]:
    """One JSON-RPC message, also behind a byte order mark or as a batch of one.

    ``on_repaired`` is called if some of its text is not valid Unicode and was replaced. Raises
    ProtocolError for anything else (batches, NaN…), ResourceLimit for a message that nests too
    deeply to be read.
    """
    try:
        message = _decode_message(data, on_repaired)
    except RecursionError as error:
        raise make_too_deep_error() from error
    if type(message) is list and len(message) == 1:
        message = message[0]
    if (
        type(message) is not dict
        or message.get("jsonrpc") != "2.0"
        or type(message.get("method", "")) is not str
    ):
        raise ProtocolError("The server sent JSON that is not a JSON-RPC 2.0 message.", sent=True)
    return message


def _decode_message(data: bytes | bytearray, on_repaired: Callable[[], None]) -> Any:
    try:
        return _decode(data.removeprefix(BOM))
    except _UNREADABLE as error:
        repaired = repair_text(data.removeprefix(BOM))
        if repaired is None:
            raise ProtocolError(
                "The server sent a line that is not valid JSON.", sent=True
            ) from error
    message = _decode(repaired)
    on_repaired()
    return message


def is_nameless_error(message: dict[str, Any]) -> bool:
    """An error for no id at all: in the stream of one request it can mean that one only."""
    return (
        message.get("id") is None
        and "method" not in message
        and isinstance(message.get("error"), dict)
    )


def rename_oldest_version(message: dict[str, Any]) -> dict[str, Any]:
    """An answer to ``initialize`` with version 2024-10-07 as one with 2024-11-05, which has the
    same messages."""
    result = message.get("result")
    if isinstance(result, dict) and result.get("protocolVersion") == "2024-10-07":
        return {**message, "result": {**result, "protocolVersion": OLDEST_SUPPORTED_VERSION}}
    return message


def salvage_id(data: bytes | bytearray) -> int | None:
    """Whose answer an unusable line (1e400, NaN, too deep, cut off) was, so that its call ends at
    once."""
    found = _ID_FIRST.match(data[:256]) or _ID_LAST.search(data[-64:])
    return parse_own_id(int(found[1])) if found else None


def read_reply(message: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a JSON-RPC response, untouched. Raises ToolRefused or ProtocolError."""
    result = message.get("result")
    if type(result) is dict:
        return result
    error = message.get("error")
    if type(error) is dict:
        raise _make_refusal(error)
    if isinstance(error, str):
        raise ToolRefused(error or NO_WORDS, rpc_code=INTERNAL_ERROR)
    raise ProtocolError(
        "The server executed the request, but its answer contains neither a result object nor an error.",
        remedy="Check what the request has done before you repeat it.",
        sent=True,
    )


def _make_refusal(error: Mapping[str, Any]) -> ToolRefused:
    """The server's error. Some servers put a text or a float into the place of its code."""
    text = error.get("message")
    code = error.get("code")
    words = text if isinstance(text, str) and text else NO_WORDS
    if isinstance(code, str) and code:
        words = f"{words} ({code[:MOST_CODE]})"
    rpc_code = INTERNAL_ERROR
    if isinstance(code, int | float) and abs(code) < 2**53 and code == int(code):
        rpc_code = int(code)
    return ToolRefused(words, rpc_code=rpc_code, data=error.get("data"))


def report_progress(callback: ProgressCallback, params: Mapping[str, Any]) -> None:
    """Hand on a progress notification if its numbers are numbers (progress is a hint, never an
    error)."""
    progress = params.get("progress")
    total = params.get("total")
    text = params.get("message")
    if isinstance(progress, int | float):
        callback(
            progress,
            total if isinstance(total, int | float) else None,
            text if isinstance(text, str) else None,
        )
