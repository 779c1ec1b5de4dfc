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
from mcpregistry.domain.definitions.comparison import Sign, compare_lines
from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.domain.text.canonical import encode_canonical_json, encode_lossy_json
from mcpregistry.domain.text.display import show_invisible_characters

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


def hash_stored_text(text: str) -> str:
    """SHA-256 in hex of the stored bytes, as ``sha256sum`` would print it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_stored_arguments(text: str) -> dict[str, Any] | None:
    """The arguments as an object; None for text that cannot be taken apart (then it is shown as it
    is)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def list_arguments(text: str, before: str | None = None) -> list[Argument] | None:
    """The arguments one by one, as the approval page shows them, then those that are gone.

    ``text`` is the stored canonical JSON, ``before`` that of the earlier call to compare with. None
    when the text is no JSON object.
    """
    now = parse_stored_arguments(text)
    then = parse_stored_arguments(before) if before is not None else None
    if now is None:
        return None
    found = [_compare_argument(name, value, then) for name, value in now.items()]
    gone = [name for name in then or {} if name not in now]
    return found + [
        Argument(name, _name_json_type(then[name]), _format_argument_value(then[name]), "gone")
        for name in gone
        if then
    ]


def _compare_argument(name: str, value: Any, then: dict[str, Any] | None) -> Argument:
    shown = _format_argument_value(value)
    kind = _name_json_type(value)
    if then is None:
        return Argument(name, kind, shown)
    if name not in then:
        return Argument(name, kind, shown, "new")
    if _is_same_json(then[name], value):
        return Argument(name, kind, shown, "same")
    return Argument(
        name,
        kind,
        shown,
        "changed",
        tuple(compare_lines(_format_argument_value(then[name]), shown)),
    )


def _is_same_json(old: Any, new: Any) -> bool:
    """As canonical text: to Python, true is 1 and 1 is 1.0."""
    try:
        return encode_canonical_json(old) == encode_canonical_json(new)
    except ValueError:
        return False


def _format_argument_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:  # nested deeper than indenting reaches
        return encode_lossy_json(value)


def _name_json_type(value: Any) -> str:
    kinds = {
        bool: "boolean",
        int: "number",
        float: "number",
        str: "text",
        list: "list",
        dict: "object",
    }
    return kinds.get(type(value), "null")


def format_for_editor(text: str) -> str:
    """The stored arguments as indented JSON for the editor of the approval page.

    Characters that cannot be seen are written as JSON escapes, so that editing loses none. Text
    that is no object comes back as it is.
    """
    value = parse_stored_arguments(text)
    if value is None:
        return text
    try:
        plain = json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        return text
    return "".join(
        sign if sign == "\n" or show_invisible_characters(sign) == sign else _escape(sign)
        for sign in plain
    )


def _escape(sign: str) -> str:
    return json.dumps(sign)[1:-1]


def parse_edited_arguments(text: str) -> str:
    """What an approver typed into the editor, as canonical JSON; raises ``ArgumentsInvalid`` with
    line and column."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        whole = encode_canonical_json(value)
    except json.JSONDecodeError as error:
        raise ArgumentsInvalid(
            f"The arguments are not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            remedy="Correct the JSON at this place.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ArgumentsInvalid(
            "The arguments contain a value that JSON cannot represent, for example NaN.",
            remedy="Remove or replace the value.",
        ) from error
    if not isinstance(value, dict):
        raise ArgumentsInvalid(
            "The arguments must be a JSON object.",
            remedy=error_texts.advise_form("a JSON object", '{"query": "…"}'),
        )
    return whole


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
