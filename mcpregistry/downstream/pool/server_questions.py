"""Questions of a server of the older era, which come while its call waits: to the host that made
that call, or declined.

A question belongs to a call if it came on that call's own stream (streamable HTTP), or if exactly
one call is out on the connection and all calls on it were made by one host. If that host has
several calls out, it is asked during one of them. Otherwise the question may belong to another
call, also to one that has ended, and it is declined, in words. A question for roots that comes
outside of calls goes to the host that has the connection for itself. Only a host that has declared
that it can bear such a question is asked, and while it is, the call's time stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
)
from pydantic import BaseModel

from mcpregistry.domain.calls.forwarding import (
    NOTHING,
    QUESTIONS,
    Forwarding,
    HostUnansweredError,
    attribute_question,
    can_ask_host,
)
from mcpregistry.domain.text.redaction import Redactor
from mcpregistry.downstream.pool.callers import Callers
from mcpregistry.downstream.pool.elicitation_pages import ElicitationPages
from mcpregistry.downstream.pool.redact import remove_secrets
from mcpregistry.downstream.transports.server_request import PausableClock

log = structlog.get_logger(__name__)

DECLINED = -32600  # JSON-RPC: the request cannot be served; the text says why
_NOBODY = "No call to this server is in progress, so no host can be asked."
_WHOSE = (
    "Several hosts can use this connection, so it is not known which of them to ask. "
    "Set “Shared by” of the server to one agent or one host session."
)
_CANNOT = "The host that made this call cannot answer this request."
_OVER = "The call has ended."
_MANY = "The server has asked the host too many questions during this call."
_MOST_OUTSIDE = 20  # questions between two calls
# questions of one call: while one is open its time stands still, so a server could go on for ever
_MOST = 100


def _expect_none(_: list[str]) -> None:
    return


class CallOverError(HostUnansweredError):
    """The call ended before its host had answered."""


class CallQuestions:
    """What one call that is out may be asked. ``patience`` stops its clock meanwhile."""

    def __init__(
        self,
        server: str,
        host: Forwarding,
        redactor: Redactor,
        expect: Callable[[list[str]], None] = _expect_none,
    ) -> None:
        self._expect = expect
        self.patience = PausableClock()
        self._server = server
        self._host = host
        self._redactor = redactor
        self._open: set[asyncio.Task[dict[str, Any]]] = set()
        self._count = 0
        self._closed = False

    def can_ask(self, method: str, params: Mapping[str, Any]) -> bool:
        """Whether its host may be asked this: it has declared so, and no person has approved the
        call as it is."""
        return self._host.ask is not None and can_ask_host(self._host.capabilities, method, params)

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The host's result. Raises Unanswered, and CallOverError once the call has ended."""
        if self._host.ask is None or not self.can_ask(method, params):
            raise HostUnansweredError(_CANNOT)
        self._count += 1
        if self._count > _MOST:
            raise HostUnansweredError(_MANY)
        if isinstance(page := params.get("elicitationId"), str):
            self._expect([page])
        shown, _ = await remove_secrets({"method": method, "params": dict(params)}, self._redactor)
        # it has ended since the question came: its host waits for its result, not for this
        if self._closed:
            raise CallOverError(_OVER)
        asked = attribute_question(shown, self._server)
        asking = asyncio.ensure_future(self._host.ask(method, asked["params"]))
        self._open.add(asking)
        try:
            with self.patience.pause_clock():
                await asyncio.wait({asking})
        finally:
            self._open.discard(asking)
            asking.cancel()
        if asking.cancelled():
            raise CallOverError(_OVER)
        return asking.result()

    def close(self) -> None:
        """The call is over: whoever is still asked need not answer any more."""
        self._closed = True
        for asking in self._open:
            asking.cancel()


