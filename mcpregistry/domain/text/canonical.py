"""Canonical JSON: the one text form in which values are hashed, bound and stored.

Keys are sorted by their UTF-8 bytes (not RFC 8785's UTF-16), there is no white space, integers are
exact whatever their size. The text is safe for every database: control characters, NUL and lone
surrogates are escaped, NaN and infinities are refused by ``encode_canonical_json`` and named by
``encode_lossy_json``.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import msgspec

_EVEN = {str, int, bool, type(None)}  # types that the fast encoder writes as they are
_LONG = 10_000  # bits, some 3,000 digits
_DEEPEST = 500  # levels: below what any Python takes, so that the verdict is the same on each
_encoder = msgspec.json.Encoder(order="deterministic")


def encode_canonical_json(value: Any) -> str:
    """Canonical JSON text of a JSON value.

    Raises ValueError for NaN, infinities, types that JSON has not, and more than 500 levels.
    """
    try:
        if not _is_odd(value):
            return _encoder.encode(value).decode()
    except (UnicodeEncodeError, msgspec.EncodeError, TypeError, OverflowError, RecursionError):
        pass  # lone surrogates, for one: the slower encoder below takes them, or says why not
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("The value is nested too deeply.") from error
    except TypeError as error:
        raise ValueError("The value contains something that JSON cannot represent.") from error


def encode_lossy_json(value: Any) -> str:
    """Like ``encode_canonical_json``, but never fails for what has an end: odd numbers and types
    become strings ("NaN")."""
    try:
        return encode_canonical_json(value)
    except ValueError:
        return encode_canonical_json(_replace_odd_values(value, 0))


def measure_json(value: Any) -> int:
    """How many bytes ``encode_lossy_json`` of it has, in a third of the time; for what was read of
    JSON."""
    try:
        return len(msgspec.json.encode(value))
    except (UnicodeEncodeError, msgspec.EncodeError, TypeError, OverflowError, RecursionError):
        return len(encode_lossy_json(value).encode("utf-8", "surrogatepass"))


def hash_parts(*parts: str) -> str:
    """SHA-256 in hex over the parts, each preceded by its length so that no two lists collide."""
    whole = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        whole.update(len(raw).to_bytes(8, "big") + raw)
    return whole.hexdigest()


def clean_text(text: str, limit: int = 10_000) -> str:
    """Text fit for a text column: no NUL, no lone surrogate, at most ``limit`` characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()


def _is_odd(value: Any) -> bool:
    """Whether the fast encoder would write something else than the value (null for NaN, base64 for
    bytes).

    Raises ValueError for a value that nests too deeply; finds what is odd in it level by level.
    """
    level = [value]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for node in level:
            if type(node) in _EVEN:
                continue
            if isinstance(node, dict):
                inner.extend(node.values())
            elif isinstance(node, list | tuple):
                inner.extend(node)
            elif isinstance(node, float):
                if not math.isfinite(node):
                    return True
            elif not isinstance(node, str | int):
                return True
        if not inner:
            return False
        level = inner
    raise ValueError("The value is nested too deeply.")


def _replace_odd_values(value: Any, depth: int) -> Any:
    if depth > 100:
        return "…nested too deeply…"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): _replace_odd_values(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_odd_values(item, depth + 1) for item in value]
    if isinstance(value, int) and value.bit_length() > _LONG:
        return hex(value)  # beyond what Python is willing to write in decimal digits
    return value if isinstance(value, str | int | float | None) else repr(value)
