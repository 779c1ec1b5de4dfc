"""The server: a bare ASGI application, so that it can also drop lines and stall as real ones do."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from subagents.llm.scripted import anthropic, gemini, ollama, openai
from subagents.llm.scripted.provider_rules import RuleBroken
from subagents.llm.scripted.script import (
    Script,
    ScriptedFault,
    ScriptedReply,
    ScriptedRequest,
    ScriptError,
    faults,
    reply,
)

Send = Callable[[dict[str, Any]], Awaitable[None]]

_KEPT = 1000  # requests in the journal
_GEMINI = re.compile(r"/models/(?P<model>[^/:]+):(?P<verb>generateContent|streamGenerateContent)$")


class ScriptedModels:
    """Answers every provider's route; ``journal`` holds what was asked, without its texts."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.journal: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._attempts: Counter[str] = Counter()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] == "lifespan":
            await _serve_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve_http(scope, await _read_body(receive), send)

    async def _serve_http(self, scope: dict[str, Any], body: bytes, send: Send) -> None:
        path = scope["path"]
        if scope["method"] == "GET":
            await self._get(path, send)
            return
        if path.endswith("/api/show"):
            await _send_json(send, 200, ollama.show(""))
            return
        wire, model, streams = _route(path)
        if wire is None:
            await _send_json(send, 404, {"error": {"message": f"{path} is not a model API."}})
            return
        await self._serve_model(wire, body, model, streams, send)

    async def _get(self, path: str, send: Send) -> None:
        if path.endswith("/models"):
            models = [{"id": name, "object": "model"} for name in sorted(self.script.scenarios)]
            await _send_json(send, 200, {"object": "list", "data": models})
        elif path.endswith("/journal"):
            await _send_json(send, 200, {"requests": list(self.journal)})
        else:
            await _send_json(send, 404, {"error": {"message": "Try /v1/models or /journal."}})

    async def _serve_model(
        self, wire: ModuleType, body: bytes, model: str, streams: bool, send: Send
    ) -> None:
        try:
            data = json.loads(body)
            wants = bool(data.get("stream", wire is ollama)) if wire is not gemini else streams
            ask = wire.read(data, model or str(data.get("model") or ""), wants)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            await _send_json(
                send, 400, wire.error(400, f"The request cannot be read ({type(error).__name__}).")
            )
            return
        try:
            wire.check(data, thinks=self.script.thinks(ask.model))
            turn = self.script.turn(ask)
            said = reply(turn, ask)
            fault = self._next_fault(ask, faults(turn))
        except (ScriptError, RuleBroken) as error:
            await _send_json(send, 400, wire.error(400, str(error)))
            return
        self._remember(wire, ask, fault)
        await _answer(wire, ask, said, fault, send)

    def _next_fault(
        self, ask: ScriptedRequest, planned: list[ScriptedFault | None]
    ) -> ScriptedFault | None:
        """Faults alone are counted, by conversation and turn; everything else is read off the
        request."""
        if not planned:
            return None
        key = hashlib.sha256(f"{ask.model}\0{ask.user}\0{ask.answered}".encode()).hexdigest()
        attempt = self._attempts[key]
        self._attempts[key] += 1
        return planned[attempt] if attempt < len(planned) else None

    def _remember(
        self, wire: ModuleType, ask: ScriptedRequest, fault: ScriptedFault | None
    ) -> None:
        entry = {
            "wire": wire.__name__.rsplit(".", 1)[-1],
            "model": ask.model,
            "turn": ask.answered,
            "stream": ask.stream,
            "tools": list(ask.tools),
            "results": [result.name for result in ask.results],
            "characters": len(ask.system) + len(ask.user) + sum(len(r.text) for r in ask.results),
            "fault": fault is not None,
        }
        self.journal.append(entry)


def _route(path: str) -> tuple[ModuleType | None, str, bool]:
    """(wire format, model if the path names it, streams if the path says so)."""
    found = _GEMINI.search(path)
    if found:
        return gemini, found["model"], found["verb"] == "streamGenerateContent"
    for ending, wire in (
        ("/chat/completions", openai),
        ("/messages", anthropic),
        ("/api/chat", ollama),
    ):
        if path.endswith(ending):
            return wire, "", False
    return None, "", False


async def _answer(
    wire: ModuleType,
    ask: ScriptedRequest,
    said: ScriptedReply,
    fault: ScriptedFault | None,
    send: Send,
) -> None:
    if fault is not None:
        if fault.stall:
            await asyncio.Event().wait()
        await asyncio.sleep(fault.delay)
        if fault.status:
            await _send_json(send, fault.status, _error(wire, fault), _waiting(fault))
            return
    cut = fault.cut if fault else None
    if ask.stream:
        kind = b"application/x-ndjson" if wire is ollama else b"text/event-stream"
        await _send_stream(send, kind, wire.stream(said, ask), said.gap, cut)
    elif cut is not None:
        await _cut_body(send, json.dumps(wire.whole(said, ask)).encode(), cut)
    else:
        await _send_json(send, 200, wire.whole(said, ask))


def _error(wire: ModuleType, fault: ScriptedFault) -> dict[str, Any]:
    body: dict[str, Any] = wire.error(fault.status, fault.message)
    if fault.retry_delay:
        told = {
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": fault.retry_delay,
        }
        body["error"]["details"] = [told]
    return body


def _waiting(fault: ScriptedFault) -> dict[str, str]:
    told = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
    return told | dict(fault.headers)


async def _send_json(
    send: Send, status: int, data: dict[str, Any], more: Mapping[str, str] | None = None
) -> None:
    body = json.dumps(data).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), text.encode()) for name, text in (more or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(
    send: Send, kind: bytes, chunks: Iterable[bytes], gap: float, cut: int | None
) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    sent = 0
    for chunk in chunks:
        await send(
            {
                "type": "http.response.body",
                "body": chunk[: None if cut is None else cut - sent],
                "more_body": True,
            }
        )
        sent += len(chunk)
        if cut is not None and sent >= cut:
            raise LineCut
        await asyncio.sleep(gap)
    await send({"type": "http.response.body", "body": b""})


async def _cut_body(send: Send, body: bytes, cut: int) -> None:
    """Promise the whole body and drop the line in its middle."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body[:cut], "more_body": True})
    raise LineCut


class LineCut(Exception):
    """The script says that the connection drops here; the web server closes it on any exception."""


async def _read_body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _serve_lifespan(receive: Any, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
