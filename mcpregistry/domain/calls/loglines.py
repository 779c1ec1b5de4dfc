"""Log lines that servers say (``notifications/message``): levels, and one line within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json

# RFC 5424, as MCP has them
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
USUAL = "info"  # of older hosts that have asked for none
LONGEST = 8_192  # characters of a line's data
_RANK = {level: number for number, level in enumerate(LEVELS)}


def is_level_requested(level: str, wanted: str) -> bool:
    """Whether a line of this level is one that was asked for."""
    return wanted in _RANK and level in _RANK and _RANK[level] >= _RANK[wanted]


def find_lowest_level(levels: Iterable[str]) -> str:
    """The level that says most; empty if there is none."""
    return min((level for level in levels if level in _RANK), key=_RANK.__getitem__, default="")


def read_log_line(params: object) -> dict[str, Any] | None:
    """A line as it may be passed on: its level, its logger (a name, may be empty) and its data;
    None for what is no line.

    Data that is too long becomes the beginning of its text: twice ``LONGEST``, so that no secret is
    cut in two before it is taken out; ``shorten_log_line`` does the rest.
    """
    if not isinstance(params, dict) or "data" not in params:
        return None
    if not isinstance(params.get("level"), str) or params["level"] not in _RANK:
        return None
    logger = params.get("logger")
    data = params["data"]
    text = data if isinstance(data, str) else _format_log_data(data)
    if len(text) > LONGEST:
        data = clean_text(text, 2 * LONGEST)
    return {
        "level": params["level"],
        "logger": clean_text(logger, 200) if isinstance(logger, str) else "",
        "data": data,
    }


def shorten_log_line(line: dict[str, Any]) -> dict[str, Any]:
    """The line as long as it may be, once secrets are taken out of it."""
    data = line["data"]
    return (
        line | {"data": clean_text(data, LONGEST)}
        if isinstance(data, str) and len(data) > LONGEST
        else line
    )


def format_log_line(line: Mapping[str, Any]) -> str:
    """A line as people read it, in one row of text."""
    data = line["data"]
    text = data if isinstance(data, str) else _format_log_data(data)
    logger = f"{line['logger']}: " if line["logger"] else ""
    return " ".join(f"{line['level']} {logger}{clean_text(text, 500)}".split())


def _format_log_data(data: Any) -> str:
    try:
        return encode_lossy_json(data)
    except (ValueError, RecursionError):
        return "(not readable)"
