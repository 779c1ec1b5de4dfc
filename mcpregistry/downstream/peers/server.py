"""Takes calls from the other processes of the site, for the connections that this process owns.

A connection carries one call at a time. If it is closed, the call is cancelled. Only processes of
the site can connect (``sockets``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from mcpregistry.domain.calls.forwarding import HostUnansweredError
from mcpregistry.domain.errors import DownstreamError, SlipsnisseError
from mcpregistry.downstream.peers import connections
from mcpregistry.downstream.peers.frames import read_frame, write_frame
from mcpregistry.downstream.peers.messages import (
    RelayedCall,
    RelayedNotice,
    RelayedQuestion,
    RelayedRequest,
    RelayedWatch,
    RelayedWord,
    pack_error,
    pack_event,
)
from mcpregistry.downstream.peers.sockets import PeerAddress, listen
from mcpregistry.downstream.peers.tls_listener import TLSListener

log = structlog.get_logger(__name__)

MOST_BYTES = 64 * 1024 * 1024  # of one frame; the limits of the call's server are stricter
# bytes that another process has not read; beyond it, progress and log lines are left out
MOST_UNREAD = 1024 * 1024
IDLE_SECONDS = (
    4 * connections.IDLE_SECONDS
)  # the process that has connected closes it earlier, unless its machine is gone
Callbacks = Mapping[str, Any]
Watch = Callable[[RelayedWatch, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
AskHost = Callable[[RelayedQuestion], Awaitable[dict[str, Any] | None]]


class NotOwnerError(Exception):
    """This process does not have the session's connection any more."""


class Handlers(msgspec.Struct, frozen=True):
    """What a process does for the others. ``process`` is its name.

    ``owns``: whether it has the connection of this call, which it does not give up in the context
    of ``using``. ``perform`` makes the call there with the host's questions going to ``ask`` (None:
    it cannot be asked) and with the callbacks of ``ServerCall``.
    ``hear`` passes a word on to a host
    of this process. ``serve`` answers a request of a host, with ``receive`` and ``send`` of ASGI;
    None: this process serves no hosts over HTTP. ``watch`` serves a link for subscriptions until it
    ends, ``notify`` returns whether a notice was for a stream of this process, ``greet`` hears of a
    process that has started, ``end_session`` and ``tell_roots_changed`` are those of the pool, and
    ``ask_host`` returns the answer of a host whose stream this process has, or None. Raises
    Unanswered.
    """

    process: str
    owns: Callable[[RelayedCall], bool]
    perform: Callable[[RelayedCall, Any, Callbacks], Awaitable[dict[str, Any]]]
    hear: Callable[[RelayedWord], Awaitable[Any]]
    serve: Callable[[RelayedRequest, Any, Any], Awaitable[None]] | None = None
    watch: Watch | None = None
    notify: Callable[[RelayedNotice], Awaitable[bool]] | None = None
    greet: Callable[[], None] = lambda: None
    end_session: Callable[[str], None] = lambda _: None
    tell_roots_changed: Callable[[str], None] = lambda _: None
    ask_host: AskHost | None = None
    using: Callable[[RelayedCall], contextlib.AbstractContextManager[None]] = lambda _: (
        contextlib.nullcontext()
    )


