"""The REST interface: ``GET`` or ``POST …/{expert}``, the answer as text, Markdown or JSON.

With GET the query parameters are the arguments of the expert tool, and ``q`` is its question. With
POST the body is a JSON object with the arguments, or the question as plain text. ``format`` (text,
markdown or json) and ``schema`` (with json and POST) are accepted in addition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.domain.text.canonical import encode_lossy_json
from subagents.domain.coercion import coerce_arguments
from subagents.domain.formats import (
    FORMAT,
    FORMATS,
    JSON,
    MARKDOWN,
    SCHEMA,
    TEXT,
    AnswerFormat,
    takes_formats,
)
from subagents.headends.chat_arguments import find_text_argument
from subagents.headends.errors import HeadendError, from_error
from subagents.headends.http_exchange import HttpExchange
from subagents.headends.queued_request import RunReply

QUESTION = "q"
_TYPES = {
    TEXT: b"text/plain; charset=utf-8",
    MARKDOWN: b"text/markdown; charset=utf-8",
    JSON: b"application/json",
}


@dataclass(frozen=True)
class AnswerRenderer:
    """The renderer of one answer. ``form`` is text, markdown or json."""

    waiting_status: ClassVar[int] = 202  # Accepted: the run continues

    expert: str
    form: str

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"content-type", _TYPES[self.form])]

    def render(self, call: str, reply: RunReply) -> bytes:
        """Return the text. As JSON it comes with the run, the finish reason and the usage."""
        if self.form != JSON:
            return reply.text.encode()
        facts: dict[str, Any] = {
            "model": self.expert,
            "call": call,
            "run": reply.run,
            "finish": reply.finish,
            "answer": reply.text,
            "usage": {"input_tokens": reply.usage.input, "output_tokens": reply.usage.output},
        }
        if reply.structured:
            facts["answer"] = json.loads(reply.structured)
        return encode_lossy_json(facts).encode()

    def render_start(self, call: str) -> bytes:
        """Not used: this interface does not stream."""
        return b""

    def render_keepalive(self, call: str, status: str) -> bytes:
        """Not used: this interface does not stream."""
        return b""

    def render_end(self, call: str, reply: RunReply) -> Iterator[bytes]:
        """Not used: this interface does not stream."""
        yield b""

    def render_stream_error(self, error: HeadendError, request: str) -> bytes:
        """Not used: this interface does not stream."""
        return b""


def error_body(error: HeadendError, request: str = "") -> dict[str, Any]:
    """Return the body of an error."""
    return {"code": error.code, "message": error.message, "run": error.run or None}


async def read_request(
    exchange: HttpExchange, expert: str, schema: Mapping[str, Any]
) -> tuple[dict[str, Any], AnswerFormat, AnswerRenderer]:
    """Read a request. Raises HeadendError."""
    given = (
        await _read_posted_arguments(exchange, schema)
        if exchange.method == "POST"
        else _of_address(exchange.query, schema)
    )
    ours = takes_formats(schema)
    form = str((given.pop(FORMAT, None) if ours else None) or exchange.query.get(FORMAT) or TEXT)
    if form not in FORMATS:
        raise HeadendError(
            422,
            "ARGUMENTS_INVALID",
            f'"{form[:40]}" is not a valid format. Use text, markdown or json.',
            param=FORMAT,
        )
    wish = given.pop(SCHEMA, None) if ours and form == JSON else None
    if wish is not None and not isinstance(wish, dict):
        raise HeadendError(
            422, "ARGUMENTS_INVALID", "schema must be a JSON Schema object.", param=SCHEMA
        )
    asked = AnswerFormat("" if form == JSON else form)
    if wish is not None:
        asked = AnswerFormat(JSON, wish)
    return given, asked, AnswerRenderer(expert, form)


async def _read_posted_arguments(
    exchange: HttpExchange, schema: Mapping[str, Any]
) -> dict[str, Any]:
    if exchange.header(b"content-type").startswith("text/"):
        text = (await exchange.read_body()).decode("utf-8", "replace")
        return {_question(schema): text}
    return await exchange.read_json()


def _of_address(query: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Read the query parameters, converted to the types of the schema."""
    known = (schema.get("properties") or {}).keys()
    given = {
        name: value
        for name, value in query.items()
        if name in known or name not in (QUESTION, FORMAT)
    }
    if QUESTION in query and QUESTION not in known:
        given[_question(schema)] = query[QUESTION]
    return coerce_arguments(schema, given)[0]


def _question(schema: Mapping[str, Any]) -> str:
    try:
        return find_text_argument(schema)
    except ArgumentsInvalid as error:
        raise from_error(error) from None
