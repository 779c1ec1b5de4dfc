"""What looks like a secret in an entry, taken out of it: the entry then names a credential,
``${cred:NAME}``, instead.

A name that tells (``API_KEY``, ``--token``, ``Authorization``) or a shape that tells (``ghp_…``,
``sk-…``) is enough. A text such as ``YOUR_API_KEY`` is none yet: it stands where the secret has to
be entered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from mcpregistry.domain.formats.document import ServerEntry
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.domain.text.redaction import SHAPED, find_secret_spans
from mcpregistry.domain.text.secret_names import is_secret_name

_SCHEME = re.compile(r"(?i)((?:bearer|basic|token|apikey)\s+)(?=\S)")
_TO_FILL_IN = re.compile(
    r"(?i)\$\w+|\$?\{\{.*\}\}|\$\(.*\)|%\w+%|<[^>]*>|\[[^\]]*\]|\{[^}]*\}|.*\byour\b.*|.*\byour[-_].*|x{3,}[x-]*|.*[_-]x{3,}|\.{3,}|…|.*\.{3}|.*…|"
    r"(?:change|replace)[-_ ]?(?:me|this).*|.*[-_]here|(?:my[-_ ]?)?(?:token|secret|password|api[-_ ]?key|key)|\*+|\.\.\.",
    re.DOTALL,
)
_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*:)([^/\s@]+)(?=@)")
_LABELS = {
    "password": "address password",
    "part": "password",
    "bearer": "authorization",
    "shape": "argument",
}
_NO_NAME = re.compile(r"[^A-Za-z0-9.-]+")


Place = Literal["env", "headers", "command", "url"]


@dataclass(frozen=True, slots=True)
class Secret:
    """``name``: of the credential that the entry names in its place; ``label``: what it is, for
    people.

    ``place``: env, headers, command or url. ``value``: as pasted; empty where it is still to be
    filled in.
    """

    name: str
    label: str
    place: Place
    value: str = field(repr=False)

    @property
    def reference(self) -> str:
        """What stands for it in the entry."""
        return f"${{cred:{self.name}}}"

    @property
    def sealed_with_server(self) -> bool:
        """Whether the server's own settings can hold it unseen: the rest stands open in pages and
        process lists."""
        return self.place in ("env", "headers")


def extract_secrets(entry: ServerEntry) -> tuple[ServerEntry, tuple[Secret, ...]]:
    """The entry without what looks like a secret, and each that was taken out, in the order of a
    form."""
    taker = _Taker(entry.key)
    plain = replace(
        entry,
        command=tuple(taker.take_from_words(entry.command)),
        url=taker.take_from_url(entry.url),
        env={name: taker.take_from_value("env", name, value) for name, value in entry.env.items()},
        headers={
            name: taker.take_from_value("headers", name, value)
            for name, value in entry.headers.items()
        },
    )
    return plain, tuple(taker.found)


def is_placeholder_text(text: str) -> bool:
    """Whether a text only stands where something is to be entered."""
    return not text.strip() or bool(_TO_FILL_IN.fullmatch(text.strip()))


class _Taker:
    """Takes secrets out of texts, and gives each a name of its own."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.found: list[Secret] = []

    def take_from_value(self, place: Place, name: str, text: str) -> str:
        """The value of a variable or header. References stay, and so does the scheme before a
        token."""
        scheme = match[1] if (match := _SCHEME.match(text)) else ""
        value = text[len(scheme) :]
        if is_reference(value):
            return text
        if scheme or is_secret_name(name) or name.lower() == "cookie" or SHAPED.fullmatch(value):
            return scheme + self._replace_with_reference(place, name, value)
        return _PASSWORD.sub(self._make_password_replacer(place, name), text)

    def take_from_words(self, words: tuple[str, ...]) -> Iterator[str]:
        """The words of a command, without what pages and exports mask as well."""
        for before, word in zip(("", *words), words, strict=False):
            yield self._take_spans("command", before, word)

    def take_from_url(self, url: str) -> str:
        """The same of an address."""
        return self._take_spans("url", "", url)

    def _take_spans(self, place: Place, before: str, word: str) -> str:
        plain = ""
        end = 0
        for span in find_secret_spans(before, word):
            value = word[span.start : span.end]
            label = (
                "address"
                if place == "url" and span.name == "shape"
                else _LABELS.get(span.name, span.name.lstrip("-"))
            )
            plain += word[end : span.start] + (
                value if is_reference(value) else self._replace_with_reference(place, label, value)
            )
            end = span.end
        return plain + word[end:]

    def _make_password_replacer(self, place: Place, name: str) -> Callable[[re.Match[str]], str]:
        return lambda match: (
            match[0]
            if is_reference(match[2])
            else match[1] + self._replace_with_reference(place, f"{name} password", match[2])
        )

    def _replace_with_reference(self, place: Place, label: str, value: str) -> str:
        said = _NO_NAME.sub("-", label).strip("-.").lower() or "secret"
        base = f"{self.key[:26]}-{said[:32]}"
        name = base
        taken = {secret.name for secret in self.found}
        number = 2
        while name in taken:
            name = f"{base}-{number}"
            number = number + 1
        secret = Secret(name, label, place, "" if is_placeholder_text(value) else value)
        self.found.append(secret)
        return secret.reference