class Questions:
    """The calls that are out on one connection, and the questions that come meanwhile."""

    def __init__(self, server: str, redactor: Redactor, callers: Callers | None = None) -> None:
        self._server = server
        self._redactor = redactor
        self._callers = callers or Callers()
        self.completions = ElicitationPages()
        self._outside = 0  # questions since the last call
        self._opener = NOTHING  # the host whose call opens the connection, until that call is out
        self._calls: list[CallQuestions] = []  # the oldest first

    @contextlib.contextmanager
    def track_call(self, host: Forwarding, caller: str = "") -> Iterator[CallQuestions]:
        """Around one call of this host; ``caller`` is its session."""
        self._opener = NOTHING
        self._outside = 0

        def expect(ids: list[str]) -> None:
            self.completions.expect(ids, caller, host.channel)

        call = CallQuestions(self._server, host, self._redactor, expect)
        self._calls.append(call)
        try:
            yield call
        finally:
            self._calls.remove(call)
            call.close()

    async def answer_question(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question that came on no call's own stream. Raises Unanswered."""
        if not self._calls:
            return await self._ask_outside(method, params)
        if self._callers.several or (len(self._calls) > 1 and not self._callers.alone):
            raise HostUnansweredError(_WHOSE)
        return await self._ask_host(method, params)

    def set_opener(self, host: Forwarding) -> None:
        """The connection is opened by a call of this host, which waits for it."""
        self._opener = host

    async def _ask_outside(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Many servers ask for roots as soon as they are connected. Other questions belong to
        calls."""
        host = self._opener if self._opener.ask is not None else self._callers.host
        self._outside += 1
        allowed = (
            method == "roots/list" and self._callers.exclusive and self._outside <= _MOST_OUTSIDE
        )
        if not allowed or not can_ask_host(host.capabilities, method, params):
            raise HostUnansweredError(_NOBODY)
        if host is self._opener and host.ask is not None:
            return await host.ask(method, params)
        if host.channel is None:
            raise HostUnansweredError(_NOBODY)
        return await host.channel.ask(method, params)

    async def _ask_host(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the one host during its newest call. If that call ends before the host has answered,
        during another one.

        Any of its calls may be the one that asks. So all of them must be allowed to ask, and the
        clocks of all are stopped.
        """
        calls = list(self._calls)
        if not all(call.can_ask(method, params) for call in calls):
            raise HostUnansweredError(_CANNOT)
        with contextlib.ExitStack() as stopped:
            for call in calls:
                stopped.enter_context(call.patience.pause_clock())
            for call in reversed(calls):
                with contextlib.suppress(CallOverError):
                    return await call.answer(method, params)
        raise HostUnansweredError(_OVER)

    def make_callbacks(self, kinds: frozenset[str]) -> dict[str, Any]:
        """For the SDK's client: it declares what has a callback, and hands on what the server
        asks."""
        found = {
            "elicitation": self._answer_elicitation,
            "sampling": self._answer_sampling,
            "roots": self._answer_roots,
        }
        names = {
            "elicitation": "elicitation_callback",
            "sampling": "sampling_callback",
            "roots": "list_roots_callback",
        }
        return {names[kind]: found[kind] for kind in kinds}

    async def _answer_elicitation(
        self, _: Any, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        return await self._answer_typed("elicitation/create", params, ElicitResult)

    async def _answer_sampling(
        self, _: Any, params: CreateMessageRequestParams
    ) -> CreateMessageResult | CreateMessageResultWithTools | ErrorData:
        kind = CreateMessageResultWithTools if params.tools else CreateMessageResult
        return await self._answer_typed("sampling/createMessage", params, kind)

    async def _answer_roots(self, _: Any) -> ListRootsResult | ErrorData:
        return await self._answer_typed("roots/list", None, ListRootsResult)

    async def _answer_typed(self, method: str, params: BaseModel | None, kind: type[Any]) -> Any:
        said = params.model_dump(by_alias=True, mode="json", exclude_none=True) if params else {}
        try:
            return kind.model_validate(await self.answer_question(method, said), by_name=False)
        except HostUnansweredError as reason:
            return ErrorData(code=DECLINED, message=str(reason))
        except ValueError:
            return ErrorData(
                code=DECLINED, message="The host's answer does not match the question."
            )


async def answer_message(message: Mapping[str, Any], call: CallQuestions | None) -> dict[str, Any]:
    """The JSON-RPC answer to what a server asks on the stream of ``call``. A ping is answered by
    ourselves."""
    head = {"jsonrpc": "2.0", "id": message["id"]}
    method = message["method"]
    params = message.get("params")
    if method == "ping":
        return {**head, "result": {}}
    if method not in QUESTIONS or call is None:
        return {
            **head,
            "error": {"code": -32601, "message": "This client does not support the method."},
        }
    try:
        return {
            **head,
            "result": await call.answer(method, params if isinstance(params, dict) else {}),
        }
    except HostUnansweredError as reason:
        return {**head, "error": {"code": DECLINED, "message": str(reason)}}
