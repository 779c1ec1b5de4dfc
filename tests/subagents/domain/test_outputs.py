"""Results as models read them: flattened, paged, searched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subagents.domain.outputs import (
    find_lines,
    find_links,
    flatten_result,
    handle_of,
    page,
    preview,
)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        (
            {"content": [{"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}]},
            "[image: image/png, 5 bytes]",
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "f:/x", "text": "inside"}}]},
            "inside",
        ),
        ({"content": [{"type": "resource", "resource": {"uri": "f:/x"}}]}, "[resource: f:/x]"),
        ({"content": [{"type": "resource_link", "uri": "f:/y"}]}, "[resource_link: f:/y]"),
        ({"content": [{"type": "text", "text": "a"}], "structuredContent": {"b": 1}}, 'a\n{"b":1}'),
        (
            {"content": [{"type": "text", "text": '{ "b": 1 }'}], "structuredContent": {"b": 1}},
            '{ "b": 1 }',
        ),
        ({"content": [{"type": "text", "text": "{"}], "structuredContent": {"b": 1}}, '{\n{"b":1}'),
        ({"content": [], "structuredContent": {"b": 1}}, '{"b":1}'),
        ({"content": [{"type": "hologram"}]}, "[hologram]"),
        ({}, ""),
    ],
)
def test_flattening(result: dict, text: str) -> None:
    assert flatten_result(result) == text


def test_links_of_a_result_are_found_whatever_is_in_them() -> None:
    parts = [
        {"type": "text", "text": "x"},
        {
            "type": "resource_link",
            "uri": "https://a.example/\x00" + "x" * 5_000,
            "name": "n\ud800",
            "mimeType": None,
        },
        {"type": "resource_link"},
        *({"type": "resource_link", "uri": f"made://{n}"} for n in range(500)),
    ]
    links = find_links({"content": parts})
    assert len(links) == 20
    assert (len(links[0]["uri"]), links[0]["name"], links[0]["mimeType"]) == (2_000, "n?", "")
    assert "\x00" not in links[0]["uri"]
    assert links[2] == {"uri": "made://0", "name": "", "mimeType": ""}


@given(
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=50),
        min_size=1,
        max_size=60,
    )
)
def test_pages_together_are_the_whole(lines: list[str]) -> None:
    text = "\n".join(lines)
    read = []
    start = 1
    every = text.splitlines() or [""]
    while start <= len(every):
        part = page(text, from_line=start, lines=7, limit=200)
        assert part.first == start
        assert part.of == len(every)
        read += part.text.split("\n") if part.last >= part.first else []
        start = part.last + 1
    assert read == every


def test_all_of_a_very_long_line_can_be_read() -> None:
    text = "".join(f"{n:06}" for n in range(4_000))
    read = ""
    start = 1
    while start <= page(text, from_line=start).of:
        part = page(text, from_line=start)
        read = read + part.text.replace("\n", "")
        start = part.last + 1
    assert read == text
    assert "001500" in find_lines(text, "001500")


def test_searching_shows_lines_with_their_surroundings() -> None:
    text = "\n".join(f"line {n}" for n in range(100))
    shown = find_lines(text, "LINE 50", around=1)
    assert shown.startswith("1 line contains")
    assert "50: line 49\n51: line 50\n52: line 51" in shown


@pytest.mark.parametrize("text", ["", "\n", "lone \ud800 surrogate"])
def test_odd_texts_are_paged_and_previewed(text: str) -> None:
    assert page(text).of >= 1
    assert "too large" in preview("abc", text, limit=2_000)


def test_a_preview_says_how_to_read_on() -> None:
    text = preview("abc", "word\n" * 5_000, limit=2_000)
    assert '"handle": "abc"' in text
    assert "25000 bytes, 5000 lines" in text
    assert len(text) < 1_500


def test_the_same_place_has_the_same_handle() -> None:
    assert handle_of("r", "1/0") == handle_of("r", "1/0") != handle_of("r", "1/1")
