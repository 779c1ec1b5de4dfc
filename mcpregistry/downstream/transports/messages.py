"""JSON-RPC messages as bytes: requests of ours written, and what servers send read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mcpregistry.domain.errors import ProtocolError, ToolRefused
from mcpregistry.downstream.limits import too_deep
from mcpregistry.downstream.transports.request import ProgressCallback, Request
from mcpregistry.downstream.transports.request_ids import own_id

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, ValueError)
_decode = msgspec.json.Decoder().decode


# One of our ids as a member of the outermost object: before anything nests, or just before its end.
_ID_FIRST = re.compile(rb'\s*\{[^{}\[\]]*?"id"\s*:\s*"?(\d{7,15})["\s,}]')
_ID_LAST = re.compile(rb'"id"\s*:\s*"?(\d{7,15})"?\s*\}\s*$')


def encode_request(request_id: int, request: Request) -> bytes:
    """The request as one line of JSON-RPC."""
    params = request.params
    if request.on_progress is not None:
        params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": request_id}}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "method": request.method, "params": params})


def parse_message(data: bytes | bytearray) -> dict[str, Any]:
    """One JSON-RPC message. Raises ProtocolError for anything else (batches, NaN, lone surrogates…), ResourceLimit
    for one that nests deeper than this Python can read (later ones read on, and find it too deep then)."""
    try:
        message = _decode(data)
    except RecursionError as error:
        raise too_deep() from error
    except _UNREADABLE as error:
        raise ProtocolError("The server sent a line that is not valid JSON.", sent=True) from error
    if type(message) is not dict or message.get("jsonrpc") != "2.0" or type(message.get("method", "")) is not str:
        raise ProtocolError("The server sent JSON that is not a JSON-RPC 2.0 message.", sent=True)
    return message


def salvage_id(data: bytes | bytearray) -> int | None:
    """Whose answer an unusable line (1e400, NaN, too deep, cut off) was, so that its call ends at once."""
    found = _ID_FIRST.match(data[:256]) or _ID_LAST.search(data[-64:])
    return own_id(int(found[1])) if found else None


def read_reply(message: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a JSON-RPC response, untouched. Raises ToolRefused or ProtocolError."""
    result = message.get("result")
    if type(result) is dict:
        return result
    error = message.get("error")
    if type(error) is dict and type(error.get("code")) is int:
        text = error.get("message")
        raise ToolRefused(
            text if isinstance(text, str) and text else "The server refused the request without saying why.",
            rpc_code=error["code"],
            data=error.get("data"),
        )
    raise ProtocolError("The server's answer holds neither a result object nor an error.", sent=True)


def report_progress(callback: ProgressCallback, params: Mapping[str, Any]) -> None:
    """Hand on a progress notification if its numbers are numbers (progress is a hint, never an error)."""
    progress, total, text = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(progress, int | float):
        callback(progress, total if isinstance(total, int | float) else None, text if isinstance(text, str) else None)
