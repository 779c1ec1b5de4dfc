"""The lane for ``tools/list`` of the modern era: bytes made once per list, the id spliced in.

Five thousand tools through the SDK hold the event loop for a tenth of a second; these bytes take a
millisecond. A request with anything unusual about it is handed on, unread as far as the SDK can see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp.types import SERVER_INFO_META_KEY
from mcp_types import methods

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.gateway.body import read_small, replayed
from mcpregistry.gateway.identity import Caller
from mcpregistry.gateway.server import LIST_EXTRA, Gateway

_TYPES = ("application/json", "text/event-stream")
_ACCEPT = {f"{one},{space}{two}" for one, two in (_TYPES, _TYPES[::-1]) for space in ("", " ")}


class ListLane:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._extra = {**LIST_EXTRA, "_meta": {SERVER_INFO_META_KEY: gateway.server.server_info_stamp}}

    @staticmethod
    def takes(scope: dict[str, Any]) -> bool:
        """Cheap look at method and headers; the body decides later."""
        return scope["method"] == "POST" and (b"mcp-method", b"tools/list") in scope["headers"]

    async def __call__(self, caller: Caller, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        """Answer and return None, or return a ``receive`` that gives the SDK the same body again."""
        body, whole = await read_small(receive)
        answer = self._answer(caller, scope, body) if whole else None
        if answer is None:
            return replayed(body, whole, receive)
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
        return None

    def _answer(self, caller: Caller, scope: dict[str, Any], body: bytes) -> bytes | None:
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = dict(pairs)
        if not _ordinary(headers, pairs):
            return None
        try:
            message = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if not _plain_request(message):
            return None
        verdict = classify_inbound_request(message, headers=headers)
        if isinstance(verdict, InboundLadderRejection):
            return None
        try:
            methods.validate_client_request("tools/list", verdict.protocol_version, message["params"])
            result = self._gateway.catalogue(caller).page_bytes(
                message["params"].get("cursor"), legacy=False, extra=self._extra
            )
        except (SlipsnisseError, ValueError):  # the SDK's own path says it in its own words
            return None
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (msgspec.json.encode(message["id"]), result)


def _ordinary(headers: Mapping[str, str], names: list[tuple[str, str]]) -> bool:
    return (
        headers.get("content-type") == "application/json"
        and headers.get("accept") in _ACCEPT
        and len(headers) == len(names)  # none is there twice
    )


def _plain_request(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.keys() == {"jsonrpc", "id", "method", "params"}
        and message["jsonrpc"] == "2.0"
        and message["method"] == "tools/list"
        and type(message["id"]) in (int, str)
        and isinstance(message["params"], dict)
        and message["params"].keys() <= {"_meta", "cursor"}
        and isinstance(message["params"].get("cursor", ""), str)
    )