class PeerServer:
    """Listens at an address until it is closed."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers
        self._server: asyncio.Server | TLSListener | None = None
        self._address = ""
        self._exchanges: set[asyncio.Task[None]] = set()

    async def start(self, place: Path | PeerAddress) -> str:
        """Listen here. Returns the address. A Unix socket of an earlier process is replaced. Raises
        OSError."""
        self._server, self._address = await listen(place, self._accept)
        return self._address

    async def close(self) -> None:
        """Stop listening, and cancel the calls of other processes."""
        if self._server is None:
            return
        self._server.close()
        if self._address.startswith("/"):
            await asyncio.to_thread(Path(self._address).unlink, missing_ok=True)
        for task in self._exchanges:
            task.cancel()
        await asyncio.gather(*self._exchanges, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_Exchange(self.handlers, reader, writer).run())
        self._exchanges.add(task)
        task.add_done_callback(self._exchanges.discard)


class _Exchange:
    """One connection of another process."""

    def __init__(
        self, handlers: Handlers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._handlers = handlers
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._has_asked = False  # then an answer may come after the call has ended

    async def run(self) -> None:
        try:
            while await self._handle(await self._next_frame()):
                await self._writer.drain()
        except (msgspec.MsgspecError, SlipsnisseError):
            log.exception("peer.unreadable")
        except (ConnectionError, ssl.SSLError):
            log.info("peer.left")
        finally:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                self._writer.close()
                await self._writer.wait_closed()

    async def _next_frame(self) -> Any:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                return await read_frame(self._reader, MOST_BYTES) or {}
        except TimeoutError:
            return {}

    async def _handle(self, frame: Mapping[str, Any]) -> bool:
        """Serve what this frame begins. Returns whether the connection can be used again."""
        if "call" in frame:
            return await self._take(msgspec.convert(frame["call"], RelayedCall))
        if (answer := await self._answer_frame(frame)) is not None:
            write_frame(self._writer, answer)
            return True
        if "request" in frame and self._handlers.serve is not None:
            await self._serve(
                msgspec.convert(frame["request"], RelayedRequest), self._handlers.serve
            )
        elif "watch" in frame and self._handlers.watch is not None:
            await self._watch(msgspec.convert(frame["watch"], RelayedWatch), self._handlers.watch)
        elif "hello" in frame:
            self._handlers.greet()
        return False

    async def _answer_frame(self, frame: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the frame that answers this one. None if it begins something longer."""
        handlers = self._handlers
        try:
            if "word" in frame:
                return {"result": await handlers.hear(msgspec.convert(frame["word"], RelayedWord))}
            if "notice" in frame:
                notice = msgspec.convert(frame["notice"], RelayedNotice)
                return {"sent": handlers.notify is not None and await handlers.notify(notice)}
            if "question" in frame:
                return await self._ask_host(msgspec.convert(frame["question"], RelayedQuestion))
        except HostUnansweredError as reason:
            return {"unanswered": str(reason)}
        for name, tell in (
            ("end_session", handlers.end_session),
            ("roots_changed", handlers.tell_roots_changed),
        ):
            if name in frame:
                tell(str(frame[name]))
                return {"done": True}
        return None

    async def _ask_host(self, question: RelayedQuestion) -> Mapping[str, Any]:
        ask_host = self._handlers.ask_host
        found = None if ask_host is None else await ask_host(question)
        return {"elsewhere": True} if found is None else {"result": found}

    async def _watch(self, watch: RelayedWatch, serve: Watch) -> None:
        if watch.session and watch.owner != self._handlers.process:
            write_frame(self._writer, {"other_process": True})
        else:
            await serve(watch, self._reader, self._writer)

    async def _serve(
        self, request: RelayedRequest, serve: Callable[[RelayedRequest, Any, Any], Awaitable[None]]
    ) -> None:
        """Answer a request. The other process closes the connection when its host has left."""
        given = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await self._reader.read()
            return {"type": "http.disconnect"}

        async def send(event: Mapping[str, Any]) -> None:
            write_frame(self._writer, {"event": pack_event(event)})
            await self._writer.drain()

        await serve(request, receive, send)

    async def _take(self, call: RelayedCall) -> bool:
        """Say whether the call is taken. Nothing of it is done before the other process has heard
        it, and so counts it as made."""
        if call.owner != self._handlers.process:
            write_frame(self._writer, {"other_process": True})
            return False
        if not self._handlers.owns(call):
            write_frame(self._writer, {"not_owner": True})
            return False
        write_frame(self._writer, {"taken": True})
        with self._handlers.using(call):
            if await read_frame(self._reader, MOST_BYTES) is None:
                return False
            return await self._answer(call)

    async def _answer(self, call: RelayedCall) -> bool:
        """Make the call and send its last frame. Nothing is read when that is sent: the next frame
        may begin another call."""
        working = asyncio.ensure_future(self._perform_call(call))
        listening = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
            is_done = working.done()
        finally:
            for task in (working, listening):
                task.cancel()
            await asyncio.gather(working, listening, return_exceptions=True)
        if is_done:
            write_frame(self._writer, working.result())
        return is_done and not self._has_asked

    async def _perform_call(self, call: RelayedCall) -> dict[str, Any]:
        """Return the last frame."""
        callbacks = {
            "on_sent": lambda: self._send_event(sent=True),
            "on_progress": (lambda *said: self._send_hint(progress=said))
            if call.wants_progress
            else None,
            "on_log": (lambda line: self._send_hint(log=dict(line))) if call.wants_log else None,
        }
        try:
            return {
                "result": await self._handlers.perform(
                    call, self._ask if call.host.can_ask else None, callbacks
                )
            }
        except SlipsnisseError as error:
            return {"error": pack_error(error)}
        except Exception:
            log.exception("peer.call_crashed", server=call.server)
            return {
                "error": pack_error(
                    DownstreamError("The call failed because of an internal error.", sent=True)
                )
            }

    def _send_event(self, **event: Any) -> None:
        if not self._writer.is_closing():
            write_frame(self._writer, event)

    def _send_hint(self, **event: Any) -> None:
        """Tell what may be left out if the other process hangs: a server can report progress
        without end."""
        if self._writer.transport.get_write_buffer_size() < MOST_UNREAD:
            self._send_event(**event)

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Put a question to the host by way of the other process. Raises Unanswered."""
        self._has_asked = True
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send_event(ask={"number": number, "method": method, "params": dict(params)})
        try:
            return await answer
        finally:
            del self._asked[number]

    async def _listen(self) -> None:
        """Take answers until the other process closes the connection."""
        while (frame := await read_frame(self._reader, MOST_BYTES)) is not None:
            said = frame.get("answer") or {}
            waiting = self._asked.get(said.get("number", 0))
            if waiting is None or waiting.done():
                continue
            if "unanswered" in said:
                waiting.set_exception(HostUnansweredError(said["unanswered"]))
            else:
                waiting.set_result(said["result"])
