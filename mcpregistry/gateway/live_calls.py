"""Calls of modern hosts that wait, out at a server of the older era, for the host's answer to the
server's question.

The server asks on its connection and waits; the host (MCP 2026-07-28) is answered
``input_required`` and brings the answer with its call repeated. Between the two the call goes on in
a task of its own here: one call, one record. A host that does not come back within ``PATIENCE`` has
not answered; what its call comes to is in the record all the same. The waiting call lives in this
process: another one passes the answer on to it (``http/request_relay.py``).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from mcp import types as t
from mcp.shared.exceptions import MCPError

from mcpregistry.calls.call import CallOutcome, CallRequest, OnLog, OnProgress
from mcpregistry.domain.calls.forwarding import HostUnansweredError
from mcpregistry.domain.calls.outcome_texts import LOOK_FIRST
from mcpregistry.domain.lifecycle import InvocationState

PATIENCE = 300.0  # seconds in which a host has to answer a server's question
NO_ANSWER = "The host did not answer in time."
_KEPT = 200  # log lines that come while no request of the host is here to take them
_GONE = (
    "The call that asked this question no longer waits for an answer: it took too long, or its process has ended. "
    + LOOK_FIRST
)


class LiveCall:
    """One call and what is asked meanwhile."""

    def __init__(self, waiting: dict[str, LiveCall]) -> None:
        self._waiting = waiting
        self._nonce = ""
        self._asked: dict[str, tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        self._shown: set[str] = set()  # the questions that the host was last sent
        self._count = 0
        self._silent = False  # the host has not come back once: it is not waited for again
        self._news = asyncio.Event()
        self._on_log: OnLog | None = None
        self._on_progress: OnProgress | None = None
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=_KEPT)
        self._task: asyncio.Task[CallOutcome]

    def attach_request(self, on_log: OnLog | None, on_progress: OnProgress | None) -> None:
        """The request of the host that is here now: what the server says meanwhile goes with its
        answer."""
        self._on_log = on_log
        self._on_progress = on_progress
        while on_log is not None and self._lines:
            on_log(self._lines.popleft())

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of the server; kept for the next request where none is here."""
        if self._on_log is not None:
            self._on_log(line)
        else:
            self._lines.append(line)

    def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """The server's progress; nobody's where no request is here."""
        if self._on_progress is not None:
            self._on_progress(progress, total, message)

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The host's answer, which its next request brings. Raises Unanswered."""
        if self._silent:
            raise HostUnansweredError(NO_ANSWER)
        self._count += 1
        key = f"question{self._count}"
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[key] = ({"method": method, "params": dict(params)}, future)
        self._news.set()
        try:
            async with asyncio.timeout(PATIENCE):
                return await future
        except TimeoutError:
            self._silent |= key in self._shown
            raise HostUnansweredError(NO_ANSWER) from None
        finally:
            del self._asked[key]
            if not self._asked:
                self._waiting.pop(self._nonce, None)

    async def run(self, work: Coroutine[Any, Any, CallOutcome]) -> CallOutcome:
        """Make the call. Its end, or its first question as an outcome whose result is
        ``input_required``."""
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(_ignore_error)
        return await self._wait_for_next()

    async def answer_questions(self, answers: Mapping[str, Any]) -> CallOutcome:
        """With the host's answers: the end, or the next question. A question left out is not
        answered; one that came since then has not been put to it yet.
        """
        for key, (_, future) in list(self._asked.items()):
            answer = answers.get(key)
            if future.done() or key not in self._shown:
                continue
            if isinstance(answer, dict):
                future.set_result(answer)
            else:
                future.set_exception(HostUnansweredError(NO_ANSWER))
        return await self._wait_for_next()

    async def _wait_for_next(self) -> CallOutcome:
        while not self._task.done():
            self._news.clear()
            if requests := {
                key: request for key, (request, future) in self._asked.items() if not future.done()
            }:
                return self._make_question_outcome(requests)
            await self._wait_for_news()
        return self._task.result()

    async def _wait_for_news(self) -> None:
        """Until the call has ended or a question has come, which may be withdrawn by the time that
        we look."""
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({self._task, news}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        finally:
            news.cancel()

    def _make_question_outcome(self, requests: Mapping[str, Any]) -> CallOutcome:
        self.attach_request(None, None)
        self._nonce = secrets.token_hex(16)
        self._shown = set(requests)
        self._waiting[self._nonce] = self
        return CallOutcome(
            "",
            InvocationState.DISPATCHED,
            {"resultType": "input_required", "inputRequests": requests},
            live=self._nonce,
        )


class LiveCalls:
    """All of them in this process."""

    def __init__(self) -> None:
        self._waiting: dict[str, LiveCall] = {}

    def make_askable(self, request: CallRequest) -> tuple[CallRequest, LiveCall | None]:
        """The request as its host can be asked during its call, and that call; None: it can bear no
        question, or not in rounds.
        """
        host = request.host
        if not host.mrtr or not host.forwarding.questions:
            return request, None
        call = LiveCall(self._waiting)
        call.attach_request(request.on_log, request.on_progress)
        opened = replace(
            request,
            host=replace(host, forwarding=replace(host.forwarding, ask=call.ask)),
            on_log=call.log if request.on_log else None,
            on_progress=call.report_progress if request.on_progress else None,
        )
        return opened, call

    async def continue_call(self, nonce: str, request: CallRequest, answers: object) -> CallOutcome:
        """The call that waits under this nonce, which is good for once; it is heard by ``request``
        from now on. Raises MCPError -32602 if there is none.
        """
        call = self._waiting.pop(nonce, None)
        if call is None:
            raise MCPError(t.INVALID_PARAMS, _GONE, {"reason": "invalid_request_state"})
        call.attach_request(request.on_log, request.on_progress)
        return await call.answer_questions(answers if isinstance(answers, dict) else {})


def _ignore_error(task: asyncio.Task[CallOutcome]) -> None:
    if not task.cancelled():
        task.exception()  # of a call whose host never came back nobody else asks
