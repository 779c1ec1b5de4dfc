"""The REST interface: ``GET`` or ``POST …/{expert}``, the answer as text, Markdown or JSON.

By GET the parameters of the address are the expert tool's arguments, ``q`` its question; by POST the body is a JSON object with
them, or the question in plain text. ``format`` (text, markdown or json) and ``schema`` (with json, by POST) stand beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.domain.text.canonical import stored
from subagents.domain.coercion import coerced
from subagents.domain.formats import FORMAT, FORMATS, JSON, MARKDOWN, SCHEMA, TEXT, Wanted, takes_formats
from subagents.headends.asking import text_argument
from subagents.headends.errors import Refused, of_error
from subagents.headends.session import Reply
from subagents.headends.wire import Exchange

QUESTION = "q"
_TYPES = {TEXT: b"text/plain; charset=utf-8", MARKDOWN: b"text/markdown; charset=utf-8", JSON: b"application/json"}


@dataclass(frozen=True)
class Answer:
    """The shape of one answer. ``form`` is text, markdown or json."""

    expert: str
    form: str

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"content-type", _TYPES[self.form])]

    def whole(self, call: str, reply: Reply) -> bytes:
        """The text itself; as JSON with its run, its end and its tokens."""
        if self.form != JSON:
            return reply.text.encode()
        facts: dict[str, Any] = {
            "model": self.expert, "call": call, "run": reply.run, "finish": reply.finish, "answer": reply.text,
            "usage": {"input_tokens": reply.usage.input, "output_tokens": reply.usage.output},
        }  # fmt: skip
        if reply.structured:
            facts["answer"] = json.loads(reply.structured)
        return stored(facts).encode()

    def error(self, refused: Refused, request: str) -> dict[str, Any]:
        """As in the rest of the site's API."""
        return error_body(refused)

    def opening(self, call: str) -> bytes:
        """Not streamed."""
        return b""

    def pulse(self, call: str, doing: str) -> bytes:
        """Not streamed."""
        return b""

    def closing(self, call: str, reply: Reply) -> Iterator[bytes]:
        """Not streamed."""
        yield b""

    def broken(self, refused: Refused, request: str) -> bytes:
        """Not streamed."""
        return b""


def error_body(refused: Refused, request: str = "") -> dict[str, Any]:
    """Every error, whatever its status."""
    return {"code": refused.code, "message": refused.message, "run": refused.run or None}


async def read(exchange: Exchange, expert: str, schema: Mapping[str, Any]) -> tuple[dict[str, Any], Wanted, Answer]:
    """A question. Raises Refused."""
    given = await _posted(exchange, schema) if exchange.method == "POST" else _of_address(exchange.query, schema)
    ours = takes_formats(schema)
    form = str((given.pop(FORMAT, None) if ours else None) or exchange.query.get(FORMAT) or TEXT)
    if form not in FORMATS:
        raise Refused(
            422, "ARGUMENTS_INVALID", f"There is no format '{form[:40]}'. Say text, markdown or json.", param=FORMAT
        )
    wish = given.pop(SCHEMA, None) if ours and form == JSON else None
    if wish is not None and not isinstance(wish, dict):
        raise Refused(422, "ARGUMENTS_INVALID", "schema must be a JSON Schema, an object.", param=SCHEMA)
    asked = Wanted(JSON, wish) if wish is not None else Wanted("" if form == JSON else form)
    return given, asked, Answer(expert, form)


async def _posted(exchange: Exchange, schema: Mapping[str, Any]) -> dict[str, Any]:
    if exchange.header(b"content-type").startswith("text/"):
        text = (await exchange.body()).decode("utf-8", "replace")
        return {_question(schema): text}
    return await exchange.json()


def _of_address(query: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Texts as the schema has them: ``5`` is a number where it wants one."""
    known = (schema.get("properties") or {}).keys()
    given = {name: value for name, value in query.items() if name in known or name not in (QUESTION, FORMAT)}
    if QUESTION in query and QUESTION not in known:
        given[_question(schema)] = query[QUESTION]
    return coerced(schema, given)[0]


def _question(schema: Mapping[str, Any]) -> str:
    try:
        return text_argument(schema)
    except ArgumentsInvalid as error:
        raise of_error(error) from None
