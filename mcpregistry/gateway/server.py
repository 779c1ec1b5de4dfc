"""The MCP server that hosts talk to, on the SDK's low-level server: one for all endpoints.

Handlers translate and nothing more: lists come from the catalogue, calls go to the engine. No
exception's text may leave here (the SDK's older era would put it on the wire).

Of a host's ``_meta`` only the W3C trace context goes on to servers. The rest stays here: hosts put
session, thread and user ids there, which are nobody else's business, and ``baggage`` may hold
anything.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import structlog
from mcp import types as t
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcpregistry.calls.call import CallOutcome, CallRequest, OnProgress
from mcpregistry.calls.catalog import Catalogue, CatalogueEntry
from mcpregistry.calls.completion import TypedArgument
from mcpregistry.calls.conversations import narrow_to_conversation
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.linked_resources import find_linked_resource
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import (
    ArgumentsInvalid,
    Conflict,
    NotFound,
    SlipsnisseError,
    ToolRefused,
)
from mcpregistry.domain.offer_kinds import KINDS, LOGGING, PROMPT, RESOURCE, TEMPLATE, TOOL
from mcpregistry.domain.servers.sessions import make_host_session_key
from mcpregistry.domain.version import VERSION
from mcpregistry.gateway.caller_identity import (
    Caller,
    find_caller,
    find_mcp_session,
    name_session,
    redirect_to_process,
)
from mcpregistry.gateway.conversations import find_conversation
from mcpregistry.gateway.host_answers import (
    build_prompt_result,
    build_resource_result,
    build_tool_result,
)
from mcpregistry.gateway.host_channels import HostChannels
from mcpregistry.gateway.host_introduction import build_introduction
from mcpregistry.gateway.host_log_lines import HostLogLevels, HostLogLines, pass_lines
from mcpregistry.gateway.host_questions import (
    build_host_question,
    find_waiting_call,
    make_state_boundary,
    read_host,
    run_rounds,
)
from mcpregistry.gateway.list_notifications import ListChanges
from mcpregistry.gateway.live_calls import LiveCalls
from mcpregistry.gateway.progress import pass_progress
from mcpregistry.gateway.sdk.requests import get_connection
from mcpregistry.gateway.subscriptions import JoinedBus, Subscriptions, make_subscriber
from mcpregistry.gateway.tasks.task_handlers import Tasks, find_task_id
from mcpregistry.gateway.tasks.task_streams import TaskStreams
from mcpregistry.ids import make_ordered_id

log = structlog.get_logger(__name__)

OUTCOME_KEY = "slipsnisse.outcome"  # in a request's scope
# there too: what to call with the id of the call that is made of the request
CALL_ID_KEY = "slipsnisse.call_id"
NAME = "slipsnisse"
# A second: hosts that listen are told of changes, the others ask again soon enough. Never public:
# what an agent sees depends on what it is granted.
LIST_EXTRA: Mapping[str, Any] = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "private"}

Context = ServerRequestContext[Any, Any]

# W3C Trace Context
_TRACE = ("traceparent", "tracestate")
_TRACE_LENGTH = 512
_PLACEHOLDERS: Mapping[str, Mapping[str, Any]] = {
    TOOL: {"resultType": "complete", "content": []},
    PROMPT: {"resultType": "complete", "messages": []},
    RESOURCE: {"resultType": "complete", "contents": []},
}
_CALLS = frozenset(kind.call for kind in KINDS.values())

# The answer of the call being served, on its way around the SDK's models.
_answer: ContextVar[dict[str, Any]] = ContextVar("answer")
# The caller of the HTTP request being served: the SDK checks Mcp-Param headers before any handler.
current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)


class GatewayServer(Server[Any]):
    """Says ``listChanged: true`` in every handshake; the SDK's HTTP manager would leave it
    false."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *args: Any, **kwargs: Any
    ) -> InitializationOptions:
        """As in the SDK, but saying that the lists may change."""
        options = notification_options or NotificationOptions(
            tools_changed=True, prompts_changed=True, resources_changed=True
        )
        return super().create_initialization_options(options, *args, **kwargs)


