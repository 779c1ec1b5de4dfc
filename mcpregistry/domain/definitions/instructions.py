"""What an endpoint tells every model: the operator's own words, then those of each server that the
agent sees."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HEADING = re.compile(r"^(?=#{1,4}\s)", re.MULTILINE)
_CUT = " […]"


def merge_instructions(own: str, servers: Iterable[tuple[str, str]], limit: int) -> str:
    """``servers``: names and texts, in the order in which they are told. Theirs together have at
    most ``limit`` characters: the text that reaches it is cut, and the servers after it are named
    instead.
    """
    parts = [own] if own else []
    left = limit
    missing: list[str] = []
    for name, text in servers:
        if not (text := text.strip()) or not limit:
            continue
        # A heading of its own must not look like another server's.
        section = f"# Server {name}\n{_HEADING.sub('#', text)}"
        if missing or left <= len(f"# Server {name}\n{_CUT}"):
            missing.append(name)
            continue
        if len(section) > left:
            section = section[: left - len(_CUT)] + _CUT
        parts.append(section)
        left -= len(section)
    if missing:
        parts.append(f"(The instructions of these servers did not fit: {', '.join(missing)}.)")
    return "\n\n".join(parts)
