"""Names that look alike: letters of other scripts that read as Latin ones, and what a name reads
as.

A small table, of the letters that were seen in look-alike names (Unicode's confusables.txt, UTS 39,
has thousands more, nearly all of which NFKC or a reader's eye deals with).
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_CYRILLIC = dict(zip("асеіјорԛѕԝхуһԁӏгпкмнтвьѡ", "aceijopqswxyhdlrnkmhtbbw", strict=True))
_GREEK = dict(zip("αβγειικνορτυχωϲϳ", "abyeiikvoptuxwcj", strict=True))
_OTHER = dict(zip("ıɡɑɩʟɴʀƽօսցհոզա", "igailnrsoughnqw", strict=True))
_TABLE = str.maketrans(_CYRILLIC | _GREEK | _OTHER)
_DIGITS = str.maketrans("01", "ol")
_JOINTS = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[\W_]+")


def fold_to_latin(text: str) -> str:
    """The text in lower case, NFKC-normalised, with look-alike letters of other scripts replaced by
    the Latin ones."""
    return unicodedata.normalize("NFKC", text).lower().translate(_TABLE)


@lru_cache(maxsize=8192)  # every tool is compared with all others
def make_lookalike_key(name: str) -> str:
    """A key that is equal for names which a hurried reader takes for one another (``0``/``o``,
    ``rn``/``m``)."""
    plain = _SEPARATORS.sub("_", fold_to_latin(name)).strip("_").translate(_DIGITS)
    return plain.replace("rn", "m").replace("vv", "w")


@lru_cache(maxsize=8192)
def split_name(name: str) -> tuple[str, ...]:
    """The words of a name, however they are joined: ``getStockPrice`` and ``get-stock-price`` have
    the same."""
    return tuple(fold_to_latin(_JOINTS.sub(" ", name)).split())


def find_foreign_letters(name: str) -> str:
    """The letters of a name that look Latin and are not, each once; empty for an honest name."""
    return "".join(
        dict.fromkeys(
            char for char in name if ord(char) > 0x7F and fold_to_latin(char) != char.lower()
        )
    )
