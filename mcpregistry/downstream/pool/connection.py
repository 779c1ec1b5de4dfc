"""One connection to one server: handshake, staying, calls (what it offers: ``offers.py``). Owned by
one task.

``run`` is the body of the owner task: it enters and leaves the SDK's client there and nowhere else,
because a cancel scope must not cross tasks. Calls come from any other task of the same loop.
One deadline spans the whole of connecting. Whatever goes wrong leaves ``run`` as one typed error.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import msgspec
from mcp.client.client import Client
from mcp.client.extension import advertise
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    encode_header_value,
    mcp_param_headers,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    Implementation,
    RootsListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec.structs import replace

from mcpregistry.domain.calls.forwarding import APPS, Forwarding
from mcpregistry.domain.calls.pages import URL_ELICITATION_REQUIRED, list_elicitation_ids
from mcpregistry.domain.errors import DownstreamError, ProtocolError, TimedOut, ToolRefused
from mcpregistry.domain.offer_kinds import KINDS, READ, TOOL
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.domain.text.redaction import Redactor, redact_bytes
from mcpregistry.domain.version import VERSION
from mcpregistry.downstream.limits import (
    check_instructions,
    check_result,
    drop_private_meta,
)
from mcpregistry.downstream.pool.callers import Callers
from mcpregistry.downstream.pool.discovery import Discovery, Era
from mcpregistry.downstream.pool.failures import find_typed_error
from mcpregistry.downstream.pool.followers import follow_on
from mcpregistry.downstream.pool.handshakes import (
    OTHER,
    can_start_again,
    choose_first_mode,
    is_refusal,
)
from mcpregistry.downstream.pool.listing import CHANGES, build_description
from mcpregistry.downstream.pool.log_lines import LogLines
from mcpregistry.downstream.pool.offers import Offers
from mcpregistry.downstream.pool.resource_subscriptions import Watched
from mcpregistry.downstream.pool.server_notices import ServerNotices
from mcpregistry.downstream.pool.server_questions import Questions, answer_message
from mcpregistry.downstream.sdk_client import (
    CLIENT_NAME,
    WithoutRootChanges,
    build_request_meta,
)
from mcpregistry.downstream.server_call import ServerCall
from mcpregistry.downstream.transports.channel_registry import make_channel
from mcpregistry.downstream.transports.server_request import ServerRequest
from mcpregistry.downstream.transports.wire import ServerChannel

PROBE_SECONDS = 10.0


async def open_connection(
    target: ServerTarget,
    on_tools_changed: Callable[[Discovery], None],
    *,
    bears: frozenset[str] | None = None,
    apps: Mapping[str, Any] | None = None,
) -> ServerConnection:
    """A connection for the target, not connected yet: its owner task does that in ``run``.

    ``bears``: the kinds of questions that its only host can bear; None: hosts of all kinds share
    it. ``apps``: what that host says of the pages that it can show.
    """
    return ServerConnection(target, await make_channel(target), on_tools_changed, bears, apps)


class ServerConnection:
    """A live connection. ``discovery`` is set once ``wait_ready`` has returned."""

    def __init__(
        self,
        target: ServerTarget,
        channel: ServerChannel,
        on_tools_changed: Callable[[Discovery], None],
        bears: frozenset[str] | None = None,
        apps: Mapping[str, Any] | None = None,
    ) -> None:
        self._apps = apps
        self.target = target
        self.in_flight = 0
        self.offers = Offers(target, self.ask, on_tools_changed)
        self._channel = channel
        self._mode = choose_first_mode(target)
        self._modern = False
        self._client: Client | None = None  # after the handshake
        self.redactor = Redactor(target.secrets)
        self.watched = Watched()  # of the pool's, where it is one of its connections
        self.is_main = True  # it is kept while something is watched
        self._callers = Callers(shared=bears is None)
        self.logs = LogLines(self.redactor, self._callers, target.slug)
        self._questions = Questions(target.slug, self.redactor, self._callers)
        self._notices = ServerNotices(self.logs, self._questions.completions)
        self._use_channel(channel)
        self._declares = target.questions if bears is None else target.questions & bears
        self._stamp: dict[str, Any] = {}
        self.last_used = time.monotonic()
        self._stopping = False
        self._wake = asyncio.Event()
        self._suspicion = asyncio.Event()
        self._ready = asyncio.Event()
        self._connecting = anyio.CancelScope()

    def _use_channel(self, channel: ServerChannel) -> None:
        channel.on_tools_changed = self.offers.mark_changed
        channel.logs = self.logs
        channel.on_notice = self._notices.handle_notice
        self._channel = channel

    @property
    def discovery(self) -> Discovery | None:
        return self.offers.discovery

    @property
    def pid(self) -> int | None:
        return self._channel.pid

    @property
    def era(self) -> Era | None:
        return self.discovery.era if self.discovery else None

    @property
    def usable(self) -> bool:
        return self._ready.is_set() and not self.ended

    @property
    def ended(self) -> bool:
        """It is closing or lost: no call can use it any more."""
        return self._stopping or (self._ready.is_set() and self._channel.lost.is_set())

    @property
    def handshake(self) -> str:
        """The era to begin with the next time: the one that worked; if none did, the one that was
        not tried."""
        if self.era:
            return self.era
        return "" if self._mode == "legacy" else "legacy"

    def read_stderr_tail(self) -> bytes:
        """The end of the server's log, without the values that its environment gave it."""
        return redact_bytes(self._channel.read_stderr_tail(), self.target.env.values())

    def introduce(self, caller: str, host: Forwarding) -> None:
        """A call of this host opens the connection, and waits for it. To be said before ``run``."""
        self._callers.note(caller, host)
        self._questions.set_opener(host)

    async def notify_roots_changed(self, caller: str) -> None:
        """Tell an older server that the folders of its only host have changed; nothing if it is not
        this host. Never raises."""
        if (
            self._client is not None
            and self.usable
            and not self._modern
            and self._callers.is_only(caller)
        ):
            await self._client.session.send_notification(RootsListChangedNotification())

    def stop(self) -> None:
        """Ask the owner to leave. Idempotent, returns at once; closing itself is never cut
        short."""
        self._stopping = True
        self._wake.set()
        if not self._ready.is_set():
            self._connecting.cancel()

    # -- the owner task -----------------------------------------------------------------------

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Connect, stay until stopped or idle, close. Raises DownstreamError on any failure."""
        try:
            await self._run(on_ready)
        except Exception as error:
            failure = self._channel.error if self._ready.is_set() else None
            failure = failure or find_typed_error(error, self._channel.error)
            failure.message = self.redactor.text(failure.message)
            raise failure from error

    async def _run(self, on_ready: Callable[[], None]) -> None:
        limits = self.target.limits
        started = time.monotonic()
        with self._connecting as whole:
            whole.deadline = anyio.current_time() + limits.connect_timeout
            async with contextlib.AsyncExitStack() as stack:
                client = await self._open(stack)
                self._client = client
                await self._greet(client, started)
                whole.deadline = math.inf
                self._ready.set()
                on_ready()
                async with anyio.create_task_group() as group:
                    for work in (self._watch_wire, self._watch_pulse, self.offers.refresh):
                        group.start_soon(work)
                    group.start_soon(self.offers.listen, client)
                    group.start_soon(
                        partial(
                            follow_on,
                            self,
                            client,
                            self.watched,
                            self._modern,
                            is_main=self.is_main,
                        )
                    )
                    await self._stay()
                    group.cancel_scope.cancel()
        if whole.cancelled_caught and not self._stopping:
            raise TimedOut(
                f"The server was not ready within {limits.connect_timeout:g} s.",
                remedy="Read the log of the server. On the page of the server, you can also raise “Connect timeout”, or set “Protocol” to “2025-11-25 and earlier”.",
            )

    async def _open(self, stack: contextlib.AsyncExitStack) -> Client:
        """The SDK's client after its handshake; a local server that refused it is started again for
        the other one."""
        try:
            return await stack.enter_async_context(self._make_client())
        except Exception as error:
            if not can_start_again(self.target) or not is_refusal(error, self._channel.error):
                raise
        self._mode = OTHER[self._mode]
        self._use_channel(await make_channel(self.target))
        return await stack.enter_async_context(self._make_client())

    def _make_client(self) -> Client:
        kind = Client if self._callers.exclusive else WithoutRootChanges
        return kind(
            self._channel,
            mode=self._mode,
            read_timeout_seconds=self.target.limits.connect_timeout,
            cache=None,
            message_handler=self._on_message,
            extensions=() if self._apps is None else [advertise(APPS, dict(self._apps))],
            client_info=Implementation(name=CLIENT_NAME, version=VERSION),
            **self._questions.make_callbacks(self._declares),
        )

    async def _greet(self, client: Client, started: float) -> None:
        """Note what was negotiated and read the tools."""
        self._modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        if self._modern:
            self._stamp = build_request_meta(client.protocol_version, self._apps)
        else:
            self._notices.watched = self.watched
        self._channel.note_protocol_version(client.protocol_version, modern=self._modern)
        connected = time.monotonic()
        greeted = Discovery(
            tools=(),
            problems=(),
            era="modern" if self._modern else "legacy",
            protocol_version=client.protocol_version,
            timings={"connect": (connected - started) * 1000},
            **await self._describe(client),
        )
        check_instructions(greeted.instructions, self.target.limits)
        await self.offers.begin(greeted)

    async def _describe(self, client: Client) -> dict[str, Any]:
        if self.target.protocol == "modern":  # a pinned version is adopted without asking: ask now
            raw = await self.ask("server/discover", {})
            meta = raw.get("_meta")
            info = (
                meta.get("io.modelcontextprotocol/serverInfo") if isinstance(meta, dict) else None
            )
            return build_description(raw.get("instructions"), info, raw.get("capabilities"))
        info = client.server_info
        return build_description(
            client.instructions,
            info.model_dump(by_alias=True, mode="json", exclude_none=True) if info else None,
            client.server_capabilities.model_dump(by_alias=True, mode="json", exclude_none=True),
        )

    async def _stay(self) -> None:
        while not self._stopping:
            if self._channel.error is not None:
                raise self._channel.error
            left = self._compute_idle_seconds()
            if left <= 0:
                self._stopping = True
                return
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if left < math.inf else None):
                    await self._wake.wait()

    def _compute_idle_seconds(self) -> float:
        idle = self.target.limits.idle_timeout
        if self.target.connect != "lazy" or not idle:
            return math.inf
        return (
            idle
            if self.in_flight or (self.is_main and self.watched)
            else self.last_used + idle - time.monotonic()
        )

    async def _watch_wire(self) -> None:
        await self._channel.lost.wait()
        self._wake.set()

    async def _watch_pulse(self) -> None:
        """After a call that timed out, see whether the server still lives; if not, drop it."""
        while True:
            await self._suspicion.wait()
            self._suspicion.clear()
            try:
                await self.ping()
            except TimedOut:
                self._channel.fail(
                    TimedOut("The server stopped answering and was disconnected.", sent=True)
                )
            except DownstreamError:
                continue

    async def _on_message(self, message: object) -> None:
        if isinstance(message, CHANGES):
            self.offers.mark_changed()
        else:
            self._notices.handle_typed_notice(message)

    # -- requests from other tasks --------------------------------------------------------------

    async def call(self, call: ServerCall) -> dict[str, Any]:
        """Make the call on this connection; its arguments are checked. Returns the raw result;
        raises DownstreamError."""
        self._callers.note(call.caller, call.host)
        request = await self._build_call_request(call)
        try:
            result = await (
                self._request(request)
                if self._modern
                else self._request_with_questions(request, call)
            )
        except TimedOut:
            self._suspicion.set()
            raise
        except ToolRefused as error:
            if error.rpc_code == URL_ELICITATION_REQUIRED:
                self._questions.completions.expect(
                    list_elicitation_ids(error.data), call.caller, call.host.channel
                )
            raise
        return check_result(
            result, self.target.limits, call.kind, request.params.get("uri", call.name)
        )

    async def _build_call_request(self, call: ServerCall) -> ServerRequest:
        host = call.host
        name = call.name
        arguments = msgspec.Raw(call.arguments)
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        if call.kind in READ:
            params = msgspec.json.decode(arguments)
            name = params["uri"]
        if self._modern:
            params |= host.answers
        level = (
            await self.logs.request_level(host.log_level, self.discovery, self.ask)
            if host.log_level
            else {}
        )
        meta = {**drop_private_meta(call.meta), **self._build_meta(host.capabilities), **level}
        if meta:
            params["_meta"] = meta
        return ServerRequest(
            method=KINDS[call.kind].call,
            params=params,
            timeout=call.timeout,
            on_progress=call.on_progress,
            on_sent=call.on_sent,
            on_log=call.on_log,
            max_bytes=call.max_result_bytes,
            headers=self._build_call_headers(call.kind, name, arguments),
        )

    async def _request_with_questions(
        self, request: ServerRequest, call: ServerCall
    ) -> dict[str, Any]:
        """In the older era the server asks its questions while the call waits."""
        with self._questions.track_call(call.host, call.caller) as questions:
            asked = replace(
                request,
                on_question=partial(answer_message, call=questions),
                patience=questions.patience,
            )
            return await self._request(asked)

    async def request_task(
        self,
        method: str,
        task_id: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None,
        host: Forwarding,
    ) -> dict[str, Any]:
        """One ``tasks/*`` request about a task that the server made for us. Raises
        DownstreamError."""
        if not self._modern:
            message = "The server now uses an older protocol version, which does not support tasks."
            raise ProtocolError(message, remedy="Make the call again without a task.", sent=True)
        whole = {"taskId": task_id, **params, "_meta": self._build_meta(host.capabilities)}
        headers = {MCP_METHOD_HEADER: method, MCP_NAME_HEADER: encode_header_value(task_id)}
        return await self._request(
            ServerRequest(method=method, params=whole, timeout=timeout, headers=headers)
        )

    def _build_meta(self, capabilities: Mapping[str, Any]) -> dict[str, Any]:
        """Said anew with each request (MCP 2026-07-28): what the caller of this one can bear, never
        another's."""
        if not capabilities or not self._stamp:
            return self._stamp
        return self._stamp | {CLIENT_CAPABILITIES_META_KEY: dict(capabilities)}

    def _build_call_headers(
        self, kind: str, name: str, arguments: msgspec.Raw
    ) -> dict[str, str] | None:
        if not self._modern or self.target.transport != "http":
            return None
        headers = {MCP_METHOD_HEADER: KINDS[kind].call, MCP_NAME_HEADER: encode_header_value(name)}
        if kind == TOOL and (header_map := self.offers.header_maps.get(name)):
            headers.update(mcp_param_headers(header_map, msgspec.json.decode(arguments)))
        return headers

    async def ping(self, timeout: float = PROBE_SECONDS) -> None:
        """Whether the server answers at all. Raises DownstreamError; any answer is good."""
        with contextlib.suppress(ToolRefused):
            await self.ask("server/discover" if self._modern else "ping", {}, timeout=timeout)

    async def ask(
        self, method: str, params: dict[str, Any], timeout: float | None = None
    ) -> dict[str, Any]:
        """One request of another method than ``tools/call``. Raises DownstreamError."""
        headers = {MCP_METHOD_HEADER: method} if self._modern else None
        whole = {**params, "_meta": self._stamp} if self._stamp else params
        timeout = timeout or self.target.limits.request_timeout or None
        return await self._request(
            ServerRequest(method=method, params=whole, timeout=timeout, headers=headers)
        )

    async def _request(self, request: ServerRequest) -> dict[str, Any]:
        self.in_flight += 1
        self.logs.begin(request.on_log)
        try:
            return await self._channel.request(request)
        finally:
            self.logs.end(request.on_log)
            self.in_flight -= 1
            self.last_used = time.monotonic()
