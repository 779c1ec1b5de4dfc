"""The stdio server of ``runmcp``: one host, one pipe, lines handed over by ``preload``."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import structlog
from mcp import types as t
from mcp.server.runner import serve_dual_era_loop, serve_loop

from mcpregistry.calls.engine import Engine, set_current_engine
from mcpregistry.domain.definitions.naming import UNSHORTENED, list_long_names
from mcpregistry.garbage_collection import settle, share_heaps
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.message_streams import open_streams
from mcpregistry.gateway.server import Gateway
from mcpregistry.gateway.stdio.kept_answers import StoredAnswer
from mcpregistry.gateway.stdio.preload import ACKNOWLEDGED, SUBSCRIPTION, Preload

if TYPE_CHECKING:  # it brings the formats of files along
    from mcpregistry.gateway.stdio.project_follower import ProjectFollower

log = structlog.get_logger(__name__)

_LAST_WORDS = 2.0  # seconds for a host to read what is left


async def serve_stdio(
    preload: Preload, caller: Caller, *, era: str, project: ProjectFollower | None = None
) -> None:
    """Serve one host until it closes stdin or we are told to stop. ``era`` is auto or legacy."""
    share_heaps()
    engine = Engine("runmcp")
    await engine.start()
    set_current_engine(engine)
    gateway = Gateway(engine, caller=caller)
    gateway.changes.start()
    _warn_of_long_names(gateway, caller)
    loop = asyncio.get_running_loop()
    mouth = _LineWriter(preload.write, loop)
    serving = asyncio.ensure_future(_serve(gateway, preload, mouth, caller, era))
    following = asyncio.ensure_future(project.run(engine)) if project else None
    settle()

    def stop() -> None:
        mouth.finish()
        serving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await asyncio.wait([serving])
        if not serving.cancelled() and (error := serving.exception()):
            raise error
    finally:
        if following:
            following.cancel()
        gateway.changes.close()
        set_current_engine(None)
        await engine.stop()


def _warn_of_long_names(gateway: Gateway, caller: Caller) -> None:
    if names := list_long_names(gateway.get_catalogue(caller).entries):
        log.warning(
            "endpoint.long_names",
            hint=f"Some hosts shorten names of more than {UNSHORTENED} characters. Choose shorter names for the servers, or the plain naming style.",
            names=names[:10],
            count=len(names),
        )


async def _serve(
    gateway: Gateway, preload: Preload, mouth: _LineWriter, caller: Caller, era: str
) -> None:
    options = gateway.server.create_initialization_options()
    async with _open_streams(preload, mouth, _MessageEncoder(gateway, preload, caller)) as (
        incoming,
        outgoing,
    ):
        if era == "legacy":
            # For hosts that probe the new era and then send `initialize` on the same pipe.
            await serve_loop(
                gateway.server, incoming, outgoing, lifespan_state={}, init_options=options
            )
        else:
            await serve_dual_era_loop(
                gateway.server, incoming, outgoing, lifespan_state={}, init_options=options
            )


@asynccontextmanager
async def _open_streams(
    preload: Preload, mouth: _LineWriter, speaker: _MessageEncoder
) -> AsyncIterator[tuple[Any, Any]]:
    """The SDK's pair of streams over the preload's pipe."""
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def take(line: bytes | None) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, line)

    async def read_lines() -> AsyncIterator[bytes]:
        while (line := await lines.get()) is not None:
            yield line
        mouth.finish()

    preload.attach(take)
    async with open_streams(read_lines(), mouth.write_line, speaker.encode_message) as pair:
        yield pair


class _LineWriter:
    """One thread that writes. A host that stops reading blocks it, but neither the event loop nor
    our end."""

    def __init__(self, write: Callable[[bytes], None], loop: asyncio.AbstractEventLoop) -> None:
        self._write = write
        self._loop = loop
        self._lines: SimpleQueue[tuple[bytes, asyncio.Future[None]]] = SimpleQueue()
        self._deaf: asyncio.Future[None] = loop.create_future()
        threading.Thread(target=self._run, name="stdout", daemon=True).start()

    async def write_line(self, line: bytes) -> None:
        """Returns when the line is written, or when we no longer wait for the host."""
        said: asyncio.Future[None] = self._loop.create_future()
        self._lines.put((line + b"\n", said))
        await asyncio.wait({said, self._deaf}, return_when=asyncio.FIRST_COMPLETED)

    def finish(self) -> None:
        """We are going: a host that does not read has a moment left. The server would wait for
        ever."""
        self._loop.call_later(_LAST_WORDS, _resolve_future, self._deaf)

    def _run(self) -> None:
        while True:
            line, said = self._lines.get()
            with suppress(OSError):  # the host is gone, as stdin will say
                self._write(line)
            with suppress(RuntimeError):  # we are at our end, the loop is closed
                self._loop.call_soon_threadsafe(_resolve_future, said)


def _resolve_future(said: asyncio.Future[None]) -> None:
    if not said.done():
        said.set_result(None)


class _MessageEncoder:
    """Turns the server's messages into lines, minus what the preload has said already."""

    def __init__(self, gateway: Gateway, preload: Preload, caller: Caller) -> None:
        self._gateway = gateway
        self._preload = preload
        self._caller = caller

    def encode_message(self, message: t.JSONRPCMessage) -> bytes | None:
        if isinstance(message, t.JSONRPCError) and self._preload.has_answered(
            json.dumps(message.id)
        ):
            self._gateway.changes.mark_outdated(self._caller)
            return None
        if isinstance(message, t.JSONRPCNotification) and self._is_acknowledged_before(message):
            return None
        if not isinstance(message, t.JSONRPCResponse):
            return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        request_id = json.dumps(message.id)
        result = json.dumps(message.result, separators=(",", ":"))
        said = self._preload.settle_answer(
            request_id, self._make_kept_answer(message.result, result)
        )
        if said is None:
            self._gateway.changes.mark_outdated(self._caller)
        return (
            None
            if said is not False
            else f'{{"jsonrpc":"2.0","id":{request_id},"result":{result}}}'.encode()
        )

    def _is_acknowledged_before(self, message: t.JSONRPCNotification) -> bool:
        """Whether it acknowledges a change stream that the preload has acknowledged."""
        if message.method != ACKNOWLEDGED:
            return False
        meta = (message.params or {}).get("_meta") or {}
        return self._preload.has_acknowledged(json.dumps(meta.get(SUBSCRIPTION)))

    def _make_kept_answer(self, result: dict[str, Any], text: str) -> StoredAnswer:
        if "tools" not in result and "instructions" not in result:
            return StoredAnswer(text)  # nothing in it depends on the configuration
        if "tools" in result and self._caller.conversation:
            # true at no later start: a conversation changes with no revision
            return StoredAnswer(text, until=0.0)
        catalogue = self._gateway.get_catalogue(self._caller)
        return StoredAnswer(text, self._gateway.engine.live.current.revision, catalogue.valid_until)
