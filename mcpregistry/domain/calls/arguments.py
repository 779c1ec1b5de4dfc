"""A call's arguments laid out for the person who decides: one by one, against those of an earlier
call.

Everything here works on stored text (canonical JSON) and returns text that is still foreign:
whoever shows it names its invisible characters.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from mcpregistry.domain import error_texts
from mcpregistry.domain.definitions.comparison import Sign, lines
from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.domain.text.canonical import canonical, stored
from mcpregistry.domain.text.display import printable

Change = Literal["", "same", "changed", "new", "gone"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument. ``text`` is a string as it is, anything else as indented JSON; ``kind`` is its
    JSON type.

    ``change`` is against the earlier call, empty without one; ``lines`` are filled where it
    changed.
    """

    name: str
    kind: str
    text: str
    change: Change = ""
    lines: tuple[tuple[Sign, str], ...] = ()


def sha256(text: str) -> str:
    """SHA-256 in hex of the stored bytes, as ``sha256sum`` would print it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parsed(text: str) -> dict[str, Any] | None:
    """The arguments as an object; None for text that cannot be taken apart (then it is shown as it
    is)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def laid_out(text: str, before: str | None = None) -> list[Argument] | None:
    """The arguments one by one, as the approval page shows them, then those that are gone.

    ``text`` is the stored canonical JSON, ``before`` that of the earlier call to compare with. None
    when the text is no JSON object.
    """
    now = parsed(text)
    then = parsed(before) if before is not None else None
    if now is None:
        return None
    found = [_argument(name, value, then) for name, value in now.items()]
    gone = [name for name in then or {} if name not in now]
    return found + [
        Argument(name, _kind(then[name]), _shown(then[name]), "gone") for name in gone if then
    ]


def _argument(name: str, value: Any, then: dict[str, Any] | None) -> Argument:
    shown = _shown(value)
    kind = _kind(value)
    if then is None:
        return Argument(name, kind, shown)
    if name not in then:
        return Argument(name, kind, shown, "new")
    if _same(then[name], value):
        return Argument(name, kind, shown, "same")
    return Argument(name, kind, shown, "changed", tuple(lines(_shown(then[name]), shown)))


def _same(old: Any, new: Any) -> bool:
    """As canonical text: to Python, true is 1 and 1 is 1.0."""
    try:
        return canonical(old) == canonical(new)
    except ValueError:
        return False


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:  # nested deeper than indenting reaches
        return stored(value)


def _kind(value: Any) -> str:
    kinds = {
        bool: "boolean",
        int: "number",
        float: "number",
        str: "text",
        list: "list",
        dict: "object",
    }
    return kinds.get(type(value), "null")


def editable(text: str) -> str:
    """The stored arguments as indented JSON for the editor of the approval page.

    Characters that cannot be seen are written as JSON escapes, so that editing loses none. Text
    that is no object comes back as it is.
    """
    value = parsed(text)
    if value is None:
        return text
    try:
        plain = json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        return text
    return "".join(
        sign if sign == "\n" or printable(sign) == sign else _escape(sign) for sign in plain
    )


def _escape(sign: str) -> str:
    return json.dumps(sign)[1:-1]


def typed_in(text: str) -> str:
    """What an approver typed into the editor, as canonical JSON; raises ``ArgumentsInvalid`` with
    line and column."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        whole = canonical(value)
    except json.JSONDecodeError as error:
        raise ArgumentsInvalid(
            f"The arguments are not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            remedy="Correct the JSON at this place.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ArgumentsInvalid(
            "The arguments contain a value that JSON cannot represent.",
            remedy="Remove or replace the value.",
        ) from error
    if not isinstance(value, dict):
        raise ArgumentsInvalid(
            "The arguments must be a JSON object.",
            remedy=error_texts.use("a JSON object", '{"query": "…"}'),
        )
    return whole


def _no_constant(name: str) -> None:
    raise ValueError(name)
