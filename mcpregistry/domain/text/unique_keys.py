"""JSON in which each key of an object stands once: of two values, a filter or a log in front might
read the other one."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from mcpregistry.domain.text.display import show_invisible_characters


class RepeatedKeyError(ValueError):
    """An object has the same key twice. The message names the key."""

    remedy = "Send each key once."


def build_unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``json.loads(object_pairs_hook=…)``: the object. Raises RepeatedKeyError."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise RepeatedKeyError(
            f"The key '{show_invisible_characters(twice, 100)}' appears twice in one object."
        )
    return found


def check_keys(data: bytes) -> None:
    """Raise RepeatedKeyError if an object in this JSON text has a key twice."""
    json.loads(data, object_pairs_hook=build_unique_object)
