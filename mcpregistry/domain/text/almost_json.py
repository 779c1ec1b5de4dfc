"""JSON with text that is not Unicode: half an emoji, as programs leave it that cut texts by length,
or bytes of another encoding.

Strict parsers refuse the whole message. Here such characters become U+FFFD, and everything else
stays.
"""

from __future__ import annotations

import json
import re

BOM = b"\xef\xbb\xbf"
REPLACED = "Characters that are not valid Unicode were replaced by U+FFFD."
_HALVES = re.compile("[\ud800-\udfff]")


def repair_text(data: bytes | bytearray) -> bytes | None:
    """The same JSON with valid text only; None if it is not JSON for another reason. Raises
    RecursionError."""
    try:
        value = json.loads(data.decode("utf-8", "replace"), parse_constant=_refuse)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return None
    return _HALVES.sub("\N{REPLACEMENT CHARACTER}", text).encode()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
