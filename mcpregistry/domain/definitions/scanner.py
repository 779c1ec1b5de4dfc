"""What in a definition may be meant for the model and not for the reader: findings for a person to
weigh.

A scanner is triage, never a gate: nothing is approved because nothing was found (MCPTox: models
follow what no pattern knows). Every string that a model sees is read, keys included, since any part
of a schema can be poisoned. Time is linear in the text and bounded; what is not read is itself a
finding.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from mcpregistry.domain.definitions.confusables import foreign_letters, latin, name_words, reads_as
from mcpregistry.domain.definitions.findings import Finding, Severity
from mcpregistry.domain.definitions.orders.reader import Order, read
from mcpregistry.domain.definitions.scanner_patterns import ASKED_FOR, PHRASES, PRAISE
from mcpregistry.domain.definitions.spelling import mixed_scripts, readings, set_apart
from mcpregistry.domain.text.display import hidden, printable

MOST_TEXT = 100_000  # characters read of one definition
MOST_DISGUISED = 20_000  # characters of one text that are read once more for disguised words
MOST_FINDINGS = 50
MOST_OF_A_KIND = 3
_EXCERPT = 160
_LONG_TEXT = 200  # characters from which a text is remembered

_Key = TypeVar("_Key", bound=Hashable)

_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_TAGS = re.compile("[\U000e0000-\U000e0fff]")
_TERMINAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
_SPACE = re.compile(r"\s+")
_GAP = re.compile(r"\s{40,}")
_CODED = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}|(?:[0-9a-fA-F]{2}){20,}")
_WORDS = re.compile(r"[_\W]+|(?<=[a-z])(?=[A-Z])")
# Joined emoji and letters of Indic and Arabic script need these two.
_JOINERS = re.compile("(?<=[^\x00-\u2fff])\u200d|(?<=[\u0600-\u0dff])[\u200c\u200d]")


class Scanner:
    """Scans the definitions of one server. A text that several of them contain, such as
    instructions, is read once.

    ``own`` are the names of the tools of the same server, ``others`` those of all other servers.
    """

    def __init__(self, *, own: Iterable[str] = (), others: Iterable[str] = ()) -> None:
        self._others = frozenset(others)
        self._by_words = _grouped(self._others, lambda name: tuple(sorted(name_words(name))))
        self._by_reading = _grouped(self._others | frozenset(own), reads_as)
        self._long_texts: dict[tuple[str, str], list[Finding]] = {}

    def scan(self, definition: Mapping[str, Any]) -> list[Finding]:
        """Everything suspicious, worst first; at most one finding of a kind in each place."""
        found = [*self._of_name(str(definition.get("name") or "")), *self._of_texts(definition)]
        unique = {(finding.kind, finding.where): finding for finding in reversed(found)}
        return _few_of_each(sorted(unique.values(), key=lambda f: (-f.severity, f.where, f.kind)))[
            :MOST_FINDINGS
        ]

    def _of_name(self, name: str) -> Iterator[Finding]:
        letters = foreign_letters(name)
        if letters:
            why = f"Letters of another script look like Latin ones: {', '.join(letters)}."
            yield Finding("look-alike", Severity.DANGER, "/name", printable(name, _EXCERPT), why)
        words = tuple(sorted(name_words(name)))
        if len(words) > 2 and (
            same := [other for other in self._by_words.get(words, ()) if other != name]
        ):
            why = f"It has the same words as {printable(same[0], 80)}, a tool of another server, in another order or form."
            yield Finding("look-alike", Severity.ALARM, "/name", printable(name, _EXCERPT), why)
            return
        for other in self._by_reading.get(reads_as(name), ()):
            if other != name and latin(name).replace("-", "_") != latin(other).replace("-", "_"):
                why = f"It looks like the name of another tool, {printable(other, 80)}."
                yield Finding(
                    "look-alike", Severity.DANGER, "/name", printable(name, _EXCERPT), why
                )
                return

    def _of_texts(self, definition: Mapping[str, Any]) -> Iterator[Finding]:
        left = MOST_TEXT
        for where, text, is_key in strings(definition):
            if left <= 0:
                why = f"Only the first {MOST_TEXT:,} characters were scanned. Definitions rarely contain this much text."
                yield Finding("too long", Severity.ALARM, where, printable(text, _EXCERPT), why)
                return
            part = text[:left]
            left -= len(part)
            yield from _of_key(where, part) if is_key else self._of_text(where, part)

    def _of_text(self, where: str, text: str) -> list[Finding]:
        if len(text) < _LONG_TEXT:
            return [*_of_text(where, text, self._others)]
        if (where, text) not in self._long_texts:
            self._long_texts[where, text] = [*_of_text(where, text, self._others)]
        return self._long_texts[where, text]


def scan(
    definition: Mapping[str, Any], *, own: Iterable[str] = (), others: Iterable[str] = ()
) -> list[Finding]:
    """The same of a single definition."""
    return Scanner(own=own, others=others).scan(definition)


def _grouped(names: Iterable[str], key: Callable[[str], _Key]) -> dict[_Key, list[str]]:
    groups: dict[_Key, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(key(name), []).append(name)
    return groups


def _few_of_each(findings: list[Finding]) -> list[Finding]:
    """The same in every corner of a schema would hide what else there is."""
    seen: Counter[str] = Counter()
    kept = []
    for finding in findings:
        seen[finding.kind] += 1
        if seen[finding.kind] <= MOST_OF_A_KIND:
            kept.append(finding)
    return kept


def worst(findings: Iterable[Finding]) -> Severity:
    """The highest severity among the findings; ``CLEAN`` when there are none."""
    return max((finding.severity for finding in findings), default=Severity.CLEAN)


def strings(value: Any) -> Iterator[tuple[str, str, bool]]:
    """(JSON pointer, text, whether it is an object's key) of every string, in the order of the
    document."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        where, node = waiting.pop()
        if isinstance(node, str):
            yield where, node, False
        elif isinstance(node, Mapping):
            pairs = [(f"{where}/{_token(key)}", str(key), item) for key, item in node.items()]
            yield from ((at, key, True) for at, key, _ in pairs)
            waiting.extend((at, item) for at, _, item in reversed(pairs))
        elif isinstance(node, list | tuple):
            waiting.extend(
                (f"{where}/{place}", item) for place, item in reversed(list(enumerate(node)))
            )


def _token(key: object) -> str:
    return str(key)[:200].replace("~", "~0").replace("/", "~1")


def _of_key(where: str, key: str) -> Iterator[Finding]:
    yield from _unseen(where, key)
    words = latin(_WORDS.sub(" ", key)).strip()
    if ASKED_FOR.search(words):
        why = "A parameter asks for data that no tool needs."
        yield Finding("parameter", Severity.ALARM, where, printable(key, _EXCERPT), why)
    if words.count(" ") >= 3:  # a name of many words is a sentence
        yield from (f for f in _phrases(where, words) if f.severity > Severity.NOTE)


def _of_text(where: str, text: str, others: frozenset[str]) -> Iterator[Finding]:
    yield from _unseen(where, text)
    yield from _gaps(where, text)
    plain = readable(text)
    yield from _phrases(where, plain)
    yield from _orders(where, text)
    yield from _disguised(where, text)
    yield from _other_tools(where, plain, others)
    yield from _coded(where, text)
    yield from _praise(where, plain)


def _praise(where: str, plain: str) -> Iterator[Finding]:
    """One word of praise is vanity; several are there to be chosen over other tools (preference
    manipulation)."""
    if len({match[0] for match in PRAISE.finditer(plain)}) >= 2:
        first = PRAISE.search(plain)
        excerpt = _excerpt(plain, first.start(), first.end()) if first else ""
        why = "The text praises the tool, to influence a model that chooses between tools."
        yield Finding("praise", Severity.ALARM, where, excerpt, why)


def readable(text: str) -> str:
    """The text in the plain form that ``scanner_patterns`` are written for: what a model makes of
    it, however it is spelt.
    """
    return _SPACE.sub(" ", latin(hidden(text, ""))).replace("\u2019", "'")


def _unseen(where: str, text: str) -> Iterator[Finding]:
    shown = _JOINERS.sub("", text.replace("\r\n", "\n"))
    kinds = (
        (
            _BIDI,
            "direction",
            Severity.DANGER,
            "Characters that change the text direction make the text read differently.",
        ),
        (
            _TAGS,
            "hidden text",
            Severity.DANGER,
            "Tag characters contain text that only a model can read.",
        ),
        (
            _TERMINAL,
            "control",
            Severity.DANGER,
            "Control characters can hide or rewrite text in a terminal.",
        ),
    )
    rest = shown
    for pattern, kind, severity, why in kinds:
        if match := pattern.search(rest):
            yield Finding(kind, severity, where, _excerpt(shown, match.start(), match.end()), why)
            rest = pattern.sub("", rest)
    if (left := hidden(rest, "\0")) != rest:
        at = left.index("\0")
        why = "Invisible characters split words so that readers and filters miss them."
        yield Finding("invisible", Severity.ALARM, where, _excerpt(shown, at, at + 1), why)


def _gaps(where: str, text: str) -> Iterator[Finding]:
    for match in _GAP.finditer(text):
        gap = match[0]
        rest = text[match.end() :].strip()
        if rest and (gap.count("\n") >= 12 or len(gap) >= 80):
            why = "A long gap moves the following text out of sight."
            yield Finding("gap", Severity.ALARM, where, printable(f"… {rest}", _EXCERPT), why)
            return


def _phrases(where: str, plain: str) -> Iterator[Finding]:
    for phrase in PHRASES:
        if match := phrase.pattern.search(plain):
            excerpt = _excerpt(plain, match.start(), match.end())
            yield Finding(phrase.kind, phrase.severity, where, excerpt, phrase.why)


def _orders(where: str, text: str) -> Iterator[Finding]:
    """Acts and objects that make an order, in any language that the scanner knows words of."""
    shown = _shown(text)
    for order in read(shown):
        excerpt = _excerpt(shown, order.start, order.end)
        yield Finding(order.rule.kind, Severity.ALARM, where, excerpt, _why(order))


def _why(order: Order) -> str:
    return (
        order.rule.why
        if order.language == "English"
        else f"{order.rule.why[:-1]}, in {order.language}."
    )


def _disguised(where: str, text: str) -> Iterator[Finding]:
    """Spellings that people read over and filters do not understand, and the orders in them."""
    shown = _shown(text)
    for match, why in (
        (set_apart(shown), "Letters are separated, so that filters do not recognize the words."),
        (
            mixed_scripts(shown),
            "Words contain letters of another script that look like Latin ones.",
        ),
    ):
        if match:
            yield Finding("spelling", Severity.ALARM, where, _excerpt(shown, *match.span()), why)
    if len(shown) > MOST_DISGUISED:
        why = f"Only the first {MOST_DISGUISED:,} characters were checked for disguised words."
        yield Finding("long", Severity.NOTE, where, printable(shown, _EXCERPT), why)
    for reading in readings(shown[:MOST_DISGUISED]):
        yield from _phrases(where, readable(reading))
        yield from _orders(where, reading)


def _shown(text: str) -> str:
    """The text without what nobody sees, each character in its ordinary form."""
    return unicodedata.normalize("NFKC", hidden(text, ""))


def _other_tools(where: str, plain: str, others: frozenset[str]) -> Iterator[Finding]:
    """Names of other servers' tools; only such as no ordinary sentence holds."""
    for match in re.finditer(r"\b[a-z][a-z0-9]*_[a-z0-9_]+\b", plain):
        if match[0] in others:
            why = f"It refers to {match[0]}, a tool of another server."
            if where == "/name":
                why = f"Another server has a tool with this name, {match[0]}."
            yield Finding("other tool", Severity.NOTE, where, _excerpt(plain, *match.span()), why)
            return


def _coded(where: str, text: str) -> Iterator[Finding]:
    for match in _CODED.finditer(text):
        decoded = _decoded(match[0])
        if decoded:
            severity = worst(_phrases(where, readable(decoded)))
            why = f"Encoded text that decodes to: {printable(decoded, 200)}"
            yield Finding(
                "encoded", max(severity, Severity.ALARM), where, _excerpt(text, *match.span()), why
            )
            return


def _decoded(coded: str) -> str:
    """The sentence behind Base64 or hex digits; empty when there is none."""
    for decode in (
        binascii.unhexlify,
        lambda text: base64.b64decode(text + "=" * (-len(text) % 4)),
    ):
        try:
            text = decode(coded).decode()
        except ValueError:
            continue
        if text.isprintable() and text.count(" ") >= 2:
            return text
    return ""


def _excerpt(text: str, start: int, end: int) -> str:
    """The match with a little of what stands around it."""
    before = max(0, start - 30)
    part = text[before : min(end, start + _EXCERPT) + 30]
    return (
        f"{'…' if before else ''}{printable(part)}{'…' if before + len(part) < len(text) else ''}"
    )
