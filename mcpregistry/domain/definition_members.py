"""Optional members that tools, prompts, resources and parts of content have in common, and what
they may hold.

Hosts on the official clients refuse a whole answer for one member of the wrong type. Source: MCP
2025-11-25 and 2026-07-28, BaseMetadata, Icons, Annotations, ToolAnnotations, ToolExecution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

Part = dict[str, Any]
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


def drop_misfits(part: Part) -> Part:
    """Return the part with its optional members put right, and without those of the wrong type.

    It is the very same object where all of them are as they should be.
    """
    fixed = {
        key: kept
        for key, repair in _MEMBERS.items()
        if key in part and (kept := repair(part[key])) is not None
    }
    changed = [
        key for key in _MEMBERS if key in part and (key not in fixed or fixed[key] != part[key])
    ]
    return (
        {
            key: fixed.get(key, value)
            for key, value in part.items()
            if key not in changed or key in fixed
        }
        if changed
        else part
    )


def _keep_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _keep_number(value: object) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _keep_object(value: object) -> Part | None:
    return value if isinstance(value, dict) else None


def _repair_icons(value: object) -> list[Part] | None:
    listed = value if isinstance(value, list) else [value]
    icons = [
        icon
        for each in listed
        if isinstance(each, dict) and isinstance((icon := _repair_icon(each)).get("src"), str)
    ]
    return icons or None


def _repair_icon(said: Part) -> Part:
    sizes = said.get("sizes")
    listed = [sizes] if isinstance(sizes, str) else sizes
    fits = {
        "sizes": isinstance(listed, list) and all(isinstance(each, str) for each in listed),
        "mimeType": isinstance(said.get("mimeType"), str),
        "theme": said.get("theme") in ("light", "dark"),
    }
    fixed = {key: value for key, value in said.items() if fits.get(key, True)}
    return fixed | {"sizes": listed} if "sizes" in fixed else fixed


def _repair_annotations(value: object) -> Part | None:
    """Return those of content and resources (for whom, how important, when changed) and of tools
    (hints)."""
    if not isinstance(value, dict):
        return None
    audience = value.get("audience")
    listed = [audience] if isinstance(audience, str) else audience
    roles = (
        [role for role in listed if role in ("user", "assistant")]
        if isinstance(listed, list)
        else []
    )
    fits = {
        "audience": bool(roles),
        "priority": (share := _keep_number(value.get("priority"))) is not None and 0 <= share <= 1,
        "lastModified": _is_time(value.get("lastModified")),
        "title": isinstance(value.get("title"), str),
        **{hint: isinstance(value.get(hint), bool) for hint in HINTS},
    }
    fixed = {key: said for key, said in value.items() if fits.get(key, True)}
    return fixed | {"audience": roles} if roles else fixed


def _repair_execution(value: object) -> Part | None:
    if not isinstance(value, dict):
        return None
    if value.get("taskSupport", "optional") in ("forbidden", "optional", "required"):
        return value
    return {key: said for key, said in value.items() if key != "taskSupport"}


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


_MEMBERS: Mapping[str, Callable[[object], Any]] = {
    "title": _keep_text,
    "description": _keep_text,
    "mimeType": _keep_text,
    "size": _keep_number,
    "icons": _repair_icons,
    "annotations": _repair_annotations,
    "execution": _repair_execution,
    "_meta": _keep_object,
}
