"""One word, however it is spelt: look-alike letters, digits for letters, letters set apart.

Used by the scanner on every text of a definition. Each function takes time linear in the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache, partial

from mcpregistry.domain.definitions.confusables import fold_to_latin

_MARKS = re.compile("[\u0300-\u036f\u0640\u064b-\u065f\u0670\u093c\u09bc]")
_DIGITS = str.maketrans("0345789@$€|+", "oeastbgaselt")
_ONES = tuple(str.maketrans("1!", letters) for letters in ("ii", "ll", "li", "il"))
# A word in which digits or signs stand where letters would: at least one letter, and one of them
# before a letter or after one. Runs of word characters are taken whole, so each is looked at once.
_ODD_WORD = re.compile(r"(?<![\w@$€|+!])[\w@$€|+!]{2,40}(?![\w@$€|+])")
_WITHIN = re.compile(r"[^\W\d_][0-9@$€|+!][^\W_]")  # else it is utf8, v2 or S3, and not read again
_FOR_A_LETTER = re.compile(r"[0-9@$€|+!]")
_LETTER = re.compile(r"[^\W\d_]")
_APART = re.compile(r"(?<!\w)\w(?:([ .·_*-]{1,3})\w(?!\w)){4,400}")
_GAP = re.compile(r"(\w)([ .·_*-]{0,3})")


@lru_cache(maxsize=8192)
def fold(word: str) -> str:
    """A word in its plainest form: lower case, no accents, look-alike letters as Latin ones. Equal
    for all spellings that a reader takes for the same word, in text and vocabulary alike.
    """
    bare = _MARKS.sub(
        "", unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", word).lower())
    )
    return fold_to_latin(unicodedata.normalize("NFC", bare))


def list_readings(text: str) -> Iterator[str]:
    """What else ``text`` may say: with digits read as letters, with letters that stand apart
    joined. Often nothing."""
    joined = _APART.sub(lambda match: _join_letters(match[0]), text)
    if joined != text:
        yield joined
    said = {text, joined}
    for ones in _ONES if _WITHIN.search(joined) else ():
        read = _ODD_WORD.sub(partial(_replace_digits, ones), joined)
        if read not in said:
            said.add(read)
            yield read


def find_separated_letters(text: str) -> re.Match[str] | None:
    """A run of single letters long enough to be a disguised sentence and not an abbreviation."""
    return next(
        (match for match in _APART.finditer(text) if len(_LETTER.findall(match[0])) >= 10), None
    )


def find_mixed_scripts(text: str) -> re.Match[str] | None:
    """A word with a foreign letter that looks Latin between letters that are."""
    return _MIXED.search(text)


def _join_letters(run: str) -> str:
    """``s e n d  i t`` as ``send it``: the wider gaps part words, where there are any."""
    gaps = [match[2] for match in _GAP.finditer(run)][:-1]
    narrow = min(gaps, key=len)
    return "".join(
        match[1] + (" " if match[2] and match[2] != narrow else "") for match in _GAP.finditer(run)
    ).rstrip()


def _replace_digits(ones: dict[int, int], match: re.Match[str]) -> str:
    word = match[0]
    if not (_FOR_A_LETTER.search(word) and _LETTER.search(word)):
        return word
    return word.rstrip("!").translate(ones).translate(_DIGITS)


_MIXED = re.compile(
    "[a-zA-Z]["
    + "".join(chr(code) for code in range(0x370, 0x530) if fold_to_latin(chr(code)).isascii())
    + "][a-zA-Z]"
)
