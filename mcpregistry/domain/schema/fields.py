"""What a person is asked for, so that a call has the arguments that a tool's input schema wants.

Pure, and bounded however the schema is. It only lays out a form: whether the arguments fit is said
by the pipeline, which validates them as those of every call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MOST_FIELDS = 40
MOST_CHOICES = 200
Kind = Literal["text", "number", "boolean", "choice", "json"]
_PLAIN: dict[str, Kind] = {
    "string": "text",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One argument. ``default`` is what the form begins with, as it is typed; ``choices`` are JSON
    texts."""

    name: str
    kind: Kind
    required: bool
    about: str = ""
    default: str = ""
    choices: tuple[str, ...] = ()
    expects: str = ""


def list_fields(schema: Mapping[str, Any]) -> list[Field]:
    """The arguments that the schema names, the required ones first. What is nested is one field,
    for JSON."""
    named = schema.get("properties")
    if not isinstance(named, Mapping):
        return []
    required = schema.get("required")
    wanted = (
        {name for name in required if isinstance(name, str)}
        if isinstance(required, list)
        else set()
    )
    found = [
        _build_field(str(name), said, str(name) in wanted)
        for name, said in list(named.items())[:MOST_FIELDS]
    ]
    return sorted(found, key=lambda field: not field.required)


def parse_field_text(field: Field, text: str) -> Any:
    """The value of what was typed into the field; raises ValueError, with a sentence, where it is
    none of its kind."""
    if field.kind == "text":
        return text
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError("Enter a number." if field.kind == "number" else "Enter JSON.") from None
    if field.kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError("Enter a number.")
    return value


def _refuse(name: str) -> None:
    raise ValueError(name)


def _build_field(name: str, said: object, required: bool) -> Field:
    given: Mapping[str, Any] = _drop_null_option(said) if isinstance(said, Mapping) else {}
    about = given.get("description")
    kind, choices, expects = _find_field_kind(given)
    default = _format_default(kind, given)
    return Field(
        name, kind, required, about if isinstance(about, str) else "", default, choices, expects
    )


def _drop_null_option(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of "this, or null", which many servers write for what may be left out, this."""
    for word in ("anyOf", "oneOf"):
        ways = said.get(word)
        kept = [way for way in ways if way != {"type": "null"}] if isinstance(ways, list) else []
        if len(kept) == 1 and isinstance(kept[0], Mapping):
            return {**{key: value for key, value in said.items() if key != word}, **kept[0]}
    return said


def _find_field_kind(given: Mapping[str, Any]) -> tuple[Kind, tuple[str, ...], str]:
    listed = [given["const"]] if "const" in given else given.get("enum")
    if isinstance(listed, list) and 0 < len(listed) <= MOST_CHOICES:
        return "choice", tuple(json.dumps(value, ensure_ascii=False) for value in listed), ""
    kind = given.get("type")
    if isinstance(kind, list):
        kept = [each for each in kind if each != "null"]
        kind = kept[0] if len(kept) == 1 else None
    if isinstance(kind, str) and kind in _PLAIN:
        return _PLAIN[kind], (), str(given.get("format") or kind)[:40]
    return "json", (), f"JSON: {kind}"[:40] if isinstance(kind, str) else "JSON"


def _format_default(kind: Kind, given: Mapping[str, Any]) -> str:
    if "const" in given:
        return json.dumps(given["const"], ensure_ascii=False)
    if "default" not in given or given["default"] is None:
        return ""
    value = given["default"]
    return (
        value
        if kind == "text" and isinstance(value, str)
        else json.dumps(value, ensure_ascii=False)
    )
