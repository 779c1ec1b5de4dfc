"""The lane for ``tools/list``: bytes made once per list, the id spliced in.

Five thousand tools through the SDK hold the event loop for a tenth of a second; these bytes take a
millisecond. A request with anything unusual about it is handed on, unread as far as the SDK can
see.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from mcp.types import SERVER_INFO_META_KEY
from mcp_types.methods import serialize_server_result

from mcpregistry.calls.catalog import Catalogue
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.http.body import (
    PlainRequest,
    build_session_header,
    parse_plain_request,
    read_small,
    replay_body,
)
from mcpregistry.gateway.http.session_cache import HostSessionState
from mcpregistry.gateway.server import LIST_EXTRA, Gateway

LIST_PARAMS = frozenset({"_meta", "cursor"})
_HEAD = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


class ListFastPath:
    """One of the door's lanes; it answers ``tools/list`` from the catalogue's bytes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._extra = {
            **LIST_EXTRA,
            "_meta": {SERVER_INFO_META_KEY: gateway.server.server_info_stamp},
        }

    async def __call__(
        self,
        caller: Caller,
        headers: Mapping[str, str],
        scope: dict[str, Any],
        receive: Any,
        send: Any,
    ) -> Any:
        """Answer and return None, or return a ``receive`` that gives the SDK the same body
        again."""
        body, whole = await read_small(receive)
        plain = parse_plain_request("tools/list", LIST_PARAMS, headers, body) if whole else None
        if plain is not None and await self.serve(caller, plain, send):
            return None
        return replay_body(body, whole, receive)

    async def serve(self, caller: Caller, plain: PlainRequest, send: Any) -> bool:
        """Answer, of either era. False leaves it to the SDK."""
        if (answer := await self._build_answer(caller, plain)) is None:
            return False
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [*_HEAD, *build_session_header(plain)],
            }
        )
        await send({"type": "http.response.body", "body": answer})
        return True

    async def _build_answer(self, caller: Caller, plain: PlainRequest) -> bytes | None:
        if not isinstance(cursor := plain.params.get("cursor", ""), str):
            return None
        try:
            catalogue, _ = await self._gateway.find_visible_catalogue(caller, plain.meta)
            result = self._encode_page(catalogue, cursor, plain.session)
        except (SlipsnisseError, ValueError):  # the SDK's own path says it in its own words
            return None
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (msgspec.json.encode(plain.id), result)

    def _encode_page(
        self, catalogue: Catalogue, cursor: str, session: HostSessionState | None
    ) -> bytes:
        if session is None:
            return catalogue.encode_page(cursor, legacy=False, extra=self._extra)
        version = session.version  # each knows other fields
        return catalogue.encode_page(
            cursor,
            legacy=True,
            extra={},
            wire=(version, partial(serialize_server_result, "tools/list", version)),
        )
