"""The answer of a lane to one request: one JSON body when the result comes first, else a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.streamable_http import REQUEST_CANCELLED

from mcpregistry.gateway.http.body import Plain, session_header
from mcpregistry.gateway.http.eventstream import PING, PING_SECONDS, STREAM, as_event
from mcpregistry.gateway.http.resuming import AFTER, Kept, answer_in
from mcpregistry.gateway.jsonrpc import encoded
from mcpregistry.gateway.progress import Progress

Send = Callable[[dict[str, Any]], Awaitable[None]]

_WATCH_AFTER = 0.1  # seconds; most calls are over by then and cost no watcher
_JSON = [(b"content-type", b"application/json")]


class Response:
    """Watches the host meanwhile: one of the modern era that leaves gives its call up, one of the
    older era does not."""

    def __init__(self, plain: Plain, receive: Any, send: Send) -> None:
        self.kept = (
            Kept(plain.session, plain.id, plain.method, plain.params.get("uri", ""))
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
        self._progress: Progress | None = None
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
        self._progress = Progress(self._send_progress) if self.reporting else None
        pulse = self._progress.run() if self._progress else self._ping()
        self._tasks = [
            asyncio.ensure_future(work) for work in (self._watch(), pulse, self._tell_id())
        ]

    async def _tell_id(self) -> None:
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
        await self._write(as_event(encoded(notice)))

    async def _write(self, data: bytes) -> None:
        if not self._streaming:
            self._streaming = True
            await self._send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [*STREAM, *session_header(self._plain)],
                }
            )
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, result: dict[str, Any]) -> None:
        """Send the last, or only, message. The call is over: a host that leaves now changes
        nothing."""
        await self._end({"result": result})

    async def cancelled(self) -> None:
        """The host gave the call up: the stream of the older era ends with an answer all the
        same."""
        await self._end({"error": {"code": REQUEST_CANCELLED, "message": "Request cancelled"}})

    async def _end(self, said: dict[str, Any]) -> None:
        self._unwatch()
        await self._flushed()
        message = encoded({"jsonrpc": "2.0", "id": self._plain.id} | said)
        line = await self.kept.answer(message) if self.kept is not None else b""
        if self._streaming:
            await self._send(
                {"type": "http.response.body", "body": line + as_event(message), "more_body": False}
            )
        else:
            headers = [
                *_JSON,
                (b"content-length", b"%d" % len(message)),
                *session_header(self._plain),
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": message})

    def passing_on(self) -> Send:
        """A ``send`` for whoever gives the answer instead: its one message ends our stream, if
        there is one."""
        self._unwatch()
        body: list[bytes] = []

        async def send(event: dict[str, Any]) -> None:
            await self._flushed()
            if not self._streaming:
                await self._send(event)
            elif self._plain.session is not None and event["type"] == "http.response.body":
                # The SDK answers the older era with a stream as well.
                if self.kept is not None and (message := answer_in(event.get("body", b""))):
                    event = event | {"body": await self.kept.answer(message) + event["body"]}
                await self._send(event)
            elif event["type"] == "http.response.body":
                body.append(event.get("body", b""))
                if not event.get("more_body"):
                    data = as_event(b"".join(body))
                    await self._send(
                        {"type": "http.response.body", "body": data, "more_body": False}
                    )

        return send

    async def _flushed(self) -> None:
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
