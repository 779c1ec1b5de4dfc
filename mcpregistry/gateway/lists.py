"""The lane for ``tools/list`` of the modern era: bytes made once per list, the id spliced in.

Five thousand tools through the SDK hold the event loop for a tenth of a second; these bytes take a
millisecond. A request with anything unusual about it is handed on, unread as far as the SDK can see.
"""

from __future__ import annotations

from typing import Any

import msgspec
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request, find_duplicated_routing_header

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.gateway.body import read_small, replayed
from mcpregistry.gateway.identity import Caller
from mcpregistry.gateway.server import LIST_EXTRA, NAME, VERSION, Gateway

_EXTRA = dict(LIST_EXTRA) | {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": NAME, "version": VERSION}}}


class ListLane:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

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
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not _ordinary(headers, scope):
            return None
        try:
            message = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return None
        if not _plain_request(message) or isinstance(
            classify_inbound_request(message, headers=headers), InboundLadderRejection
        ):
            return None
        try:
            result = self._gateway.catalogue(caller).page_bytes(
                message["params"].get("cursor"), legacy=False, extra=_EXTRA
            )
        except (SlipsnisseError, ValueError):
            return None
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (msgspec.json.encode(message["id"]), result)


def _ordinary(headers: dict[str, str], scope: dict[str, Any]) -> bool:
    accept = headers.get("accept", "")
    return (
        headers.get("content-type", "").lower().startswith("application/json")
        and "application/json" in accept
        and "text/event-stream" in accept
        and find_duplicated_routing_header([(k.decode("latin-1"), "") for k, _ in scope["headers"]]) is None
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
