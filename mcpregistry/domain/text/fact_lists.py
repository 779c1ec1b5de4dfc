"""A JSON object as facts that people read: a name and a value for each of its entries."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any

Facts = list[tuple[str, str]]


def list_facts(value: str | Mapping[str, Any], without: Container[str] = ()) -> Facts:
    """The entries of an object, or of its JSON text, in their order; none for anything else.

    >>> facts('{"read_only": true, "names": ["a"], "id": 3}', without={"id"})
    [('read only', 'yes'), ('names', '["a"]')]
    """
    held = _parse_json(value) if isinstance(value, str) else value
    if not isinstance(held, Mapping):
        return []
    return [
        (str(name).replace("_", " "), describe_value(each))
        for name, each in held.items()
        if name not in without
    ]


def describe_value(value: object) -> str:
    """One value: yes and no, a dash for nothing, a text as it is, all else as JSON."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) or value is None:
        return value or "-"
    return json.dumps(value, ensure_ascii=False)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
