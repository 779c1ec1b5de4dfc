"""The lanes for hosts of the older era: their session is looked up, then plain requests go the way
of the modern ones.

Its transports may be in another process, and need not be in any: what a call wants to know of its
host stands in the session. An answer is one JSON body, or a stream where the server reports
progress or lets the host wait; the SDK always answers with a stream, which costs it three tasks.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from django.db import Error
from mcp.types import INTERNAL_ERROR

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.http import question_ids
from mcpregistry.gateway.http.body import (
    CallerRequest,
    PlainRequest,
    decode_usual_request,
    parse_session_request,
    read_small,
    replay_body,
)
from mcpregistry.gateway.http.fastpath.calls import CALL_PARAMS, CallFastPath
from mcpregistry.gateway.http.fastpath.tool_list import LIST_PARAMS, ListFastPath
from mcpregistry.gateway.http.open_request_ids import OpenRequestIds
from mcpregistry.gateway.http.session_cache import CANCELLED, HostSessionCache, HostSessionState
from mcpregistry.gateway.http.session_manager import (
    SessionManager,
    answer_accepted,
    find_cancelled_request,
)
from mcpregistry.gateway.jsonrpc import find_message_error, make_error_reply, send_reply

# among the calls of the agent with this slug. Raises SlipsnisseError
Count = Callable[[str], Awaitable[None]]
_MOST_ANSWERED = 1_000
# Each cancellation of a request that this process does not have is a row until another process
# takes it. Processes look within seconds, so a cancellation that none has taken after this time
# names a request that none has.
_CANCELLED_SECONDS = 60.0
_LONGEST_ID = 200  # characters of a request whose cancellation is remembered here
_KNOWN = (*CALL_PARAMS, "tools/list", CANCELLED, None)  # the last is an answer to a question


class SessionFastPath:
    """One of the door's lanes, for every POST that names a session."""

    def __init__(
        self,
        sessions: HostSessionCache,
        manager: SessionManager,
        lanes: tuple[CallFastPath, ListFastPath],
        unanswered: OpenRequestIds,
        count: Count,
    ) -> None:
        self._sessions = sessions
        self._manager = manager
        self._calls, self._lists = lanes
        self._unanswered = unanswered
        self._count = count

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
        message = decode_usual_request(headers, body) if whole else None
        if type(message) is dict and message.get("method") in _KNOWN:
            request = CallerRequest(caller, scope, body, receive, send)
            session = await self._sessions.find(headers["mcp-session-id"], caller)
            if session is not None and await self._take_request(request, session, message):
                return None
        return replay_body(body, whole, receive)

    async def _take_request(
        self, request: CallerRequest, session: HostSessionState, message: dict[str, Any]
    ) -> bool:
        method = message.get("method")
        if method == "tools/list":
            plain = parse_session_request(message, request.body, LIST_PARAMS, session)
            return plain is not None and await self._lists.serve(
                request.caller, plain, request.send
            )
        if method in CALL_PARAMS:
            plain = parse_session_request(message, request.body, CALL_PARAMS[method], session)
            return plain is not None and await self._serve_call(plain, session, request)
        return find_message_error(request.body) is None and await self._handle_other_message(
            session, message, request.send
        )

    async def _serve_call(
        self, plain: PlainRequest, session: HostSessionState, request: CallerRequest
    ) -> bool:
        with self._unanswered.reserve_id(session.id, plain.id, request.send) as (refusal, send):
            if refusal is not None:
                await send_reply(send, 400, refusal)
                return True
            # The answer of an earlier request with this id may have been read before that request
            # has left.
            if plain.id in session.calls:
                return False
            with self._sessions.keep_alive(session.id):
                return await self._calls.serve(plain, request._replace(send=send))

    async def _handle_other_message(
        self, session: HostSessionState, message: dict[str, Any], send: Any
    ) -> bool:
        """What concerns a request of this process goes to the SDK, unless a lane has it. What may
        concern one of another process goes there; anything else is dropped, as the SDK does it with
        answers that are late.
        """
        if "method" in message and (give_up := session.calls.get(find_cancelled_request(message))):
            give_up()
        elif self._manager.is_for_this_process(session, message):
            return False
        elif (for_others := _reduce_for_others(session, message)) is not None:
            with suppress(SlipsnisseError):  # a call must be stopped however many were made
                await self._count(session.agent)
            try:
                await self._send_on(session, for_others)
            except Error:
                refusal = make_error_reply(
                    None,
                    INTERNAL_ERROR,
                    f"{error_texts.DATABASE_UNAVAILABLE} Send the message again in a moment.",
                )
                await send_reply(send, 503, refusal)
                return True
        await answer_accepted(202, session.id, send)
        return True

    async def _send_on(self, session: HostSessionState, message: dict[str, Any]) -> None:
        """Send it to the other processes and remember that. Raises a database error, or Busy if too
        many messages wait."""
        if "method" not in message:
            await self._sessions.send_on(session.id, message)
            session.answered.add(message["id"])
            return
        request = find_cancelled_request(message)
        await self._forget_earlier(session, request)
        key = await self._sessions.send_on(session.id, message)
        if len(str(request)) <= _LONGEST_ID:
            session.cancelled[request] = (key, time.monotonic())

    async def _forget_earlier(self, session: HostSessionState, request: int | str) -> None:
        """Delete the messages about cancelled requests that no process has, and an earlier one
        about this request."""
        since = time.monotonic() - _CANCELLED_SECONDS
        old = {
            each: key
            for each, (key, at) in session.cancelled.items()
            if at <= since or each == request
        }
        if old:
            await self._sessions.forget([*old.values()])
            session.cancelled = {
                each: sent for each, sent in session.cancelled.items() if each not in old
            }


def _reduce_for_others(session: HostSessionState, message: dict[str, Any]) -> dict[str, Any] | None:
    """What another process needs of it: an answer to a question that this site has asked in the
    session, once; or which request is cancelled. None if no process can have a use for it.
    """
    if "method" in message:
        request = find_cancelled_request(message)
        if request is None:
            return None
        return {"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": request}}
    question = question_ids.parse_question_id(session.id, message["id"])
    if question is None or question in session.answered:
        return None
    if len(session.answered) >= _MOST_ANSWERED:
        session.answered.clear()
    return message | {"id": question}
