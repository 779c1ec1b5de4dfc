"""What stands in a host's place for a model: it makes the calls that a test says, one after
another, and then says that it is done.

Each play has an address of its own, so the model that a host asks for does not matter. Which call
comes next is counted in the request (one for each result that it holds), never remembered: hosts
ask besides for titles and the like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from subagents.llm.scripted import anthropic, gemini, openai
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import (
    Result,
    ScriptedReply,
    ScriptedRequest,
    ScriptedToolUse,
    ScriptedUsage,
)
from subagents.llm.scripted.stream_pieces import event, identifier, text_of

DONE = "SlipsnisseIsDone"  # one word, as streams are cut between words
ASIDE = "A title"  # for requests without tools
APPROVED = ("has not run yet", "is running")  # then the model is told to make the same call again


@dataclass(frozen=True)
class Play:
    """``calls``: names as the host shows them to its model, with their arguments. ``bodies`` is
    what the model was sent.

    ``results``: one for each of the calls. A call whose result says that it is approved and not
    over is made again.
    """

    calls: Sequence[tuple[str, dict[str, Any]]]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    offered: set[str] = field(default_factory=set)
    results: list[Result] = field(default_factory=list)

    def answers(self, ask: ScriptedRequest) -> ScriptedReply:
        self.offered.update(ask.tools)
        results = [
            each for each in ask.results if not any(words in each.text for words in APPROVED)
        ]
        if len(results) > len(self.results):
            self.results[:] = results
        usage = ScriptedUsage(10, 10)
        if not ask.tools:
            return ScriptedReply(ASIDE, (), usage)
        if len(results) >= len(self.calls):
            return ScriptedReply(DONE, (), usage)
        name, arguments = self.calls[len(results)]
        return ScriptedReply("", (ScriptedToolUse(name, json.dumps(arguments)),), usage)


class Models:
    """The server: a bare ASGI application."""

    def __init__(self) -> None:
        self.address = ""
        self._plays: dict[str, Play] = {}

    def play(self, *calls: tuple[str, dict[str, Any]]) -> tuple[str, Play]:
        """A play, and where its host finds the model."""
        name = f"play{len(self._plays)}"
        play = Play(calls)
        self._plays[name] = play
        return f"{self.address}/{name}", play

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body") or message.get("body"):
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        play = self._plays.get(scope["path"].split("/")[1])
        kind, answer = (
            _answer(scope["path"], json.loads(body), play) if play and body else (b"", None)
        )
        headers = [(b"content-type", kind)] if kind else []
        await send(
            {
                "type": "http.response.start",
                "status": 200 if answer is not None else 404,
                "headers": headers,
            }
        )
        await send({"type": "http.response.body", "body": answer or b"{}"})


def _answer(path: str, body: dict[str, Any], play: Play) -> tuple[bytes, bytes | None]:
    """The type and the text of what is answered; no text for what no model API has."""
    wires = {
        "/messages": anthropic,
        "/chat/completions": openai,
        ":streamGenerateContent": gemini,
        ":generateContent": gemini,
    }
    wire = next((wire for end, wire in wires.items() if path.endswith(end)), None)
    play.bodies.append(body)
    if path.endswith("/responses"):
        ask = _read(body)
        return b"text/event-stream", b"".join(_responses(play.answers(ask), ask))
    if wire is None:
        return b"application/json", None
    streams = bool(body.get("stream")) or path.endswith(":streamGenerateContent")
    ask = wire.read(body, str(body.get("model", "fake")), streams)
    if streams:
        return b"text/event-stream", b"".join(wire.stream(play.answers(ask), ask))
    return b"application/json", json.dumps(wire.whole(play.answers(ask), ask)).encode()


def _read(body: dict[str, Any]) -> ScriptedRequest:
    """A request to OpenAI's responses API, as Codex makes it."""
    items = body["input"]
    names = {item["call_id"]: item["name"] for item in items if item["type"] == "function_call"}
    answers = [item for item in items if item["type"] == "function_call_output"]
    results = tuple(
        Result(names.get(item["call_id"], ""), _output(item["output"])) for item in answers
    )
    return ScriptedRequest(
        str(body.get("model", "")),
        True,
        len(results),
        tools=tuple(_offered(body.get("tools", []))),
        results=results,
    )


def _output(said: Any) -> str:
    if isinstance(said, str):
        return said
    return text_of(said) if isinstance(said, list) else json.dumps(said)


def _offered(tools: list[dict[str, Any]]) -> Iterator[str]:
    """Tools of a server stand in a namespace of their own."""
    for tool in tools:
        inner = tool.get("tools") if tool["type"] == "namespace" else None
        yield from (
            (f"{tool['name']}/{each['name']}" for each in inner)
            if inner
            else [tool.get("name", tool["type"])]
        )


def _responses(reply: ScriptedReply, ask: ScriptedRequest) -> Iterator[bytes]:
    """The answer as server-sent events of the responses API."""
    made = {
        "id": identifier("resp", ask),
        "object": "response",
        "status": "in_progress",
        "output": [],
    }
    yield event({"type": "response.created", "response": made}, "response.created")
    for index, item in enumerate(_items(reply, ask)):
        done = {"type": "response.output_item.done", "output_index": index, "item": item}
        yield event(done, "response.output_item.done")
    usage = {
        "input_tokens": 10,
        "output_tokens": 10,
        "total_tokens": 20,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    ended = made | {"status": "completed", "usage": usage}
    yield event({"type": "response.completed", "response": ended}, "response.completed")


def _items(reply: ScriptedReply, ask: ScriptedRequest) -> Iterator[dict[str, Any]]:
    for index, call in enumerate(reply.calls):
        space, _, name = call.name.rpartition("/")
        made = {
            "type": "function_call",
            "call_id": identifier("call", ask, index),
            "name": name,
            "arguments": call.arguments,
        }
        yield made | ({"namespace": space} if space else {})
    if reply.text:
        content = [{"type": "output_text", "text": reply.text}]
        yield {
            "type": "message",
            "role": "assistant",
            "id": identifier("msg", ask),
            "content": content,
        }


@contextmanager
def models_running() -> Iterator[Models]:
    models = Models()
    with run_server(models) as address:  # type: ignore[arg-type]
        models.address = address
        yield models
