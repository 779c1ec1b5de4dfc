"""Foreign text made safe to look at: what a reader could not see, or what would move the text, is
named.

Servers and agents choose names, descriptions, results and error texts. Control characters, terminal
escapes, bidirectional overrides, zero-width and tag characters can make a text read differently
from what it is (CVE-2021-42574 and its kin), so they are replaced by a visible sign such as
``⟦U+202E⟧``. Line breaks and tabs stay. The result encodes as UTF-8 whatever came in (lone
surrogates are named).
"""

from __future__ import annotations

import re

LIMIT = 20_000

# Format (Cf), surrogate (Cs), separator (Zl, Zp) and other characters that show nothing or move
# others.
_UNSEEN = (
    "\x80-\x9f\u00ad\u034f\u061c\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Those that people know by name. Pictures such as U+241B are missing in many fonts.
_KNOWN = {0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x0D: "CR", 0x1B: "ESC", 0x7F: "DEL"}
_LONG_ID = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b")
_HIDDEN = re.compile(f"[\x00-\x08\x0b-\x1f\x7f{_UNSEEN}]")
# A run of marks stacked upon one letter can cover the lines above and below.
_STACK = re.compile(
    r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe0f\ufe20-\ufe2f]{4})"
    r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe0f\ufe20-\ufe2f]+)"
)


def show_invisible_characters(text: str, limit: int = LIMIT) -> str:
    """``text`` with everything unseen named, cut after ``limit`` characters; the cut says what is
    missing."""
    rest = len(text) - limit
    shown = _STACK.sub(_count_characters, _HIDDEN.sub(_name_character, text[:limit]))
    return shown if rest <= 0 else f"{shown}… ({rest:,} more characters)"


def shorten_ids(text: str) -> str:
    """``text`` with each id and hash cut after eight digits.

    >>> shortened("call:0123456789abcdef0123456789abcdef")
    'call:01234567…'
    """
    return _LONG_ID.sub(r"\1…", text)


def replace_invisible_characters(text: str, instead: str) -> str:
    """``text`` with every unseen character replaced."""
    return _HIDDEN.sub(instead, text)


def _name_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"⟦{_KNOWN.get(code) or f'U+{code:04X}'}⟧"


def _count_characters(match: re.Match[str]) -> str:
    return f"{match[1]}⟦{len(match[2])} more marks⟧"


def name_with_kind(kind: object, name: str) -> str:
    """A record's kind and name, such as "agent local", for where nothing else says the kind."""
    return name if name.startswith(f"{kind}") else f"{kind} {name}"


def number_of(count: int, one: str, many: str = "") -> str:
    """``1 entry``, ``2,000 entries``. ``many`` may be left out if it is ``one`` and an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
