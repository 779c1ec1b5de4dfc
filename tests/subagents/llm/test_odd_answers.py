"""Answers of models that are not quite chat completions: texts in parts, blank arguments, web
pages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from subagents.domain.model_errors import After, ErrorKind, ModelError, classify
from subagents.llm.client import complete
from subagents.llm.failures import translate_error
from subagents.llm.text_parts import join_parts
from tests.subagents.llm.conftest import target

MESSAGES = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "now", "description": "", "parameters": {"type": "object"}},
    }
]


class Answers:
    """A model server that gives the same body to every request."""

    def __init__(self, body: bytes, kind: bytes = b"application/json") -> None:
        self.body = body
        self.kind = kind
        self.asked = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":  # and not the server's own question whether the app is ready
            self.asked += 1
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", self.kind)],
            }
        )
        await send({"type": "http.response.body", "body": self.body})


def completion(**message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    whole = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    return json.dumps(whole).encode()


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}}


@pytest.fixture
def serve(served: Any) -> Any:
    current, address = served
    before = current.models

    def serving(app: Answers) -> Any:
        current.models = app
        return target("compatible", address, "m")

    yield serving
    current.models = before


PARTS: dict[str, tuple[list[Any], str]] = {
    "texts": (
        [{"type": "text", "text": "It is "}, {"type": "text", "text": "noon."}],
        "It is noon.",
    ),
    "thinking first": (
        [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "noon"},
        ],
        "noon",
    ),
    "bare texts": (["It is ", "noon."], "It is noon."),
    "a part of another type": (
        [{"type": "refs", "ids": [1]}, {"type": "output_text", "text": "noon"}, None],
        "noon",
    ),
}


@pytest.mark.fault
@pytest.mark.parametrize("case", PARTS)
async def test_an_answer_in_parts_is_read_as_one_text(serve: Any, case: str) -> None:
    parts, text = PARTS[case]
    app = Answers(completion(content=parts))
    assert (await complete(serve(app), MESSAGES)).text == text
    assert app.asked == 1


@pytest.mark.fault
@pytest.mark.parametrize("arguments", ["", " ", "  \n", "null", None])
async def test_blank_arguments_mean_none(serve: Any, arguments: Any) -> None:
    app = Answers(completion(content=None, tool_calls=[call(arguments)]))
    reply = await complete(serve(app), MESSAGES, TOOLS)
    assert [each.arguments for each in reply.calls] == ["{}"]


@pytest.mark.fault
async def test_a_web_page_is_told_as_one_and_asked_for_once(serve: Any) -> None:
    app = Answers(b"<html>Sign in</html>", b"text/html; charset=utf-8")
    with pytest.raises(ModelError, match="web page") as caught:
        await complete(serve(app), MESSAGES)
    assert caught.value.after == After.SKIP
    assert app.asked == 1


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["compatible", "anthropic", "ollama"])
@pytest.mark.parametrize(
    ("body", "trouble", "words"),
    [
        (b"<html>Sign in</html>", ErrorKind.BAD_REQUEST, "web page"),
        (b'{"choices": [{"message": {"cont', ErrorKind.UNREADABLE, "or incomplete"),
        (b"", ErrorKind.UNREADABLE, "not valid JSON"),
        (b'{"status": "ok"}', ErrorKind.UNREADABLE, "answer"),
        (b"[]", ErrorKind.UNREADABLE, "answer"),
    ],
    ids=["web page", "half", "empty", "other", "list"],
)
async def test_answer_of_no_model_is_called_what_it_is(
    serve: Any, served: Any, kind: str, body: bytes, trouble: ErrorKind, words: str
) -> None:
    """The library calls each of them an error 500 of the provider, which would be "overloaded"."""
    serve(Answers(body))
    with pytest.raises(ModelError, match=words) as caught:
        await complete(target(kind, served[1], "m"), MESSAGES)
    assert caught.value.kind == trouble


@pytest.mark.fault
@pytest.mark.parametrize(
    "body", [b"[]", b"7", b'{"choices": {}}', b'{"choices": [{"message": {"content": {"a": 1}}}]}']
)
async def test_no_traceback_and_no_path_of_this_machine_reaches_a_host(
    serve: Any, body: bytes
) -> None:
    with pytest.raises(ModelError) as caught:
        await complete(serve(Answers(body)), MESSAGES)
    assert "Traceback" not in caught.value.message
    assert "site-packages" not in caught.value.message
    assert ".py" not in caught.value.message


def test_a_traceback_in_an_error_is_cut_off() -> None:
    text = 'Invalid response object Traceback (most recent call last):\n  File "/srv/x/site-packages/litellm/a.py", line 3'
    error = translate_error(RuntimeError(text), target("compatible", "http://127.0.0.1:1", "m"))
    assert error.message == "The answer of the provider cannot be read (Invalid response object)."
    assert (error.kind, classify("X", None, text)) == (ErrorKind.UNREADABLE, ErrorKind.UNREADABLE)
    assert translate_error(
        RuntimeError("see /srv/site-packages/a.py"), target("compatible", "x", "m")
    ).message.endswith("(see).")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"choices":[]}',
        b'{"choices":[{}]}',
        b'{"choices":7}',
        b'{"choices":[{"message":[]}]}',
    ],
)
def test_what_has_no_parts_is_not_touched(body: bytes) -> None:
    assert join_parts(body) == body
