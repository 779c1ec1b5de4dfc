"""Look at a request and still hand it on whole: what a lane may take, and what it must leave to the SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp_types import methods
from pydantic import ValidationError

SMALL = 64 * 1024  # bytes; a lane does not look further
_TYPES = ("application/json", "text/event-stream")
_ACCEPT = {f"{one},{space}{two}" for one, two in (_TYPES, _TYPES[::-1]) for space in ("", " ")}
_REQUEST = {"jsonrpc", "id", "method", "params"}


class Plain(NamedTuple):
    """A modern request with nothing unusual about it, checked as the SDK checks it."""

    id: int | str
    params: dict[str, Any]
    client_info: Any
    capabilities: Any


async def read_small(receive: Any) -> tuple[bytes, bool]:
    """The body as far as it is small, and whether that is all of it."""
    body = b""
    while len(body) <= SMALL:
        event = await receive()
        body += event.get("body", b"")
        if event["type"] != "http.request" or not event.get("more_body"):
            return body, event["type"] == "http.request"
    return body, False


def replayed(body: bytes, whole: bool, receive: Any) -> Any:
    """A ``receive`` that gives what was read again, then goes on."""
    first = [{"type": "http.request", "body": body, "more_body": not whole}]

    async def again() -> Any:
        return first.pop() if first else await receive()

    return again


def single_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """The headers as text, or None when one is there twice: which one counts?"""
    raw = dict(found := list(pairs))
    if len(raw) != len(found):
        return None
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw.items()}


def plain_request(method: str, known: frozenset[str], headers: Mapping[str, str], body: bytes) -> Plain | None:
    """The request, if it is ``method`` and has no parameters but the ``known``; None leaves it to the SDK."""
    if headers.get("content-type") != "application/json" or headers.get("accept") not in _ACCEPT:
        return None
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not _is_plain(message, method, known):
        return None
    verdict = classify_inbound_request(message, headers=headers)
    if isinstance(verdict, InboundLadderRejection):
        return None
    try:
        methods.validate_client_request(method, verdict.protocol_version, message["params"])
    except ValidationError:  # the SDK says it in its own words
        return None
    return Plain(message["id"], message["params"], verdict.client_info, verdict.client_capabilities)


def _is_plain(message: Any, method: str, known: frozenset[str]) -> bool:
    return (
        type(message) is dict
        and message.keys() == _REQUEST
        and message["jsonrpc"] == "2.0"
        and message["method"] == method
        and type(message["id"]) in (int, str)
        and type(message["params"]) is dict
        and message["params"].keys() <= known
        and type(meta := message["params"].get("_meta")) is dict
        and type(meta.get("progressToken", 0)) in (int, str)
    )
