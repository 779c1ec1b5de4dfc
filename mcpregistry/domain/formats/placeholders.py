"""Placeholders: every host's spelling to ours and back.

Ours: ``${VAR}``, ``${VAR:-default}``, ``${cred:NAME}``, ``${workspace}``, ``${home}``. Reading
remembers each spelling that writing would not choose by itself, so that a file comes back as it
was; only the kinds of placeholders are remembered, never the text around them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_FOLDERS = {"workspaceFolder": "workspace", "userHome": "home"}
_HOST_NAMES = {ours: theirs for theirs, ours in _FOLDERS.items()}

_READ = re.compile(
    r"\$\{(?:(?P<kind>env|input|cred):(?P<named>[^{}\s:]+)|(?P<plain>[A-Za-z_]\w*)(?P<default>:-[^}]*)?)\}"
)
_READ_BRACE = re.compile(
    r"\{env:(?P<brace>[A-Za-z_]\w*)\}|\{file:(?P<file>[^{}]+)\}|" + _READ.pattern
)
_OURS = re.compile(r"\$\{(?:cred:(?P<cred>[^{}\s:]+)|(?P<name>[^{}\s:$]+)(?P<default>:-[^}]*)?)\}")
_FOREIGN = re.compile(r"\$\{[^}\s]*:[^}]*\}|\{(?:env|file):[^}]*\}|\{\{[^{}]+\}\}")
# What a shell or a host fills in; in a command line it may be meant for the program itself.
_FOREIGN_VALUE = re.compile(r"(?<![\w$\\])\$(?:[A-Za-z_]\w*|\([^)]*\))|%[A-Za-z_][A-Za-z0-9_]{2,}%")


_SCRIPT = re.compile(r"[;|&\n]|\s-\w+\s|^(?:if|for|exec|cd|source|eval|export|set)\s")
_FILE_KIND = "file:"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one host writes placeholders. ``variable``: plain ``${X}``, env ``${env:X}``, brace
    ``{env:X}``."""

    variable: str = "plain"
    defaults: bool = True
    inputs: bool = False
    folders: bool = False
    ours: bool = False  # understands everything that we write
    none: bool = False  # replaces nothing at all


OURS = Dialect(ours=True)


@dataclass(frozen=True, slots=True)
class Reading:
    """``text`` in our spelling; ``kinds`` when the host's own spelling must be remembered;
    ``foreign`` if unknown ones stay."""

    text: str
    changed: bool
    kinds: tuple[str, ...]
    foreign: bool


def read(text: str, dialect: Dialect) -> Reading:
    """A host's text in our spelling of placeholders."""
    kinds: list[str] = []

    def one(match: re.Match[str]) -> str:
        kind, canonical = _canonicalize_placeholder(match)
        kinds.append(kind)
        return canonical

    pattern = _READ_BRACE if dialect.variable == "brace" else _READ
    ours = pattern.sub(one, text)
    same = write(ours, dialect).text == text
    rest = _OURS.sub("", ours)
    return Reading(ours, ours != text, () if same else tuple(kinds), is_foreign(rest))


def is_foreign(text: str) -> bool:
    """Whether it holds a placeholder that nothing here fills in. A text of several words may be a
    program's script."""
    return bool(_FOREIGN.search(text)) or bool(
        _FOREIGN_VALUE.search(text) and not _SCRIPT.search(text)
    )


def name_file_credential(path: str) -> str:
    """The name of the credential that stands for the content of a file on the machine of the
    host."""
    return "file-" + re.sub(r"[^A-Za-z0-9.]+", "-", path).strip(".-")[-50:].strip(".-")


def _canonicalize_placeholder(match: re.Match[str]) -> tuple[str, str]:
    found = match.groupdict()
    if found.get("file"):
        return f"{_FILE_KIND}{found['file']}", f"${{cred:{name_file_credential(found['file'])}}}"
    if found.get("brace"):
        return "brace", f"${{{found['brace']}}}"
    if found["kind"] == "env":
        return "env", f"${{{found['named']}}}"
    if found["kind"]:
        return found["kind"], f"${{cred:{found['named']}}}"
    if found["plain"] in _FOLDERS and not found["default"]:
        return "folder", f"${{{_FOLDERS[found['plain']]}}}"
    return "plain", match.group()


