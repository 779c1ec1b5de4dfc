"""The lane for plain ``tools/call``, ``prompts/get`` and ``resources/read``: the same pipeline,
without the SDK's layers around it.

The SDK spends a task group, two streams and some models on each request, three times what the whole
pipeline costs. Here the request's own task runs the call. As with the SDK, the answer is one JSON
body unless the server reports progress or lets the host wait: then it becomes an event stream that
is kept alive, and a host that leaves cancels its call (MCP 2026-07-28, streamable HTTP). One of the
older era does not: it says so with a message of its own.

The lane decides nothing. What it does not fully understand, and what the pipeline would hold for a
person, goes to the SDK before anything of it is recorded. How a call ended that brought no plain
result (a refusal, a task, a server's question) is said by the SDK's way as well, which gets the
outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from mcp.server.connection import Connection
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import x_mcp_header_map
from mcp.types import SERVER_INFO_META_KEY
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from mcpregistry.calls.call import CallHost, CallOutcome, CallRequest, JudgedCall
from mcpregistry.calls.catalog import CatalogueEntry
from mcpregistry.domain.errors import NotFound, SlipsnisseError
from mcpregistry.domain.offer_kinds import KINDS, LOGGING, PROMPT, RESOURCE, TOOL
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.gateway.caller_identity import Caller, name_session
from mcpregistry.gateway.host_answers import (
    build_prompt_result,
    build_resource_result,
    build_tool_result,
)
from mcpregistry.gateway.host_questions import build_declared_host, read_agent_message
from mcpregistry.gateway.http.body import (
    CallerRequest,
    PlainRequest,
    parse_plain_request,
    read_small,
    replay_body,
)
from mcpregistry.gateway.http.response import CallResponse
from mcpregistry.gateway.server import (
    OUTCOME_KEY,
    Gateway,
    find_request_id,
    select_forwardable_meta,
)

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_NAMED = frozenset({"name", "arguments", "_meta"})
CALL_PARAMS = {
    "tools/call": _NAMED,
    "prompts/get": _NAMED,
    "resources/read": frozenset({"uri", "_meta"}),
}
_KIND_OF = {KINDS[kind].call: kind for kind in (TOOL, PROMPT, RESOURCE)}
# the last in bytes
_MOST_SCHEMAS = 10_000
_MOST_HOSTS = 1_000
_LONG_HOST = 4_096


def _can_send_more(entry: CatalogueEntry, host: CallHost) -> bool:
    """Whether the server may have lines of its log or a question for a host of the older era,
    before the answer: only the SDK's stream carries them there.
    """
    server = entry.offer.server
    return LOGGING in server.features or bool(host.forwarding.questions & server.questions)


class CallFastPath:
    """One of the door's lanes; ``sdk`` is the ASGI application that serves everything else."""

    def __init__(
        self, gateway: Gateway, sdk: Callable[[Caller, Scope, Any, Any], Awaitable[None]]
    ) -> None:
        self._gateway = gateway
        self._sdk = sdk
        self._stamp = {SERVER_INFO_META_KEY: gateway.server.server_info_stamp}
        self._mirrored: dict[str, bool] = {}
        self._hosts: dict[bytes, CallHost] = {}

    async def __call__(
        self, caller: Caller, headers: Mapping[str, str], scope: Scope, receive: Any, send: Send
    ) -> Any:
        """Answer and return None, or return a ``receive`` that gives the SDK the same body
        again."""
        body, whole = await read_small(receive)
        method = headers["mcp-method"]
        plain = parse_plain_request(method, CALL_PARAMS[method], headers, body) if whole else None
        if plain is not None and await self.serve(
            plain, CallerRequest(caller, scope, body, receive, send)
        ):
            return None
        return replay_body(body, whole, receive)

    async def serve(self, plain: PlainRequest, request: CallerRequest) -> bool:
        """Make the call and answer, in either era. False leaves it to the SDK, with nothing
        recorded."""
        response = CallResponse(plain, request.receive, request.send)
        judged = await self._judge_request(request.caller, plain, response)
        if judged is None:
            return False
        if response.kept is not None:
            response.kept.call_id = judged.call.id
        response.begin()
        try:
            outcome = await self._proceed(judged)
            if result := self._build_plain_result(plain, judged, outcome):
                await response.finish(result)
            else:
                told = request.scope | {OUTCOME_KEY: outcome}
                await self._sdk(
                    request.caller, told, request.make_receive(), response.make_sdk_send()
                )
        except asyncio.CancelledError:
            if response.given_up:
                await response.finish_cancelled()
            elif not response.left:
                raise
        finally:
            response.close()
        return True

    async def _proceed(self, judged: JudgedCall) -> CallOutcome:
        """The call's end, or the question that its server asks meanwhile: the SDK's way puts that
        to the host."""
        engine = self._gateway.engine
        call = judged.call
        request, live = (
            self._gateway.live.make_askable(call.request)
            if engine.can_server_ask(judged)
            else (call.request, None)
        )
        if live is None:
            return await engine.proceed(judged)
        call = replace(call, request=request)
        return await live.run(engine.proceed(replace(judged, call=call)))

    def _build_plain_result(
        self, plain: PlainRequest, judged: JudgedCall, outcome: CallOutcome
    ) -> dict[str, Any] | None:
        """The result object, if the server gave a plain one."""
        if outcome.result is None or outcome.result.get("resultType", "complete") != "complete":
            return None
        try:
            result = _build_result(plain, outcome)
        except MCPError:
            return None
        if plain.session is None:
            result["_meta"] = (result.get("_meta") or {}) | self._stamp
        return result

    async def _judge_request(
        self, caller: Caller, plain: PlainRequest, response: CallResponse
    ) -> JudgedCall | None:
        """The call as the pipeline judges it; None if it is not this lane's."""
        params = plain.params
        meta = plain.meta
        kind = _KIND_OF[plain.method]
        name = params.get("uri" if kind == RESOURCE else "name")
        arguments = params.get("arguments", {})
        if type(name) is not str or type(arguments) is not dict or LOG_LEVEL_META_KEY in meta:
            return None
        try:
            catalogue, conversation = await self._gateway.find_visible_catalogue(caller, meta)
            if kind == RESOURCE:
                catalogue, name, own = catalogue.find_reader(name)
                arguments = {"uri": own}
            else:
                catalogue = catalogue.get_kind(kind)
            entry = catalogue.find(name)
            if entry is None or (
                kind == TOOL
                and plain.session is None
                and arguments
                and self._has_mirrored_arguments(entry)
            ):
                return None
            host = self._read_host(plain, caller, response)
            host = host if kind == TOOL else host.drop_tasks()
            if plain.session is not None and _can_send_more(entry, host):
                return None
            request = CallRequest(
                catalogue=catalogue,
                name=name,
                arguments=arguments,
                origin=caller.origin,
                host_name=host.title,
                request_id=find_request_id(meta, plain.id),
                meta=select_forwardable_meta(meta),
                on_progress=response.report if host.progress else None,
                host=host,
                conversation=conversation,
                session=name_session(
                    caller, meta, conversation, plain.session.id if plain.session else None
                ),
            )
            judged = self._gateway.engine.judge(request)
        except SlipsnisseError:
            return None
        if judged.refusal is None:
            return judged if judged.call.decision.outcome is RuleOutcome.ALLOW else None
        return None if isinstance(judged.refusal, NotFound) else judged

    def _has_mirrored_arguments(self, entry: CatalogueEntry) -> bool:
        """Whether the tool wants arguments repeated in headers, which the SDK compares."""
        tool = entry.offer.tool
        found = self._mirrored.get(tool.definition_hash)
        if found is None:
            found = bool(x_mcp_header_map(tool.data.get("inputSchema")))
            _remember(self._mirrored, tool.definition_hash, found, _MOST_SCHEMAS)
        return found

    def _read_host(self, plain: PlainRequest, caller: Caller, response: CallResponse) -> CallHost:
        """Each host says the same with every request: read it once."""
        meta = plain.meta
        reports = "progressToken" in meta
        if plain.session is not None:
            return replace(
                plain.session.host,
                progress=reports,
                said=read_agent_message(meta),
                left=response.gone,
            )
        key = msgspec.json.encode((plain.client_info, plain.capabilities, reports))
        host = self._hosts.get(key)
        if host is None:
            sent = Connection.from_envelope(
                LATEST_MODERN_VERSION, plain.client_info, plain.capabilities
            )
            info = sent.client_params.client_info if sent.client_params else None
            found = build_declared_host(
                LATEST_MODERN_VERSION, info, sent.client_capabilities, caller.origin
            )
            host = replace(found, progress=reports)
            if len(key) <= _LONG_HOST:
                _remember(self._hosts, key, host, _MOST_HOSTS)
        said = read_agent_message(meta)
        return replace(host, said=said) if said else host


def _build_result(plain: PlainRequest, outcome: CallOutcome) -> dict[str, Any]:
    kind = _KIND_OF[plain.method]
    legacy = plain.session is not None
    if kind == PROMPT:
        return build_prompt_result(outcome, legacy=legacy)
    if kind == RESOURCE:
        return build_resource_result(outcome, plain.params["uri"], legacy=legacy)
    return build_tool_result(outcome, legacy=legacy)


def _remember(known: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    if len(known) >= most:
        known.clear()
    known[key] = value
