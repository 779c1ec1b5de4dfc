"""The lane for ``tools/list`` of the modern era: bytes made once per list, the id spliced in.

Five thousand tools through the SDK hold the event loop for a tenth of a second; these bytes take a
millisecond. A request with anything unusual about it is handed on, unread as far as the SDK can see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from mcp.types import SERVER_INFO_META_KEY

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.gateway.http.body import plain_request, read_small, replayed
from mcpregistry.gateway.identity import Caller
from mcpregistry.gateway.server import LIST_EXTRA, Gateway

_KNOWN = frozenset({"_meta", "cursor"})


class ListLane:
    """One of the door's lanes; it answers ``tools/list`` from the catalogue's bytes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._extra = {**LIST_EXTRA, "_meta": {SERVER_INFO_META_KEY: gateway.server.server_info_stamp}}

    async def __call__(
        self, caller: Caller, headers: Mapping[str, str], scope: dict[str, Any], receive: Any, send: Any
    ) -> Any:
        """Answer and return None, or return a ``receive`` that gives the SDK the same body again."""
        body, whole = await read_small(receive)
        answer = await self._answer(caller, headers, body) if whole else None
        if answer is None:
            return replayed(body, whole, receive)
        found = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": found})
        await send({"type": "http.response.body", "body": answer})
        return None

    async def _answer(self, caller: Caller, headers: Mapping[str, str], body: bytes) -> bytes | None:
        plain = plain_request("tools/list", _KNOWN, headers, body)
        if plain is None or not isinstance(cursor := plain.params.get("cursor", ""), str):
            return None
        try:
            catalogue, _ = await self._gateway.seen_in(caller, plain.params["_meta"])
            result = catalogue.page_bytes(cursor, legacy=False, extra=self._extra)
        except (SlipsnisseError, ValueError):  # the SDK's own path says it in its own words
            return None
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (msgspec.json.encode(plain.id), result)
