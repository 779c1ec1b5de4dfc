"""Reads a text for orders: words to ideas (``words``), ideas in one sentence to orders (``rules``).

Each word is looked up once and sentences are cut to a bounded length, so time is linear in the
text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from mcpregistry.domain.definitions.orders.rules import NEAR, RULES, OrderRule
from mcpregistry.domain.definitions.orders.words import ANY, LANGUAGES
from mcpregistry.domain.definitions.spelling import fold

# words of a sentence that are read together; longer ones are read in overlapping parts
_LONGEST = 60
_OVERLAP = 20
_MARKS = "\u0300-\u036f\u064b-\u065f\u0670\u0900-\u0963\u0966-\u09ff\u200c\u200d"
_SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # written without spaces: each sign is a word
_PIECE = re.compile(
    rf"(?P<address>\b(?:https?|ftp|wss?)://[^\s\"'<>]{{1,2000}}|[\w.+-]{{1,64}}@[\w-]{{1,64}}(?:\.[\w-]{{1,64}})+"
    r"|\b(?:[\w-]{1,64}\.){1,6}(?:com|net|org|io|co|cc|dev|app|xyz|info|top|me|site|online|cloud|ru|cn)\b)"
    rf"|(?P<word>[{_SINGLE}]|(?:(?![{_SINGLE}])[\w{_MARKS}])+)"
    r"|(?P<end>[.!?](?=[\s\"')\]]|$)|[;\n\u3002\uff01\uff1f\uff1b\u0964\u06d4\u061b\u061f])"
)
_ARABIC = re.compile("^(?:[وفبلكس]?ال|لل|[وفبلكس])(?=[\u0600-\u06ff]{2})")
_MANY = 50  # calls that nobody asked for


@dataclass(frozen=True, slots=True)
class Order:
    """What a rule found: where in the text, and in which language."""

    rule: OrderRule
    language: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Idea:
    """``name`` is said by the words from ``first`` to before ``after``."""

    name: str
    first: int
    after: int


def read(text: str) -> Iterator[Order]:
    """The first order of each kind in each language; ``text`` without invisible characters,
    NFKC-normalised."""
    seen = set()
    before: dict[str, set[str]] = {}
    for words in _split_sentences(text):
        ideas = _find_ideas(words)
        for order in _find_orders(words, ideas, before):
            if (key := (order.rule.kind, order.language)) not in seen:
                seen.add(key)
                yield order
        before = {language: {idea.name for idea in said} for language, said in ideas.items()}


def _split_sentences(text: str) -> Iterator[list[_Word]]:
    words: list[_Word] = []
    for match in _PIECE.finditer(text):
        if match.lastgroup == "end":
            if words:
                yield words
            words = []
            continue
        said = "://" if match.lastgroup == "address" else fold(match[0][:64])
        words.append(_Word(said, match.start(), match.end()))
        if len(words) >= _LONGEST:
            yield words
            words = words[-_OVERLAP:]
    if words:
        yield words


def _find_orders(
    words: list[_Word], said: dict[str, list[_Idea]], before: dict[str, set[str]]
) -> Iterator[Order]:
    """``before``: the ideas of the sentence that came before."""
    for language, ideas in said.items():
        there = {idea.name for idea in ideas}
        wider = there | before.get(language, set())
        for rule in RULES:
            about = [idea for idea in ideas if idea.name in rule.names]
            if about and rule.is_order(wider if rule.across else there):
                first = min(idea.first for idea in about)
                last = max(idea.after for idea in about)
                yield Order(rule, language, words[first].start, words[last - 1].end)


def _find_ideas(words: list[_Word]) -> dict[str, list[_Idea]]:
    """What the words say, in each language that knows any of them; the longest phrase at a place
    counts."""
    found: dict[str, list[_Idea]] = defaultdict(list)
    busy: dict[str, int] = {}
    for place in range(len(words)):
        for phrase in _find_longest_phrases(words, place):
            if busy.get(phrase.language, 0) <= place:
                after = place + len(phrase.words)
                if phrase.names == ("-",):
                    busy[phrase.language] = after
                found[phrase.language].extend(_Idea(name, place, after) for name in phrase.names)
    common = found.pop(ANY, [])
    return {
        language: [*ideas, *common, *_combine_ideas([*ideas, *common])]
        for language, ideas in found.items()
    }


def _combine_ideas(ideas: list[_Idea]) -> Iterator[_Idea]:
    """Ideas that two others make where the second follows soon after the first."""
    for name, (first, second, within) in NEAR.items():
        ends = [(idea.after, idea.first) for idea in ideas if idea.name == first]
        for idea in ideas if ends else ():
            if idea.name == second and (
                before := [at for end, at in ends if 0 <= idea.first - end < within]
            ):
                yield _Idea(name, max(before), idea.after)


# The vocabulary, by the first word of each phrase


@dataclass(frozen=True, slots=True)
class _Phrase:
    language: str
    names: tuple[str, ...]
    words: tuple[str, ...]  # a word that ends in * stands for all that begin so

    def fits(self, words: list[_Word], place: int) -> bool:
        if place + len(self.words) > len(words):
            return False
        return all(
            said.text.startswith(word[:-1]) if word.endswith("*") else said.text == word
            for word, said in zip(self.words[1:], words[place + 1 :], strict=False)
        )


def _find_longest_phrases(words: list[_Word], place: int) -> Iterable[_Phrase]:
    best: dict[str, _Phrase] = {}
    for phrase in _find_phrases_by_word(words[place].text):
        if phrase.language not in best and phrase.fits(words, place):
            best[phrase.language] = phrase
    return best.values()


@lru_cache(maxsize=8192)
def _find_phrases_by_word(word: str) -> tuple[_Phrase, ...]:
    """All phrases whose first word this can be, longest first, whole words before stems."""
    forms = {word, bare} if (bare := _ARABIC.sub("", word)) != word else {word}
    found = [phrase for form in forms for phrase in _WHOLE.get(form, ())]
    stems = [form[:end] for form in forms for end in range(2, len(form) + 1)]
    found += [phrase for stem in stems for phrase in _STEMS.get(stem, ())]
    if word.isdigit() and (len(word) >= 3 or int(word) >= _MANY):
        found.append(_Phrase(ANY, ("many",), (word,)))
    return tuple(sorted(found, key=lambda phrase: (-len(phrase.words), -len(phrase.words[0]))))


def _split_word(entry: str) -> tuple[str, ...]:
    words = (
        match
        for match in re.finditer(rf"://|[{_SINGLE}]|(?:(?![{_SINGLE}])[\w{_MARKS}])+\*?|\*", entry)
    )
    return tuple(
        f"{fold(word[0].rstrip('*'))}{'*' if word[0].endswith('*') else ''}" for word in words
    )


def _build_vocabulary() -> tuple[dict[str, list[_Phrase]], dict[str, list[_Phrase]]]:
    names: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for language, table in LANGUAGES.items():
        for name, entries in table.items():
            for entry in entries.split(","):
                names[language, _split_word(entry)].append(name)
    whole: dict[str, list[_Phrase]] = defaultdict(list)
    stems: dict[str, list[_Phrase]] = defaultdict(list)
    for (language, words), said in names.items():
        first = words[0]
        (stems if first.endswith("*") else whole)[first.rstrip("*")].append(
            _Phrase(language, tuple(said), words)
        )
    return whole, stems


_WHOLE, _STEMS = _build_vocabulary()
