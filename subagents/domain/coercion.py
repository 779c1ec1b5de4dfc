"""Arguments of a model that are right but for their type: ``"5"`` where the schema wants an
integer.

Small models write them by the dozen, and each costs a turn. What has exactly one reading under the
schema is read so; anything else is left to the validation, whose message the model understands.
Never a default, never a guess: a text stays a text wherever the schema would take one, and no
number loses a digit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})\.\d{1,15}", re.ASCII)
_DEEPEST = 32
_PLAIN = {"integer", "number", "boolean", "null", "array", "object"}


def coerce_arguments(schema: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(arguments as they are meant, what was read in another type: ``/limit as integer``)."""
    notes: list[str] = []
    value = _value(schema, dict(arguments), "", notes, _DEEPEST)
    return value, notes


def _value(schema: Any, value: Any, at: str, notes: list[str], deeper: int) -> Any:
    if not isinstance(schema, dict) or deeper == 0:
        return value
    if isinstance(value, str):
        return _text(schema, value, at, notes)
    if isinstance(value, dict):
        known = schema.get("properties")
        known = known if isinstance(known, dict) else {}
        return {
            k: _value(known.get(k), v, f"{at}/{_escape_pointer(k)}", notes, deeper - 1)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [
            _value(schema.get("items"), v, f"{at}/{i}", notes, deeper - 1)
            for i, v in enumerate(value)
        ]
    return value


def _text(schema: Mapping[str, Any], text: str, at: str, notes: list[str]) -> Any:
    readings = [(kind, *_read(kind, text)) for kind in sorted(_find_wanted_types(schema))]
    fitting = [(kind, value) for kind, found, value in readings if found]
    if len(fitting) != 1:
        return text
    kind, value = fitting[0]
    notes.append(f"{at} as {kind}")
    return value


def _find_wanted_types(schema: Mapping[str, Any]) -> set[str]:
    """Types of which a text is meant to be one; none where a text is allowed, or where that is not
    plain to see."""
    if set(schema) & {
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "$ref",
        "$dynamicRef",
    }:
        return set()
    types = schema.get("type")
    if isinstance(types, str):
        wanted = {types}
    elif isinstance(types, list):
        wanted = set(types)
    else:
        wanted = set()
    if not wanted or "string" in wanted or not wanted <= _PLAIN:
        return set()
    return wanted - {"integer"} if "number" in wanted else wanted


def _read(kind: str, text: str) -> tuple[bool, Any]:
    """(whether the text is one, the value)"""
    if kind == "boolean":
        return text in ("true", "false"), text == "true"
    if kind == "null":
        return text == "null", None
    if kind in ("integer", "number"):
        if _INTEGER.fullmatch(text) and text != "-0":
            return True, int(text)
        return (True, float(text)) if kind == "number" and _exact(text) else (False, None)
    return _structure(list if kind == "array" else dict, text)


def _exact(text: str) -> bool:
    """Whether a float says the very number that is written."""
    return bool(_NUMBER.fullmatch(text)) and repr(float(text)) == text


def _structure(wanted: type, text: str) -> tuple[bool, Any]:
    """An object or a list that was written as a text of JSON once more."""
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_float
        )
    except (ValueError, RecursionError):
        return False, None
    return isinstance(value, wanted), value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that stands there twice has two readings."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _float(text: str) -> float:
    if not _exact(text):
        raise ValueError("a number that a float cannot hold")
    return float(text)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _escape_pointer(key: str) -> str:
    """For a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
