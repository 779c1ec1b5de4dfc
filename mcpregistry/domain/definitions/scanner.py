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

from mcpregistry.domain.definitions.confusables import (
    find_foreign_letters,
    fold_to_latin,
    make_lookalike_key,
    split_name,
)
from mcpregistry.domain.definitions.findings import ScanFinding, Severity
from mcpregistry.domain.definitions.orders.reader import Order, read
from mcpregistry.domain.definitions.scanner_patterns import ASKED_FOR, PHRASES, PRAISE
from mcpregistry.domain.definitions.spelling import (
    find_mixed_scripts,
    find_separated_letters,
    list_readings,
)
from mcpregistry.domain.text.display import replace_invisible_characters, show_invisible_characters

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
        self._by_words = _group_names(self._others, lambda name: tuple(sorted(split_name(name))))
        self._by_reading = _group_names(self._others | frozenset(own), make_lookalike_key)
        self._long_texts: dict[tuple[str, str], list[ScanFinding]] = {}

    def scan(self, definition: Mapping[str, Any]) -> list[ScanFinding]:
        """Everything suspicious, worst first; at most one finding of a kind in each place."""
        found = [*self._scan_name(str(definition.get("name") or "")), *self._scan_texts(definition)]
        unique = {(finding.kind, finding.where): finding for finding in reversed(found)}
        return _limit_findings(
            sorted(unique.values(), key=lambda f: (-f.severity, f.where, f.kind))
        )[:MOST_FINDINGS]

    def _scan_name(self, name: str) -> Iterator[ScanFinding]:
        letters = find_foreign_letters(name)
        if letters:
            why = f"Letters of another script look like Latin letters: {', '.join(letters)}."
            yield ScanFinding(
                "look-alike",
                Severity.DANGER,
                "/name",
                show_invisible_characters(name, _EXCERPT),
                why,
            )
        words = tuple(sorted(split_name(name)))
        if len(words) > 2 and (
            same := [other for other in self._by_words.get(words, ()) if other != name]
        ):
            why = f"It has the same words as {show_invisible_characters(same[0], 80)}, a tool of another server, in another order or form."
            yield ScanFinding(
                "look-alike",
                Severity.ALARM,
                "/name",
                show_invisible_characters(name, _EXCERPT),
                why,
            )
            return
        for other in self._by_reading.get(make_lookalike_key(name), ()):
            if other != name and fold_to_latin(name).replace("-", "_") != fold_to_latin(
                other
            ).replace("-", "_"):
                why = f"It looks like the name of another tool, {show_invisible_characters(other, 80)}."
                yield ScanFinding(
                    "look-alike",
                    Severity.DANGER,
                    "/name",
                    show_invisible_characters(name, _EXCERPT),
                    why,
                )
                return

    def _scan_texts(self, definition: Mapping[str, Any]) -> Iterator[ScanFinding]:
        left = MOST_TEXT
        for where, text, is_key in iterate_strings(definition):
            if left <= 0:
                why = f"Only the first {MOST_TEXT:,} characters were scanned. Definitions rarely contain this much text."
                yield ScanFinding(
                    "too long",
                    Severity.ALARM,
                    where,
                    show_invisible_characters(text, _EXCERPT),
                    why,
                )
                return
            part = text[:left]
            left -= len(part)
            yield from _scan_key(where, part) if is_key else self._scan_text(where, part)

    def _scan_text(self, where: str, text: str) -> list[ScanFinding]:
        if len(text) < _LONG_TEXT:
            return [*_scan_plain_text(where, text, self._others)]
        if (where, text) not in self._long_texts:
            self._long_texts[where, text] = [*_scan_plain_text(where, text, self._others)]
        return self._long_texts[where, text]


def scan(
    definition: Mapping[str, Any], *, own: Iterable[str] = (), others: Iterable[str] = ()
) -> list[ScanFinding]:
    """The same of a single definition."""
    return Scanner(own=own, others=others).scan(definition)