@dataclass(frozen=True, slots=True)
class PlaceholderRendering:
    """``lost`` says in words what the host will not understand as we do; empty when it will."""

    text: str
    lost: tuple[str, ...] = ()


def write(text: str, dialect: Dialect, kinds: Sequence[str] = ()) -> PlaceholderRendering:
    """Our text as the host writes it; ``kinds`` are those that ``read`` remembered, used while they
    still fit."""
    lost: list[str] = []
    found = list(_OURS.finditer(text))
    chosen = iter(kinds) if len(kinds) == len(found) else None

    def one(match: re.Match[str]) -> str:
        spelled, loss = _spell(match, dialect, next(chosen) if chosen else "")
        if loss:
            lost.append(loss)
        return spelled

    return PlaceholderRendering(_OURS.sub(one, text), tuple(dict.fromkeys(lost)))


def _spell(match: re.Match[str], dialect: Dialect, kind: str) -> tuple[str, str]:
    """One placeholder as the host writes it, or as the file had it (``kind``); and what is lost by
    that."""
    cred, name, default = match.group("cred", "name", "default")
    if dialect.none and not kind:
        return match.group(), "this host does not replace placeholders"
    if cred:
        return _spell_credential(cred, dialect, kind)
    if name in _HOST_NAMES and not default:
        return _spell_folder(name, dialect, kind)
    if default and not kind and not dialect.defaults:
        return _VARIABLE[dialect.variable](name), "this host does not support default values"
    return (
        (match.group(), "")
        if default
        else (_VARIABLE.get(kind, _VARIABLE[dialect.variable])(name), "")
    )


def _spell_credential(name: str, dialect: Dialect, kind: str) -> tuple[str, str]:
    if kind.startswith(_FILE_KIND) and name_file_credential(kind.removeprefix(_FILE_KIND)) == name:
        return f"{{{kind}}}", ""
    if kind == "input" or (not kind and dialect.inputs):
        return f"${{input:{name}}}", ""
    return (
        f"${{cred:{name}}}",
        "" if dialect.ours or kind else "only Slipsnisse can insert a stored credential",
    )


def _spell_folder(name: str, dialect: Dialect, kind: str) -> tuple[str, str]:
    if kind == "folder" or (not kind and dialect.folders):
        return f"${{{_HOST_NAMES[name]}}}", ""
    if kind in ("env", "brace"):  # a variable of that very name
        return _VARIABLE[kind](name), ""
    return f"${{{name}}}", "" if dialect.ours or kind else "only Slipsnisse knows this folder"


_VARIABLE: Mapping[str, Callable[[str], str]] = {
    "plain": "${{{}}}".format,
    "env": "${{env:{}}}".format,
    "brace": "{{env:{}}}".format,
}


def expand(
    text: str, values: Mapping[str, str], later: Callable[[str], bool] = lambda name: False
) -> tuple[str, tuple[str, ...]]:
    """Replace ``${VAR}``, ``${workspace}`` and ``${home}`` found in ``values``; also names what was
    not found.

    Credentials stay, and the variables that ``later`` names, for they are looked up when the server
    is started.
    """
    missing: list[str] = []

    def one(match: re.Match[str]) -> str:
        cred, name, default = match.group("cred", "name", "default")
        if cred:
            return match.group()
        if values.get(name) and not later(name):
            return values[name]
        if default and not later(name):
            return str(default).removeprefix(":-")
        missing.append(name)
        return match.group()

    return _OURS.sub(one, text), tuple(missing)


def is_reference(text: str) -> bool:
    """Whether the text holds no secret itself: only placeholders without default, perhaps after a
    scheme's name."""
    if any(match.group("default") for match in _OURS.finditer(text)):
        return False
    rest, count = _OURS.subn("", text)
    return not text or (count > 0 and rest.strip().lower() in ("", "bearer", "basic", "token"))
