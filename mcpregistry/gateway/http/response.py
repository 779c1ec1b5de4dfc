"""The answer of a lane to one request: one JSON body when the result comes first, else a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.streamable_http import REQUEST_CANCELLED

from mcpregistry.gateway.http.answer_resumption import AFTER, ResumableAnswer, find_answer
from mcpregistry.gateway.http.body import PlainRequest, build_session_header
from mcpregistry.gateway.http.eventstream import PING, PING_SECONDS, STREAM, format_event
from mcpregistry.gateway.jsonrpc import encode_message
from mcpregistry.gateway.progress import HostProgress

Send = Callable[[dict[str, Any]], Awaitable[None]]

_WATCH_AFTER = 0.1  # seconds; most calls are over by then and cost no watcher
_JSON = [(b"content-type", b"application/json")]


class CallResponse:
    """Watches the host meanwhile: one of the modern era that leaves gives its call up, one of the
    older era does not."""

    def __init__(self, plain: PlainRequest, receive: Any, send: Send) -> None:
        self.kept = (
            ResumableAnswer(plain.session, plain.id, plain.method, plain.params.get("uri", ""))
            if plain.session
            else None
        )
        self._plain = plain
        self._receive = receive
        self._send = send
        self._token = plain.meta.get("progressToken")
        self.reporting = self._token is not None
        self.left = False  # the host is gone
        self.given_up = False  # by a word of the host, as in the older era
        # set when its connection is, in the older era
        self.gone = asyncio.Event() if plain.session else None
        self._progress: HostProgress | None = None
        self._streaming = False
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """This very task makes the call; look at the host once that has taken a moment."""
        self._serving = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER, self._attend)
        if self._plain.session:
            self._plain.session.calls[self._plain.id] = self.give_up

    def give_up(self) -> None:
        """The host has sent word that it does not want the answer any more."""
        self.given_up = True
        if self._serving:
            self._serving.cancel()

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """The server's progress: from the first on, the answer is a stream."""
        # the call goes on without this request, which was answered with its server's question
        if self._closed:
            return
        self._attend()
        if self._progress is not None:
            self._progress(progress, total, message)

    def _attend(self) -> None:
        """This call takes a while: watch the host, and do not let it wait in silence."""
        if self._tasks:
            return
        self._progress = HostProgress(self._send_progress) if self.reporting else None
        pulse = self._progress.run() if self._progress else self._ping()
        self._tasks = [
            asyncio.ensure_future(work) for work in (self._watch(), pulse, self._send_event_id())
        ]

    async def _send_event_id(self) -> None:
        """A host of the older era can read the answer on elsewhere, should its connection break."""
        if self.kept is None:
            return
        await asyncio.sleep(AFTER - _WATCH_AFTER)
        if event := await self.kept.begin():
            await self._write(event)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        if self.gone is not None:
            self.gone.set()
        elif self._serving:
            self._serving.cancel()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            await self._write(PING)

    async def _send_progress(
        self, progress: float, total: float | None, message: str | None
    ) -> None:
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        params |= {} if total is None else {"total": total}
        params |= {} if message is None else {"message": message}
        notice = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        await self._write(format_event(encode_message(notice)))

    async def _write(self, data: bytes) -> None:
        if not self._streaming:
            self._streaming = True
            await self._send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [*STREAM, *build_session_header(self._plain)],
                }
            )
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, result: dict[str, Any]) -> None:
        """Send the last, or only, message. The call is over: a host that leaves now changes
        nothing."""
        await self._end({"result": result})

    async def finish_cancelled(self) -> None:
        """The host gave the call up: the stream of the older era ends with an answer all the
        same."""
        await self._end({"error": {"code": REQUEST_CANCELLED, "message": "Request cancelled"}})

    async def _end(self, said: dict[str, Any]) -> None:
        self._unwatch()
        await self._flush_progress()
        message = encode_message({"jsonrpc": "2.0", "id": self._plain.id} | said)
        line = await self.kept.store_answer(message) if self.kept is not None else b""
        if self._streaming:
            await self._send(
                {
                    "type": "http.response.body",
                    "body": line + format_event(message),
                    "more_body": False,
                }
            )
        else:
            headers = [
                *_JSON,
                (b"content-length", b"%d" % len(message)),
                *build_session_header(self._plain),
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": message})

    def make_sdk_send(self) -> Send:
        """A ``send`` for whoever gives the answer instead: its one message ends our stream, if
        there is one."""
        self._unwatch()
        body: list[bytes] = []

        async def send(event: dict[str, Any]) -> None:
            await self._flush_progress()
            if not self._streaming:
                await self._send(event)
            elif self._plain.session is not None and event["type"] == "http.response.body":
                # The SDK answers the older era with a stream as well.
                if self.kept is not None and (message := find_answer(event.get("body", b""))):
                    event = event | {"body": await self.kept.store_answer(message) + event["body"]}
                await self._send(event)
            elif event["type"] == "http.response.body":
                body.append(event.get("body", b""))
                if not event.get("more_body"):
                    data = format_event(b"".join(body))
                    await self._send(
                        {"type": "http.response.body", "body": data, "more_body": False}
                    )

        return send

    async def _flush_progress(self) -> None:
        if self._progress is not None:
            await self._progress.flush()

    def close(self) -> None:
        """No more is heard of the host."""
        self._closed = True
        if self._plain.session:
            self._plain.session.calls.pop(self._plain.id, None)
        self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _unwatch(self) -> None:
        self._timer.cancel()
        for task in self._tasks[:1]:
            task.cancel()
        if self.kept is not None and not self.kept.begun:
            for task in self._tasks[2:]:
                task.cancel()