def _group_names(names: Iterable[str], key: Callable[[str], _Key]) -> dict[_Key, list[str]]:
    groups: dict[_Key, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(key(name), []).append(name)
    return groups


def _limit_findings(findings: list[ScanFinding]) -> list[ScanFinding]:
    """The same in every corner of a schema would hide what else there is."""
    seen: Counter[str] = Counter()
    kept = []
    for finding in findings:
        seen[finding.kind] += 1
        if seen[finding.kind] <= MOST_OF_A_KIND:
            kept.append(finding)
    return kept


def find_highest_severity(findings: Iterable[ScanFinding]) -> Severity:
    """The highest severity among the findings; ``CLEAN`` when there are none."""
    return max((finding.severity for finding in findings), default=Severity.CLEAN)


def iterate_strings(value: Any) -> Iterator[tuple[str, str, bool]]:
    """(JSON pointer, text, whether it is an object's key) of every string, in the order of the
    document."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        where, node = waiting.pop()
        if isinstance(node, str):
            yield where, node, False
        elif isinstance(node, Mapping):
            pairs = [
                (f"{where}/{_escape_pointer_token(key)}", str(key), item)
                for key, item in node.items()
            ]
            yield from ((at, key, True) for at, key, _ in pairs)
            waiting.extend((at, item) for at, _, item in reversed(pairs))
        elif isinstance(node, list | tuple):
            waiting.extend(
                (f"{where}/{place}", item) for place, item in reversed(list(enumerate(node)))
            )


def _escape_pointer_token(key: object) -> str:
    return str(key)[:200].replace("~", "~0").replace("/", "~1")


def _scan_key(where: str, key: str) -> Iterator[ScanFinding]:
    yield from _scan_invisible_characters(where, key)
    words = fold_to_latin(_WORDS.sub(" ", key)).strip()
    if ASKED_FOR.search(words):
        why = "A parameter asks for data that no tool needs."
        yield ScanFinding(
            "parameter", Severity.ALARM, where, show_invisible_characters(key, _EXCERPT), why
        )
    if words.count(" ") >= 3:  # a name of many words is a sentence
        yield from (f for f in _scan_phrases(where, words) if f.severity > Severity.NOTE)


def _scan_plain_text(where: str, text: str, others: frozenset[str]) -> Iterator[ScanFinding]:
    yield from _scan_invisible_characters(where, text)
    yield from _scan_gaps(where, text)
    plain = normalize_text(text)
    yield from _scan_phrases(where, plain)
    yield from _scan_orders(where, text)
    yield from _scan_disguised_text(where, text)
    yield from _scan_other_tool_names(where, plain, others)
    yield from _scan_encoded_text(where, text)
    yield from _scan_praise(where, plain)


def _scan_praise(where: str, plain: str) -> Iterator[ScanFinding]:
    """One word of praise is vanity; several are there to be chosen over other tools (preference
    manipulation)."""
    if len({match[0] for match in PRAISE.finditer(plain)}) >= 2:
        first = PRAISE.search(plain)
        excerpt = _cut_excerpt(plain, first.start(), first.end()) if first else ""
        why = "The text praises the tool, to influence a model that chooses between tools."
        yield ScanFinding("praise", Severity.ALARM, where, excerpt, why)


def normalize_text(text: str) -> str:
    """The text in the plain form that ``scanner_patterns`` are written for: what a model makes of
    it, however it is spelt.
    """
    return _SPACE.sub(" ", fold_to_latin(replace_invisible_characters(text, ""))).replace(
        "\u2019", "'"
    )


def _scan_invisible_characters(where: str, text: str) -> Iterator[ScanFinding]:
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
            yield ScanFinding(
                kind, severity, where, _cut_excerpt(shown, match.start(), match.end()), why
            )
            rest = pattern.sub("", rest)
    if (left := replace_invisible_characters(rest, "\0")) != rest:
        at = left.index("\0")
        why = "Invisible characters split words so that readers and filters miss them."
        yield ScanFinding("invisible", Severity.ALARM, where, _cut_excerpt(shown, at, at + 1), why)


def _scan_gaps(where: str, text: str) -> Iterator[ScanFinding]:
    for match in _GAP.finditer(text):
        gap = match[0]
        rest = text[match.end() :].strip()
        if rest and (gap.count("\n") >= 12 or len(gap) >= 80):
            why = "A long gap moves the following text out of sight."
            yield ScanFinding(
                "gap", Severity.ALARM, where, show_invisible_characters(f"… {rest}", _EXCERPT), why
            )
            return


def _scan_phrases(where: str, plain: str) -> Iterator[ScanFinding]:
    for phrase in PHRASES:
        if match := phrase.pattern.search(plain):
            excerpt = _cut_excerpt(plain, match.start(), match.end())
            yield ScanFinding(phrase.kind, phrase.severity, where, excerpt, phrase.why)


def _scan_orders(where: str, text: str) -> Iterator[ScanFinding]:
    """Acts and objects that make an order, in any language that the scanner knows words of."""
    shown = _normalize_visible_text(text)
    for order in read(shown):
        excerpt = _cut_excerpt(shown, order.start, order.end)
        yield ScanFinding(order.rule.kind, Severity.ALARM, where, excerpt, _explain_order(order))


def _explain_order(order: Order) -> str:
    return (
        order.rule.why
        if order.language == "English"
        else f"{order.rule.why[:-1]}, in {order.language}."
    )


def _scan_disguised_text(where: str, text: str) -> Iterator[ScanFinding]:
    """Spellings that people read over and filters do not understand, and the orders in them."""
    shown = _normalize_visible_text(text)
    for match, why in (
        (
            find_separated_letters(shown),
            "Letters are separated, so that filters do not recognize the words.",
        ),
        (
            find_mixed_scripts(shown),
            "Words contain letters of another script that look like Latin letters.",
        ),
    ):
        if match:
            yield ScanFinding(
                "spelling", Severity.ALARM, where, _cut_excerpt(shown, *match.span()), why
            )
    if len(shown) > MOST_DISGUISED:
        why = f"Only the first {MOST_DISGUISED:,} characters were checked for disguised words."
        yield ScanFinding(
            "long", Severity.NOTE, where, show_invisible_characters(shown, _EXCERPT), why
        )
    for reading in list_readings(shown[:MOST_DISGUISED]):
        yield from _scan_phrases(where, normalize_text(reading))
        yield from _scan_orders(where, reading)


def _normalize_visible_text(text: str) -> str:
    """The text without what nobody sees, each character in its ordinary form."""
    return unicodedata.normalize("NFKC", replace_invisible_characters(text, ""))


def _scan_other_tool_names(where: str, plain: str, others: frozenset[str]) -> Iterator[ScanFinding]:
    """Names of other servers' tools; only such as no ordinary sentence holds."""
    for match in re.finditer(r"\b[a-z][a-z0-9]*_[a-z0-9_]+\b", plain):
        if match[0] in others:
            why = f"It refers to {match[0]}, a tool of another server."
            if where == "/name":
                why = f"Another server has a tool with this name, {match[0]}."
            yield ScanFinding(
                "other tool", Severity.NOTE, where, _cut_excerpt(plain, *match.span()), why
            )
            return


def _scan_encoded_text(where: str, text: str) -> Iterator[ScanFinding]:
    for match in _CODED.finditer(text):
        decoded = _decode_text(match[0])
        if decoded:
            severity = find_highest_severity(_scan_phrases(where, normalize_text(decoded)))
            why = f"Encoded text that decodes to: {show_invisible_characters(decoded, 200)}"
            yield ScanFinding(
                "encoded",
                max(severity, Severity.ALARM),
                where,
                _cut_excerpt(text, *match.span()),
                why,
            )
            return


def _decode_text(coded: str) -> str:
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


def _cut_excerpt(text: str, start: int, end: int) -> str:
    """The match with a little of what stands around it."""
    before = max(0, start - 30)
    part = text[before : min(end, start + _EXCERPT) + 30]
    return f"{'…' if before else ''}{show_invisible_characters(part)}{'…' if before + len(part) < len(text) else ''}"
