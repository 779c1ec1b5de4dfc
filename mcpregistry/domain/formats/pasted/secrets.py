"""What looks like a secret in an entry, taken out of it: the entry then names a credential, ``${cred:NAME}``, instead.

A name that tells (``API_KEY``, ``--token``, ``Authorization``) or a shape that tells (``ghp_…``, ``sk-…``) is enough. A
text such as ``YOUR_API_KEY`` is none yet: it stands where the secret has to be entered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from mcpregistry.domain.formats.document import ServerEntry
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.domain.text.secret_names import is_secret_name

_SHAPED = re.compile(
    r"(?:gh[pousr]_|github_pat_|glpat-|sk-|sk_(?:live|test)_|xox[abposr]-|xapp-|AKIA|figd_|ntn_|secret_|lin_api_|hf_|pk_live_|eyJ)"
    r"[A-Za-z0-9_.\-]{8,}|AIza[A-Za-z0-9_-]{20,}"
)
_SCHEME = re.compile(r"(?i)((?:bearer|basic|token|apikey)\s+)(?=\S)")
_TO_FILL_IN = re.compile(
    r"(?i)\$\w+|\$?\{\{.*\}\}|\$\(.*\)|%\w+%|<[^>]*>|\[[^\]]*\]|\{[^}]*\}|.*\byour\b.*|.*\byour[-_].*|x{3,}[x-]*|.*[_-]x{3,}|\.{3,}|…|.*\.{3}|.*…|"
    r"(?:change|replace)[-_ ]?(?:me|this).*|.*[-_]here|(?:my[-_ ]?)?(?:token|secret|password|api[-_ ]?key|key)|\*+|\.\.\.",
    re.DOTALL,
)
_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*:)([^/\s@]+)(?=@)")
_HEADER = re.compile(r"([A-Za-z0-9-]+)(\s*:\s*)(.+)", re.DOTALL)
_QUERY = re.compile(r"(?<=[?&])([^=&#]+)=([^&#]+)")
_NO_NAME = re.compile(r"[^A-Za-z0-9.-]+")


Place = Literal["env", "headers", "command", "url"]


@dataclass(frozen=True, slots=True)
class Secret:
    """``name``: of the credential that the entry names in its place; ``label``: what it is, for people.

    ``place``: env, headers, command or url. ``value``: as pasted; empty where it is still to be filled in.
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
        """Whether the server's own settings can hold it unseen: the rest stands open in pages and process lists."""
        return self.place in ("env", "headers")


def taken_out(entry: ServerEntry) -> tuple[ServerEntry, tuple[Secret, ...]]:
    """The entry without what looks like a secret, and each that was taken out, in the order of a form."""
    taker = _Taker(entry.key)
    plain = replace(
        entry,
        command=tuple(taker.words(entry.command)),
        url=taker.url(entry.url),
        env={name: taker.named("env", name, value) for name, value in entry.env.items()},
        headers={name: taker.named("headers", name, value) for name, value in entry.headers.items()},
    )
    return plain, tuple(taker.found)


def to_fill_in(text: str) -> bool:
    """Whether a text only stands where something is to be entered."""
    return not text.strip() or bool(_TO_FILL_IN.fullmatch(text.strip()))


class _Taker:
    """Takes secrets out of texts, and gives each a name of its own."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.found: list[Secret] = []

    def named(self, place: Place, name: str, text: str) -> str:
        """The value of a variable or header. References stay, and so does the scheme before a token."""
        scheme = match[1] if (match := _SCHEME.match(text)) else ""
        value = text[len(scheme) :]
        if is_reference(value):
            return text
        if scheme or is_secret_name(name) or name.lower() == "cookie" or _SHAPED.fullmatch(value):
            return scheme + self._taken(place, name, value)
        return _PASSWORD.sub(self._password(place, name), text)

    def words(self, words: tuple[str, ...]) -> Iterator[str]:
        """``--token VALUE``, ``--token=VALUE``, ``Authorization: VALUE``, and words that look like a token."""
        for before, word in zip(("", *words), words, strict=False):
            yield self._header(word) or self._word(before, word)

    def _word(self, before: str, word: str) -> str:
        flag, equals, value = word.partition("=")
        if equals and value and is_secret_name(flag) and not is_reference(value):
            return f"{flag}={self._taken('command', flag.lstrip('-'), value)}"
        if before.startswith("-") and is_secret_name(before) and not word.startswith("-") and not is_reference(word):
            return self._taken("command", before.lstrip("-"), word)
        word = _SHAPED.sub(lambda match: self._taken("command", "argument", match[0]), word)
        return _PASSWORD.sub(self._password("command", "address"), word)

    def _header(self, word: str) -> str:
        """A word that is a telling header, as programs that pass on to an address are given it; else empty."""
        match = _HEADER.fullmatch(word)
        if match is None or not is_secret_name(match[1]):
            return ""
        scheme = _SCHEME.match(match[3])
        value = match[3][scheme.end() :] if scheme else match[3]
        if is_reference(value):
            return ""
        return f"{match[1]}{match[2]}{scheme[1] if scheme else ''}{self._taken('command', match[1], value)}"

    def url(self, url: str) -> str:
        """The password and values of telling parameters in the address, and tokens in its path."""

        def one(match: re.Match[str]) -> str:
            if not is_secret_name(match[1]) or is_reference(match[2]):
                return match[0]
            return f"{match[1]}={self._taken('url', match[1], match[2])}"

        plain = _QUERY.sub(one, _PASSWORD.sub(self._password("url", "address"), url))
        return plain if "${" in url else _SHAPED.sub(lambda match: self._taken("url", "address", match[0]), plain)

    def _password(self, place: Place, name: str) -> Callable[[re.Match[str]], str]:
        return lambda match: (
            match[0] if is_reference(match[2]) else match[1] + self._taken(place, f"{name} password", match[2])
        )

    def _taken(self, place: Place, label: str, value: str) -> str:
        said = _NO_NAME.sub("-", label).strip("-.").lower() or "secret"
        name = base = f"{self.key[:26]}-{said[:32]}"
        taken = {secret.name for secret in self.found}
        number = 2
        while name in taken:
            name, number = f"{base}-{number}", number + 1
        secret = Secret(name, label, place, "" if to_fill_in(value) else value)
        self.found.append(secret)
        return secret.reference
