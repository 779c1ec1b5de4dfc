from __future__ import annotations

import unicodedata

import pytest

from mcpregistry.domain.text.display import show_invisible_characters
from tests.domain.growth import FACTOR, grows_at_most


def test_no_character_that_shows_nothing_comes_through() -> None:
    unseen = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    through = [
        code
        for code in range(0x110000)
        if unicodedata.category(char := chr(code)) in unseen
        and char not in "\n\t"
        and char in show_invisible_characters(char)
    ]
    assert through == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "⟦ESC⟧[2J"),
        ("\x1b]8;;http://evil\x07", "⟦ESC⟧]8;;http://evil⟦BEL⟧"),
        ("user\u202egpj.exe", "user⟦U+202E⟧gpj.exe"),
        ("a\u200bb\ufeff", "a⟦U+200B⟧b⟦U+FEFF⟧"),
        ("\U000e0041\U000e0042", "⟦U+E0041⟧⟦U+E0042⟧"),
        ("one\r\ntwo\x00", "one⟦CR⟧\ntwo⟦NUL⟧"),
        ("\udc80", "⟦U+DC80⟧"),
        ("\u2800\u3164", "⟦U+2800⟧⟦U+3164⟧"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("Grüße, 東京 ✓ ❤️", "Grüße, 東京 ✓ ❤️"),
    ],
)
def test_hidden_characters_are_named_and_others_stay(text: str, shown: str) -> None:
    assert show_invisible_characters(text) == shown
    assert show_invisible_characters(text).encode()


def test_marks_stacked_upon_a_letter_are_counted_instead_of_drawn() -> None:
    assert (
        show_invisible_characters("Z" + "\u0301" * 500) == "Z" + "\u0301" * 4 + "⟦496 more marks⟧"
    )


def test_ten_megabytes_are_cut_at_once_and_the_cut_is_told() -> None:
    text = "\u202e" * 10_000_000
    shown = show_invisible_characters(text)
    assert shown.endswith("… (9,980,000 more characters)")
    assert len(shown) < 200_000
    assert grows_at_most(
        lambda length: show_invisible_characters(text[:length]),
        len(text) // FACTOR,
        most=FACTOR / 2,
    ), "the rest is not read"


def test_a_text_of_exactly_the_limit_is_whole() -> None:
    assert show_invisible_characters("x" * 50, 50) == "x" * 50
    assert show_invisible_characters("x" * 51, 50) == "x" * 50 + "… (1 more characters)"
