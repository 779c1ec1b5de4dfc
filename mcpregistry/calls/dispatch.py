"""The way of a call to its server: through the pool, and a task that the server makes of it is adopted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcpregistry.calls.call import Call
from mcpregistry.calls.lending import note_links
from mcpregistry.calls.remote_tasks.adoption import Adoption, check_kind, forwarding_of
from mcpregistry.domain.apps import without_pages
from mcpregistry.domain.servers.sessions import session_key
from mcpregistry.downstream.pool.pool import Pool


class DownstreamDispatcher:
    """Sends a call to the server that owns the tool."""

    def __init__(self, pool: Pool, adoption: Adoption) -> None:
        self._pool, self._adoption = pool, adoption

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        """Send the call through the pool. Returns the server's result; of a task, our handle for it."""
        offer, request, forwarding = call.entry.offer, call.request, forwarding_of(call)
        result = await self._pool.call(
            offer.server.id,
            offer.tool.name,
            call.arguments_json.encode(),
            meta=dict(request.meta) or None,
            timeout=offer.server.request_timeout,
            on_progress=request.on_progress,
            on_log=request.on_log,
            on_sent=on_sent,
            revision=offer.server.revision,
            definition=offer.tool.definition_hash,
            max_result_bytes=offer.server.max_message_bytes,
            idempotent=offer.tool.idempotent,
            host=forwarding,
            kind=offer.tool.kind,
            session=session_key(offer.server.shared_by, request.catalogue.agent.slug, request.session),
            asks=request.host.forwarding.allowing(offer.server.questions).questions,
            by=(offer.by.kind, offer.by.name) if offer.by else None,
        )
        check_kind(result, forwarding)
        if not offer.server.mcp_apps:
            result = without_pages(result)
        if result.get("resultType") == "task":
            return {"resultType": "task", "taskId": await self._adoption(call, result, forwarding)}
        await note_links(call, result)
        return result