class Gateway:
    """The handlers, bound to an engine. ``caller`` is fixed for stdio and None behind the HTTP
    door."""

    def __init__(self, engine: Engine, *, caller: Caller | None = None) -> None:
        self.engine = engine
        self.changes = ListChanges(engine)
        self.live = LiveCalls()
        self.tasks = Tasks(engine, caller)
        self.levels = HostLogLevels()
        self.subscriptions = Subscriptions(engine)
        self.channels = HostChannels(self.levels)
        self._task_streams = TaskStreams(self.tasks, engine.feed)
        self.changes.closing.append(self._task_streams.close)
        self._caller = caller
        # Awaited with every handshake before it is answered: the HTTP door writes the session down.
        self.began: Callable[[Context, Caller, HandlerResult], Awaitable[None]] | None = None
        self.server = self._build_server()

    def get_catalogue(self, caller: Caller) -> Catalogue:
        """The catalogue of this caller. Raises NotFound when its agent or endpoint is gone."""
        return self.engine.get_catalogue(caller.endpoint, caller.agent)

    async def find_visible_catalogue(
        self, caller: Caller, meta: Mapping[str, Any]
    ) -> tuple[Catalogue, str]:
        """The catalogue as this very request may see it, and the conversation that it names, if
        any.

        Raises as ``get_catalogue``, and as ``calls.conversations.narrow_to_conversation`` for a
        conversation that takes no requests.
        """
        conversation = find_conversation(caller, meta)
        return await narrow_to_conversation(self.get_catalogue(caller), conversation), conversation

    def _build_server(self) -> GatewayServer:
        server = GatewayServer(
            NAME,
            version=VERSION,
            title="Slipsnisse",
            get_tool_input_schema=self._find_input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscriptions_listen=self._listen,
            on_completion=self._complete,
        )
        self.tasks.install(server)
        server.add_request_handler(
            "logging/setLevel", t.SetLevelRequestParams, self.levels.set_level
        )
        server.add_request_handler("resources/subscribe", t.SubscribeRequestParams, self._subscribe)
        server.add_request_handler(
            "resources/unsubscribe", t.UnsubscribeRequestParams, self._unsubscribe
        )
        server.add_notification_handler(
            "notifications/initialized", t.NotificationParams, self._note_initialized
        )
        server.add_notification_handler(
            "notifications/roots/list_changed", t.NotificationParams, self._handle_roots_changed
        )
        if importlib.util.find_spec("opentelemetry.sdk") is None:
            # tracing without an exporter costs a tenth of a call and shows nothing
            server.middleware.clear()
        server.middleware += [self._guard, make_state_boundary(self._caller), self._restore_answer]
        return server

    async def _guard(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Outermost around every message: our refusals become protocol errors, all else becomes
        silence."""
        try:
            result = await call_next(ctx)
            if ctx.method == "initialize" and self.began is not None:
                await self.began(ctx, self._find_caller(ctx), result)
        except MCPError:
            raise
        except SlipsnisseError as error:
            theirs = isinstance(error, NotFound | ArgumentsInvalid | Conflict)
            code = t.INVALID_PARAMS if theirs else t.INTERNAL_ERROR
            raise MCPError(code, str(error), {"code": error.code}) from None
        except ValueError as error:
            if type(error).__module__.startswith("pydantic"):
                raise MCPError(
                    t.INVALID_PARAMS, "The request's parameters are not valid."
                ) from None
            raise self._log_crash(ctx) from None
        except Exception:  # noqa: BLE001 - logged there
            raise self._log_crash(ctx) from None
        if ctx.method in {"initialize", "server/discover"}:
            return self._add_introduction(ctx, result)
        return result

    @staticmethod
    def _log_crash(ctx: Context) -> MCPError:
        log.exception("gateway.crashed", method=ctx.method)
        return MCPError(t.INTERNAL_ERROR, f"Internal error. {error_texts.ASK_OPERATOR}")

    def _add_introduction(self, ctx: Context, result: HandlerResult) -> HandlerResult:
        """Add what belongs to the endpoint, not to the one server behind all of them."""
        return build_introduction(result, *self._read_introduction(self._find_caller(ctx)))

    def _read_introduction(self, caller: Caller) -> tuple[frozenset[str], str]:
        """What servers have besides lists, and the instructions."""
        try:
            catalogue = self.get_catalogue(caller)
            return catalogue.collect_features(), catalogue.merge_instructions()
        except NotFound:
            # nobody's opening, kept for hosts to come; or agent or endpoint is gone, as requests
            # will say
            return frozenset(), ""
        except Exception:  # an opening says less, and the requests that follow say why
            log.exception("gateway.opening_incomplete")
            return frozenset(), ""

    async def _list_tools(self, ctx: Context, params: t.PaginatedRequestParams | None) -> Any:
        return await self._list(ctx, params, TOOL)

    async def _list_prompts(self, ctx: Context, params: t.PaginatedRequestParams | None) -> Any:
        return await self._list(ctx, params, PROMPT)

    async def _list_resources(self, ctx: Context, params: t.PaginatedRequestParams | None) -> Any:
        return await self._list(ctx, params, RESOURCE)

    async def _list_templates(self, ctx: Context, params: t.PaginatedRequestParams | None) -> Any:
        return await self._list(ctx, params, TEMPLATE)

    async def _list(self, ctx: Context, params: t.PaginatedRequestParams | None, kind: str) -> Any:
        catalogue, _ = await self.find_visible_catalogue(self._find_caller(ctx), ctx.meta or {})
        try:
            found, after = catalogue.get_kind(kind).list_page(
                params.cursor if params else None, legacy=is_legacy(ctx)
            )
        except ValueError as error:
            raise MCPError(t.INVALID_PARAMS, str(error)) from None
        return {KINDS[kind].listed: found, **LIST_EXTRA} | ({"nextCursor": after} if after else {})

    async def _call_tool(self, ctx: Context, params: t.CallToolRequestParams) -> Any:
        return await self._make_call(ctx, TOOL, params.name, params.arguments or {})

    async def _get_prompt(self, ctx: Context, params: t.GetPromptRequestParams) -> Any:
        return await self._make_call(ctx, PROMPT, params.name, params.arguments or {})

    async def _read_resource(self, ctx: Context, params: t.ReadResourceRequestParams) -> Any:
        return await self._make_call(ctx, RESOURCE, str(params.uri), {})

    async def _make_call(
        self, ctx: Context, kind: str, name: str, arguments: Mapping[str, Any]
    ) -> Any:
        """Make the call. ``name`` of a resource is the URI as hosts know it."""
        caller = self._find_caller(ctx)
        asked = name
        catalogue, conversation = await self.find_visible_catalogue(caller, ctx.meta or {})
        if kind == RESOURCE:
            found, name, own = catalogue.find_reader(name)
            catalogue = (
                found if found.find(name) else await find_linked_resource(catalogue, name) or found
            )
            arguments = {"uri": own}
        catalogue = catalogue if kind == RESOURCE else catalogue.get_kind(kind)
        host = self.channels.attach_channel(ctx, await read_host(ctx, caller))
        if kind != TOOL:
            host = host.drop_tasks()  # MCP has them for calls of tools alone
        level = self.levels.find_wanted_level(ctx)
        entry = catalogue.find(name)
        async with (
            self._open_progress(ctx) as on_progress,
            _open_log_lines(ctx, level, entry) as on_log,
        ):
            request = CallRequest(
                catalogue=catalogue,
                name=name,
                arguments=arguments,
                origin=caller.origin,
                host_name=host.title,
                request_id=find_request_id(ctx.meta or {}, ctx.request_id),
                meta=select_forwardable_meta(ctx.meta or {}),
                on_progress=on_progress,
                on_log=on_log,
                host=host.set_log_level(level),
                conversation=conversation,
                call_id=_make_call_id(ctx),
                session=name_session(caller, ctx.meta or {}, conversation, find_mcp_session(ctx)),
            )
            outcome = _read_outcome(ctx) or await self._run_call(request, ctx)
        _answer.set(
            await self._build_answer(outcome, entry, caller, kind, asked, legacy=is_legacy(ctx))
        )
        return _PLACEHOLDERS[kind]

    async def _run_call(self, request: CallRequest, ctx: Context) -> CallOutcome:
        """The call's end. A server's questions go to the host: in rounds of its own, or as our
        requests meanwhile."""
        params = ctx.params or {}
        nonce, address = find_waiting_call(params)
        if nonce:
            if address != self.engine.placement.address:
                redirect_to_process(ctx, address)
            return await self.live.continue_call(nonce, request, params.get("inputResponses"))
        request, live = self.live.make_askable(request)
        if live is not None:
            return await live.run(self.engine.call(request))
        outcome = await self.engine.call(request)
        return (
            await run_rounds(self.engine, request, outcome)
            if request.host.forwarding.ask is not None
            else outcome
        )

    async def _build_answer(
        self,
        outcome: CallOutcome,
        entry: CatalogueEntry | None,
        caller: Caller,
        kind: str,
        asked: str,
        *,
        legacy: bool,
    ) -> dict[str, Any]:
        if task_id := find_task_id(outcome):
            return await self.tasks.build_handle(task_id, caller)
        if question := build_host_question(outcome, entry, self.engine.placement.address):
            return question
        if kind == PROMPT:
            return build_prompt_result(outcome, legacy=legacy)
        if kind == RESOURCE:
            return build_resource_result(outcome, asked, legacy=legacy)
        return build_tool_result(
            outcome, legacy=legacy, typed=entry is not None and "outputSchema" in entry.listing
        )

    async def _restore_answer(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """What a server answered goes out as it came: the SDK's models would drop what they do not
        know."""
        result = await call_next(ctx)
        if ctx.method not in _CALLS or not isinstance(result, dict):
            return result
        answer = _answer.get()
        meta = (answer.get("_meta") or {}) | (result.get("_meta") or {})  # the latter: our name tag
        return answer | {"_meta": meta} if meta else answer

    @staticmethod
    def _open_progress(ctx: Context) -> AbstractAsyncContextManager[OnProgress | None]:
        """Pass progress on to a host that asked for it."""
        if not ctx.meta or ctx.meta.get("progress_token") is None:
            return nullcontext()
        return pass_progress(ctx.session.report_progress)

    async def _complete(self, ctx: Context, params: t.CompleteRequestParams) -> Any:
        caller = self._find_caller(ctx)
        ref = params.ref
        catalogue, _ = await self.find_visible_catalogue(caller, ctx.meta or {})
        self.engine.check_open()
        said = ctx.session.client_params
        typed = TypedArgument(
            kind=PROMPT if isinstance(ref, t.PromptReference) else TEMPLATE,
            name=ref.name if isinstance(ref, t.PromptReference) else str(ref.uri),
            argument=params.argument.name,
            value=params.argument.value,
            known=(params.context.arguments if params.context else None) or {},
            host=said.client_info.name if said else "",
            origin=caller.origin,
        )
        try:
            completion = await self.engine.completions(catalogue, typed)
        except ToolRefused as error:
            raise MCPError(error.rpc_code, error.message, error.data) from None
        return {"resultType": "complete", "completion": completion}

    async def _listen(self, ctx: Context, params: t.SubscriptionsListenRequestParams) -> Any:
        caller = self._find_caller(ctx)
        asked = params.notifications
        if not asked.resource_subscriptions:
            return await self._serve_stream(ctx, caller, params, None)
        catalogue, conversation = await self.find_visible_catalogue(caller, ctx.meta or {})
        watching = self.subscriptions.open_stream(
            make_subscriber(ctx, caller, conversation, self.channels),
            catalogue,
            map(str, asked.resource_subscriptions),
            self.changes.get_bus(caller),
        )
        async with watching as (taken, bus):
            honoured = asked.model_copy(update={"resource_subscriptions": taken})
            return await self._serve_stream(
                ctx, caller, params.model_copy(update={"notifications": honoured}), bus
            )

    async def _serve_stream(
        self,
        ctx: Context,
        caller: Caller,
        params: t.SubscriptionsListenRequestParams,
        bus: JoinedBus | None,
    ) -> Any:
        if "taskIds" in (params.notifications.model_extra or {}):
            return await self._task_streams.listen(
                caller, ctx, params, bus or self.changes.get_bus(caller)
            )
        return await self.changes.listen(caller, ctx, params, bus)

    async def _subscribe(self, ctx: Context, params: t.SubscribeRequestParams) -> Any:
        caller = self._find_caller(ctx)
        catalogue, conversation = await self.find_visible_catalogue(caller, ctx.meta or {})
        who = make_subscriber(ctx, caller, conversation, self.channels)
        return await self.subscriptions.subscribe(ctx, who, catalogue, str(params.uri))

    async def _unsubscribe(self, ctx: Context, params: t.UnsubscribeRequestParams) -> Any:
        return await self.subscriptions.unsubscribe(ctx, str(params.uri))

    async def _note_initialized(self, ctx: Context, params: t.NotificationParams | None) -> None:
        self.changes.remember(self._find_caller(ctx), get_connection(ctx))

    async def _handle_roots_changed(
        self, ctx: Context, params: t.NotificationParams | None
    ) -> None:
        caller = self._find_caller(ctx)
        session = name_session(caller, {}, own=find_mcp_session(ctx))
        await self.engine.placement.notify_roots_changed(
            make_host_session_key(caller.agent, session)
        )

    def _find_input_schema(self, name: str) -> Mapping[str, Any] | None:
        """For the SDK's check of ``Mcp-Param-*`` headers, as the caller of this request sees the
        tool."""
        caller = current_caller.get()
        entry = self.get_catalogue(caller).find(name) if caller else None
        return entry.listing["inputSchema"] if entry else None

    def _find_caller(self, ctx: Context) -> Caller:
        return find_caller(ctx, self._caller)


def is_legacy(ctx: Context) -> bool:
    """Whether the request came in the era of the handshake (2025-11-25 and older)."""
    return ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS


def _open_log_lines(
    ctx: Context, level: str, entry: CatalogueEntry | None
) -> AbstractAsyncContextManager[HostLogLines | None]:
    """Pass the log lines of its server on to a host that wants them."""
    if not level or entry is None or entry.offer.own or LOGGING not in entry.offer.server.features:
        return nullcontext()
    return pass_lines(ctx, level, entry.offer.server.slug)


def _read_outcome(ctx: Context) -> CallOutcome | None:
    """How the call ended, if a lane has made it already and leaves the answer to us."""
    return ctx.request.scope.get(OUTCOME_KEY) if ctx.request is not None else None


def _make_call_id(ctx: Context) -> str:
    """An id for the call, if the door wants to find it again; else "" and the pipeline makes
    one."""
    tell = ctx.request.scope.get(CALL_ID_KEY) if ctx.request is not None else None
    if tell is None:
        return ""
    tell(call_id := make_ordered_id())
    return call_id


def find_request_id(meta: Mapping[str, Any], rpc_id: int | str | None) -> str:
    """What ties this call to the host's own log: its tool-use id where it sends one."""
    for key in ("claudecode/toolUseId", "callId"):
        if isinstance(meta.get(key), str):
            return str(meta[key])
    return str(rpc_id or "")


def select_forwardable_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The host's ``_meta`` as far as a server may see it."""
    return {
        key: meta[key]
        for key in _TRACE
        if isinstance(meta.get(key), str) and len(meta[key]) <= _TRACE_LENGTH
    }
