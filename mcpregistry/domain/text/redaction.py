"""Secrets taken out of what others may read: results of tools, servers' logs, and our own log
lines.

Known secrets are looked for by their value (``redact_bytes``, ``Redactor``), unknown ones by name
and shape (``mask_log_event``).

A server that is asked cleverly may tell its own environment. What is found are exact values, plain
and in the forms that programs give them: base64 (also inside a longer text), URL- and JSON-escaped.
A value that is split, reversed or encrypted is not found; nothing could promise that.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from mcpregistry.domain.text.secret_names import is_secret_name

SHORTEST = 8  # shorter values occur in any text
REDACTED = "[secret]"
MASK = "***"
_DEEPEST = 6  # levels of a log line's values; what lies deeper is masked whole
_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
_TELLING = re.compile(
    r"authorization|cookie|token|passw|secret|credential|api[-_]?key|private[-_]?key|^env$|^environ(ment)?$|^headers$",
    re.IGNORECASE,
)
# A bearer token, or a password in an address, also if the address is cut after it. A port is not a
# password.
_PORT = r"""\d{1,5}(?:[\s"',;)\]}>\\]|[/?](?![^\s"']*@)|$)"""
_SHAPED = re.compile(rf"""(?i)(\bbearer\s+|://(?!\[)[^/\s:@]*:(?!{_PORT}))[^\s@"',;]+""")
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|apikey)\s+(\S+)")


def redact_bytes(text: bytes, secrets: Iterable[str]) -> bytes:
    """``text`` without these exact values; the longest first, so that none is left in part."""
    for secret in sorted(
        {secret for secret in secrets if len(secret) >= SHORTEST}, key=len, reverse=True
    ):
        text = text.replace(secret.encode("utf-8", "surrogatepass"), REDACTED.encode())
    return text


# Which values are secrets


def find_secrets(*, pairs: Mapping[str, str], argv: Sequence[str] = (), url: str = "") -> set[str]:
    """Values that by their name or shape are secrets: of variables, headers, flags and query
    parameters.

    An ordinary value, such as a path, is left alone: results are full of those.
    """
    flags = [(argv[place - 1] if place else "", word) for place, word in enumerate(argv)]
    named = [*pairs.items(), *((name, value) for name, value in flags if name.startswith("-"))]
    for word in argv:
        name, equals, value = word.partition("=")
        if equals:
            named.append((name, value))
    named += parse_qsl(urlsplit(url).query)
    found = {value for name, value in named if is_secret_name(name) or name.lower() == "cookie"}
    found |= {match[1] for value in found if (match := _SCHEME.fullmatch(value))}
    words = [*flags, ("", url)]
    found |= {
        word[span.start : span.end]
        for before, word in words
        for span in find_secret_spans(before, word)
    }
    texts = [*pairs.values(), *argv, url]
    passwords = {match[1] for text in texts for match in _PASSWORD.finditer(text)}
    return found | passwords | {unquote(each) for each in passwords}


# Words of a command, and addresses

_HEADER_WORD = re.compile(
    r"(?:.*=)?([\w-]+)\s*:\s*(?:(?:bearer|basic|token|apikey)\s+)?(\S.*)", re.IGNORECASE | re.DOTALL
)
# of services that give theirs a form; each has a digit, which sk-learn-server and secret_manager.py
# have not
_FORMS = (
    r"(?:gh[pousr]_|github_pat_|glpat-|sk-|sk_(?:live|test)_|xox[abposr]-|xapp-|AKIA|figd_|ntn_|secret_|lin_api_|hf_|pk_live_|eyJ)"
    r"(?=[A-Za-z_.\-]*[0-9])[A-Za-z0-9_.\-]{8,}|AIza[A-Za-z0-9_-]{20,}"
)
SHAPED = re.compile(_FORMS)
_IN_WORD = re.compile(
    r"://[^/\s:@]*:(?P<password>[^/\s@]+)@|://(?P<user>(?=[^/\s:@]*\d)[\w.-]{20,})@"
    r"|[?&#](?P<parameter>[^=&#\s]+)=(?P<value>[^&#\s\"']+)|(?i:\bbearer\s+)(?P<bearer>[^\s\"',;]+)"
    rf"|;\s*(?i:password|pwd)\s*=\s*(?P<part>[^;\s\"']+)|(?<![\w$])(?P<shape>{_FORMS})"
)
# Before a value: a flag, a variable, a field of JSON, a header.
_NAMED = re.compile(
    r"(?<![\w-])--?(?P<flag>[A-Za-z][\w.-]*)(?:=|\s+(?!-))|(?<![\w$?&#./-])(?P<variable>[A-Za-z_][\w.]*)="
    r"|\"(?P<field>[A-Za-z_][\w.-]*)\"\s*:\s*(?=\")|(?<![\w$-])(?P<header>[A-Za-z][\w-]*)\s?:(?!//)\s*"
)
_VALUE = re.compile(
    r"""(?:(?i:bearer|basic|token|apikey)\s+)?(?:'(?P<single>[^'$]+)'|"(?P<double>(?:[^"\\$]|\\.)+)"|(?P<plain>[^\s"'$;|&<>()]+))"""
)
# a parameter that gives access to what lies at an address
_SIGNATURE = re.compile(r"(?i)(?:^|[-_])sig(?:nature)?$")


@dataclass(frozen=True, slots=True)
class SecretSpan:
    """Where a secret stands in a word; ``name`` says what kind it is. A reference (``${...}``) is
    no secret."""

    start: int
    end: int
    name: str


def find_secret_spans(before: str, word: str) -> list[SecretSpan]:
    """By name or shape: values of flags, headers, passwords and parameters of addresses.
    ``before``: the word in front."""
    return [span for span in _find_spans(before, word) if "${" not in word[span.start : span.end]]


def _find_spans(before: str, word: str) -> list[SecretSpan]:
    flag, equals, value = word.partition("=")
    if equals and value and not re.search(r"\s|://", flag) and is_secret_name(flag):
        return [SecretSpan(len(flag) + 1, len(word), flag)]
    if (
        before.startswith("-")
        and "=" not in before
        and is_secret_name(before)
        and not word.startswith("-")
    ):
        return [SecretSpan(0, len(word), before)]
    if before.lstrip("-").lower() == "cookie" and before.startswith("-"):
        return [SecretSpan(0, len(word), before)]
    header = _HEADER_WORD.fullmatch(word)
    if header and (is_secret_name(header[1]) or header[1].lower() == "cookie"):
        return [SecretSpan(*header.span(2), header[1])]
    return [*_find_nested_spans(word)]


def _find_nested_spans(word: str) -> Iterator[SecretSpan]:
    """In an address, a line of a shell, JSON, or a text of names and values."""
    end = 0
    for span in sorted(
        [*_find_spans_by_shape(word), *_find_spans_by_name(word)], key=lambda span: span.start
    ):
        if span.start >= end:
            yield span
            end = span.end


def _find_spans_by_shape(word: str) -> Iterator[SecretSpan]:
    for match in _IN_WORD.finditer(word):
        kind = match.lastgroup or ""
        name = match["parameter"] or ""
        if kind != "value" or is_secret_name(name) or _SIGNATURE.search(name):
            yield SecretSpan(*match.span(kind), name or kind)


def _find_spans_by_name(word: str) -> Iterator[SecretSpan]:
    for match in _NAMED.finditer(word):
        name = match[match.lastgroup or 0]
        value = _VALUE.match(word, match.end()) if is_secret_name(name) else None
        if value is not None:
            yield SecretSpan(*value.span(value.lastgroup or 0), name)


def mask_words(words: Sequence[str]) -> list[str]:
    """A command, or one address, for people who may not see what is secret in it, and for records
    that are kept."""
    shown = []
    for before, word in zip(("", *words), words, strict=False):
        for span in reversed(find_secret_spans(before, word)):
            word = f"{word[: span.start]}{MASK}{word[span.end :]}"  # noqa: PLW2901
        shown.append(word)
    return shown


# Results


class Redactor:
    """Finds and replaces the secrets of one server in JSON values. False: there is nothing to look
    for.

    Secrets with fewer than ``shortest`` characters are not looked for.
    """

    def __init__(self, secrets: Iterable[str], *, shortest: int = SHORTEST) -> None:
        sought = (secret for secret in secrets if len(secret) >= shortest)
        needles = {form for secret in sought for form in _list_encoded_forms(secret)}
        self._needles = sorted(needles, key=len, reverse=True)
        self._all = re.compile("|".join(map(re.escape, self._needles)))

    def __bool__(self) -> bool:
        return bool(self._needles)

    def clean(self, value: Any) -> tuple[Any, int]:
        """The value without secrets and how many were replaced; the very same value when there are
        none."""
        whole = "\x00".join(_iterate_texts(value))
        if not any(needle in whole for needle in self._needles):
            return value, 0
        return self._replace_secrets(value), len(self._all.findall(whole))

    def text(self, text: str) -> str:
        """One text with the secrets replaced."""
        return self._all.sub(REDACTED, text) if self._needles else text

    def _replace_secrets(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._replace_secrets(item) for item in value]
        if isinstance(value, dict):
            return {
                self._replace_secrets(name): self._replace_secrets(item)
                for name, item in value.items()
            }
        return value


def count_characters(value: Any) -> int:
    """How many characters of text a JSON value holds; the pool moves large ones to a thread."""
    return sum(map(len, _iterate_texts(value)))


def _iterate_texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names included. Iterative, so that depth cannot hurt us."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            yield from node
            waiting.extend(node.values())


def _list_encoded_forms(secret: str) -> set[str]:
    raw = secret.encode("utf-8", "surrogatepass")
    escaped = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    quoted = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    encoded = {
        base64.b64encode(raw).decode(),
        *(_compute_base64_core(raw, offset) for offset in range(3)),
    }
    return {secret, *escaped, *quoted, *encoded, *(text.translate(_URLSAFE) for text in encoded)}


_URLSAFE = str.maketrans("+/", "-_")


def _compute_base64_core(raw: bytes, offset: int) -> str:
    """The base64 letters that are the same wherever ``raw`` stands at this offset in a longer
    text."""
    text = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
    return text[(0, 2, 3)[offset] : len(text) - bool((offset + len(raw)) % 3)]


# Log lines


def mask_log_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """A log line's values without secrets: under telling names at any depth, and in texts what
    looks like a bearer token or like a password inside an address.
    """
    return {key: _mask_named_value(key, value, _DEEPEST) for key, value in event.items()}


def _mask_named_value(key: object, value: Any, depth: int) -> Any:
    """Numbers under a telling name are counts (``input_tokens``), not secrets."""
    if (
        isinstance(key, str)
        and value
        and _TELLING.search(key)
        and not isinstance(value, int | float)
    ):
        return MASK
    return _mask_value(value, depth)


def _mask_value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _SHAPED.sub(rf"\1{MASK}", value)
    if isinstance(value, dict | list | tuple) and depth == 0:
        return MASK
    if isinstance(value, dict):
        return {key: _mask_named_value(key, item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_value(item, depth - 1) for item in value]
    return value
