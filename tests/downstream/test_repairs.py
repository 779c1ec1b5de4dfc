"""Answers that do not follow the schema of the protocol: hosts get one that does, with all that the
server said."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import _v2025_11_25 as older
from mcp_types import _v2026_07_28 as newer

from mcpregistry.domain.errors import ProtocolError
from mcpregistry.downstream.repairs import repair_answer

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
WEBP = base64.b64encode(b"RIFF\x10\x00\x00\x00WEBPVP8 " + bytes(20)).decode()
URI = "file:///a/notes.txt"


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def image(data: Any, mime: Any = "image/png", **more: Any) -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": mime, **more}


def answer(kind: str, said: dict[str, Any], uri: str = URI) -> dict[str, Any]:
    """The repaired answer, which the models of both versions of the protocol accept."""
    found = repair_answer(said, kind, uri)
    name = {"tool": "CallToolResult", "prompt": "GetPromptResult"}.get(kind, "ReadResourceResult")
    structured = found.get("structuredContent", {})
    getattr(older, name).model_validate(
        found if isinstance(structured, dict) else {**found, "structuredContent": {}}
    )
    cached = {"ttlMs": 0, "cacheScope": "private"} if kind not in ("tool", "prompt") else {}
    getattr(newer, name).model_validate({"resultType": "complete"} | cached | found)
    return found


@pytest.mark.parametrize(
    "result",
    [
        {"content": []},
        {"content": [text("a"), text("b")], "structuredContent": {"a": None}, "isError": True},
        {
            "content": [
                image(PNG, annotations={"audience": ["user"], "priority": 0.5}),
                text("a", _meta={"k": 1}),
            ]
        },
        {"content": [{"type": "resource_link", "uri": URI, "name": "a", "size": 3}]},
        {
            "content": [
                {
                    "type": "resource",
                    "resource": {"uri": URI, "blob": "AAEC", "mimeType": "text/plain"},
                }
            ]
        },
        {"content": [{"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}]},
    ],
)
def test_a_result_that_follows_the_schema_is_the_same_object(result: dict[str, Any]):
    assert repair_answer(result, "tool", "") is result


@pytest.mark.parametrize(
    "result", [{"resultType": "input_required"}, {"resultType": "task", "task": {}}]
)
def test_an_answer_that_is_no_result_yet_is_untouched(result: dict[str, Any]):
    assert repair_answer(result, "tool", "") is result


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ({"toolResult": "old"}, [text("old")]),
        ({"toolResult": {"a": 1}}, [text('{"a":1}')]),
        ({"structuredContent": [1]}, [text("[1]")]),
        ({"error": "no quota"}, [text('{"error":"no quota"}')]),
        ({"content": None}, []),
        ({"content": None, "structuredContent": {"a": 1}}, [text('{"a":1}')]),
        ({"content": "words"}, [text("words")]),
        ({"content": text("one")}, [text("one")]),
        ({"content": [None, text("after")]}, [text("after")]),
        ({"content": ["words", 5]}, [text("words"), text("5")]),
        ({"content": [{"text": "no type"}]}, [text("no type")]),
        (
            {"content": [{"type": "json", "json": {"a": 1}}]},
            [text('{"type":"json","json":{"a":1}}')],
        ),
        ({"content": [{"type": ["text"], "text": "a"}]}, [text('{"type":["text"],"text":"a"}')]),
        (
            {"content": [text(5), text({"a": 1}), text(None)]},
            [text("5"), text('{"a":1}'), text("")],
        ),
        (
            {"content": [text("a", annotations=None, _meta=None, title=None)]},
            [text("a", title=None)],
        ),
        (
            {
                "content": [
                    text(
                        "a",
                        annotations={
                            "audience": "user",
                            "priority": 5,
                            "lastModified": "now",
                            "x": 1,
                        },
                    )
                ]
            },
            [text("a", annotations={"audience": ["user"], "x": 1})],
        ),
    ],
)
def test_content_that_hosts_cannot_read_becomes_text(
    said: dict[str, Any], read: list[dict[str, Any]]
):
    found = answer("tool", said)["content"]
    assert [{"title": None} | part for part in found] == [{"title": None} | part for part in read]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (image(f"data:image/jpeg;base64,{'A' * 24}", None), image("A" * 24, "image/jpeg")),
        (image(PNG, "image/jpeg"), image(PNG)),
        (image(WEBP), image(WEBP, "image/webp")),
        ({"type": "image", "data": PNG}, image(PNG)),
        ({"type": "image", "data": "AAAA", "mediaType": "image/x"}, image("AAAA", "image/x")),
        (
            {"type": "audio", "data": "AAAA"},
            {"type": "audio", "data": "AAAA", "mimeType": "application/octet-stream"},
        ),
        (image("-_-_"), image("+/+/")),
        (
            image("https://images.example/a.png"),
            {
                "type": "resource_link",
                "uri": "https://images.example/a.png",
                "name": "a.png",
                "mimeType": "image/png",
            },
        ),
        (image(None), text('{"type":"image","data":null,"mimeType":"image/png"}')),
        (
            {"type": "resource_link", "uri": "x://a/b"},
            {"type": "resource_link", "uri": "x://a/b", "name": "b"},
        ),
        ({"type": "resource_link"}, text('{"type":"resource_link"}')),
        ({"type": "resource", "resource": {"text": "hello"}}, text("hello")),
        ({"type": "resource", "resource": None}, text('{"type":"resource","resource":null}')),
        (
            {
                "type": "resource",
                "resource": {"uri": URI, "text": "a", "blob": None, "mimeType": None},
            },
            {"type": "resource", "resource": {"uri": URI, "text": "a"}},
        ),
    ],
)
def test_images_links_and_resources_are_put_right(said: dict[str, Any], read: dict[str, Any]):
    assert answer("tool", {"content": [said]})["content"] == [read]


@pytest.mark.parametrize(
    ("said", "read"), [(None, False), ("true", True), ("false", False), (1, True), ({}, False)]
)
def test_whether_it_failed_is_said_plainly(said: Any, read: bool):
    assert answer("tool", {"content": [], "isError": said})["isError"] is read


def test_structured_content_that_is_null_is_none():
    assert answer("tool", {"content": [text("a")], "structuredContent": None}) == {
        "content": [text("a")]
    }


@pytest.mark.parametrize(
    ("messages", "read"),
    [
        ([{"role": "user", "content": "plain"}], [text("plain")]),
        ([{"role": "user", "content": [text("a"), "b", None]}], [text("a"), text("b")]),
        ({"role": "user", "content": text("one")}, [text("one")]),
        (["plain"], [text("plain")]),
        ([{"content": text("no role")}], [text("no role")]),
        ([{"role": "user", "content": image(PNG, "image/gif")}], [image(PNG)]),
    ],
)
def test_messages_of_prompts_hold_one_part_each(messages: Any, read: list[dict[str, Any]]):
    found = answer("prompt", {"messages": messages})["messages"]
    assert found == [{"role": "user", "content": part} for part in read]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([{"role": "system", "content": text("a")}], "'system'"),
        (None, "no content"),
        ([{"role": "user"}], "no content"),
    ],
)
def test_a_prompt_that_no_host_can_read_says_why(messages: Any, why: str):
    with pytest.raises(ProtocolError, match=why):
        repair_answer({"messages": messages}, "prompt", "")


HELLO = {"uri": URI, "text": "hello"}


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ({"contents": [HELLO]}, [HELLO]),
        ({"contents": []}, []),
        ({"contents": HELLO}, [HELLO]),
        ({"contents": "hello"}, [HELLO]),
        ({"contents": [{"text": "hello"}]}, [HELLO]),
        ({"contents": [None, HELLO]}, [HELLO]),
        ({"content": [text("hello")]}, [HELLO]),
        ({"content": [{"type": "resource", "resource": HELLO}]}, [HELLO]),
        ({"content": [image("AAEC")]}, [{"uri": URI, "blob": "AAEC", "mimeType": "image/png"}]),
        ({"contents": [{"uri": URI, "text": {"a": 1}}]}, [{"uri": URI, "text": '{"a":1}'}]),
        ({"contents": [{"uri": URI, "a": 1}]}, [{"uri": URI, "text": '{"a":1}'}]),
        ({"contents": [{**HELLO, "blob": None, "mimeType": None}]}, [HELLO]),
        (
            {"contents": [{"uri": "x://other", "text": "hello"}]},
            [{"uri": "x://other", "text": "hello"}],
        ),
    ],
)
def test_what_was_read_has_a_uri_and_a_text_or_a_blob(
    said: dict[str, Any], read: list[dict[str, Any]]
):
    found = answer("resource", said)
    assert found["contents"] == read
    assert "content" not in found


@pytest.mark.parametrize("said", [{}, {"contents": None}, {"result": "hello"}])
def test_a_read_without_contents_is_no_empty_file(said: dict[str, Any]):
    with pytest.raises(ProtocolError, match="no contents"):
        repair_answer(said, "resource", URI)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab/:-", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPES = st.sampled_from(["text", "image", "audio", "resource_link", "resource", "other"])
MEMBERS = (
    "text",
    "data",
    "mimeType",
    "uri",
    "name",
    "annotations",
    "_meta",
    "title",
    "size",
    "icons",
    "description",
)
PARTS = ANYTHING | st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(MEMBERS, ANYTHING)
    | {
        "type": TYPES,
        "resource": ANYTHING
        | st.fixed_dictionaries({}, optional=dict.fromkeys((*MEMBERS, "blob"), ANYTHING)),
    },
)


@given(
    st.fixed_dictionaries(
        {}, optional={"content": ANYTHING | st.lists(PARTS, max_size=3), "isError": ANYTHING}
    )
)
def test_every_result_becomes_one_that_every_host_accepts(said: dict[str, Any]):
    found = answer("tool", said)
    assert repair_answer(found, "tool", "") == found
    json.dumps(found)


@given(st.sampled_from(["messages", "content"]), ANYTHING | st.lists(PARTS, max_size=3))
def test_every_prompt_and_read_is_accepted_or_refused_in_words(key: str, said: Any):
    for kind, of in (
        ("prompt", {"messages": said}),
        ("resource", {"contents": said} if key == "messages" else {"content": said}),
    ):
        try:
            answer(kind, of)
        except ProtocolError as refused:
            said_why = "cannot be read" in refused.message
            assert said_why
