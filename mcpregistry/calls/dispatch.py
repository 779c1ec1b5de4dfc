"""The way of a call to its server: through the pool, and a task that the server makes of it is
adopted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcpregistry.calls import sampling
from mcpregistry.calls.call import Call
from mcpregistry.calls.connection_placement import Placement
from mcpregistry.calls.linked_resources import note_links
from mcpregistry.calls.remote_tasks.adoption import Adoption, check_result_kind, choose_forwarding
from mcpregistry.calls.sampling import Sampler
from mcpregistry.domain.apps import remove_embedded_pages
from mcpregistry.domain.calls.forwarding import Forwarding, HostUnansweredError
from mcpregistry.domain.calls.pages import URL_ELICITATION_REQUIRED, explain_needed_page
from mcpregistry.domain.errors import InputNeeded, ToolRefused
from mcpregistry.domain.servers.sessions import make_host_session_key, make_session_key
from mcpregistry.downstream.server_call import ServerCall


class DownstreamDispatcher:
    """Sends a call to the server that owns the tool."""

    def __init__(
        self, placement: Placement, adoption: Adoption, sampler: Sampler | None = None
    ) -> None:
        self._placement = placement
        self._adoption = adoption
        self._sampler = sampler

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        """Send the call through the pool. Returns the server's result; of a task, our handle for
        it."""
        forwarding = choose_forwarding(call)
        try:
            return await self._send_and_check(call, forwarding, on_sent)
        except ToolRefused as error:
            if error.rpc_code != URL_ELICITATION_REQUIRED:
                raise
            server = call.entry.offer.server
            raise explain_needed_page(
                error,
                server.slug,
                allowed="elicitation" in server.questions,
                capabilities=forwarding.capabilities,
            ) from None

    async def _send_and_check(
        self, call: Call, forwarding: Forwarding, on_sent: Callable[[], None]
    ) -> dict[str, Any]:
        if self._sampler is not None and sampling.is_answered_here(call):
            asking = sampling.Sampling(call, self._sampler, forwarding)
            result = await self._answer_with_own_model(asking, call, on_sent)
            # a question to a model that stands beside others is not the host's either
            check_result_kind(result, asking.left)
        else:
            result = await self._send_call(call, forwarding, on_sent)
            check_result_kind(result, forwarding)
        if not call.entry.offer.server.mcp_apps:
            result = remove_embedded_pages(result)
        if result.get("resultType") == "task":
            return {"resultType": "task", "taskId": await self._adoption(call, result, forwarding)}
        await note_links(call, result)
        return result

    async def _answer_with_own_model(
        self, asking: sampling.Sampling, call: Call, on_sent: Callable[[], None]
    ) -> dict[str, Any]:
        """A modern server that asks for a model is called again with the answer, in the same call:
        one record."""
        result = await self._send_call(call, asking.forwarding, on_sent)
        try:
            while (again := await asking.answer_requests(result)) is not None:
                result = await self._send_call(call, again, on_sent)
        except HostUnansweredError as reason:
            raise InputNeeded(
                f"The server sent a sampling request that was not answered. {reason}",
                remedy="On the page of the server, an operator can choose an expert tool that answers sampling requests.",
            ) from None
        return result

    async def _send_call(
        self, call: Call, forwarding: Forwarding, on_sent: Callable[[], None]
    ) -> dict[str, Any]:
        offer = call.entry.offer
        request = call.request
        asks = request.host.forwarding.allow_questions(offer.server.questions).questions
        server_call = ServerCall(
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
            session=make_session_key(
                offer.server.shared_by, request.catalogue.agent.slug, request.session
            ),
            caller=make_host_session_key(request.catalogue.agent.slug, request.session),
            asks=asks | {sampling.SAMPLING} if offer.server.sampling_expert else asks,
            granted_by=(offer.by.kind, offer.by.name) if offer.by else None,
        )
        return await self._placement.call(server_call)
