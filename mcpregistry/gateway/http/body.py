"""Reading a request's body so that it can still be handed on whole to the SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp_types import methods
from pydantic import ValidationError

from mcpregistry.domain.errors import ResourceLimit
from mcpregistry.domain.text.unique_keys import check_keys
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.http.session_cache import HostSessionState

SMALL = 64 * 1024  # bytes; a lane does not look further
_DEEP = 150  # brackets; the SDK refuses what of the older era is nested deeper than some 200
_TYPES = ("application/json", "text/event-stream")
_ACCEPT = {f"{one},{space}{two}" for one, two in (_TYPES, _TYPES[::-1]) for space in ("", " ")}
_REQUEST = {"jsonrpc", "id", "method", "params"}


class PlainRequest(NamedTuple):
    """A request with nothing unusual about it, checked as the SDK checks it. Of the older era if it
    has a ``session``, whose handshake says the rest."""

    id: int | str
    method: str
    params: dict[str, Any]
    client_info: Any = None
    capabilities: Any = None
    session: HostSessionState | None = None

    @property
    def meta(self) -> dict[str, Any]:
        """What the host says beside its parameters."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


class CallerRequest(NamedTuple):
    """An HTTP request of a caller with its whole body."""

    caller: Caller
    scope: dict[str, Any]
    body: bytes
    receive: Any
    send: Any

    def make_receive(self) -> Any:
        """A ``receive`` that gives the body once more."""
        return replay_body(self.body, True, self.receive)


async def read_small(receive: Any) -> tuple[bytes, bool]:
    """The body as far as it is small, and whether that is all of it."""
    body = b""
    while len(body) <= SMALL:
        event = await receive()
        body += event.get("body", b"")
        if event["type"] != "http.request" or not event.get("more_body"):
            return body, event["type"] == "http.request"
    return body, False


async def read_whole(receive: Any, most: int) -> tuple[bytes, bool]:
    """The body, and whether it is whole: not of a host that left. Raises ResourceLimit beyond
    ``most`` bytes."""
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise ResourceLimit(
                f"The message is larger than the limit of {most:,} bytes.",
                remedy="Send a smaller message.",
            )
        if event["type"] != "http.request" or not event.get("more_body"):
            return b"".join(parts), event["type"] == "http.request"


def replay_body(body: bytes, whole: bool, receive: Any) -> Any:
    """A ``receive`` that gives what was read again, then goes on."""
    first = [{"type": "http.request", "body": body, "more_body": not whole}]

    async def receive_again() -> Any:
        return first.pop() if first else await receive()

    return receive_again


def build_session_header(plain: PlainRequest) -> list[tuple[bytes, bytes]]:
    """What an answer of the older era says in its head."""
    return [(b"mcp-session-id", plain.session.id.encode())] if plain.session else []


def trim_headers(pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers without the whitespace around their values, and the media type in small letters
    (RFC 9110, 5.5 and 8.3.1)."""
    return [
        (name, _normalize_media_type(value) if name == b"content-type" else value.strip(b" \t"))
        for name, value in pairs
    ]


def _normalize_media_type(value: bytes) -> bytes:
    kind, semicolon, parameters = value.strip(b" \t").partition(b";")
    return kind.lower() + semicolon + parameters


def decode_unique_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """The headers as text; None when one is there twice, since nobody can say which one counts."""
    raw = dict(found := list(pairs))
    if len(raw) != len(found):
        return None
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw.items()}


def parse_plain_request(
    method: str, known: frozenset[str], headers: Mapping[str, str], body: bytes
) -> PlainRequest | None:
    """The request, if it is ``method`` and has no parameters but the ``known``; None leaves it to
    the SDK."""
    message = decode_usual_request(headers, body)
    if not _is_plain(message, method, known):
        return None
    verdict = classify_inbound_request(message, headers=headers)
    if isinstance(verdict, InboundLadderRejection):
        return None
    try:
        methods.validate_client_request(method, verdict.protocol_version, message["params"])
    except ValidationError:  # the SDK says it in its own words
        return None
    return PlainRequest(
        message["id"], method, message["params"], verdict.client_info, verdict.client_capabilities
    )


def decode_usual_request(headers: Mapping[str, str], body: bytes) -> Any:
    """The message of a request whose headers are the usual ones; None leaves it to the SDK."""
    if headers.get("content-type") != "application/json" or headers.get("accept") not in _ACCEPT:
        return None
    try:
        check_keys(body)
        return msgspec.json.decode(body)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def parse_session_request(
    message: dict[str, Any], body: bytes, known: frozenset[str], session: HostSessionState
) -> PlainRequest | None:
    """As ``parse_plain_request``, of a host that has shaken hands; None leaves it to the SDK."""
    params = message.get("params", {})
    plain = (
        message.keys() <= _REQUEST
        and message.get("jsonrpc") == "2.0"
        and type(message.get("id")) in (int, str)
        and type(params) is dict
        and params.keys() <= known
        and type(meta := params.get("_meta", {})) is dict
        and type(meta.get("progressToken", 0)) in (int, str)
        and body.count(b"[") + body.count(b"{") < _DEEP
    )
    if not plain:
        return None
    try:
        methods.validate_client_request(message["method"], session.version, message.get("params"))
    except (ValidationError, KeyError):  # the SDK says it in its own words
        return None
    return PlainRequest(message["id"], message["method"], params, session=session)


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
