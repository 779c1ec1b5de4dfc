"""MCP Apps: pages (``ui://`` resources) that a server lets hosts show beside its tools' results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEME = "ui://"
# in a tool's _meta; the latter as hosts had it before the extension was final
_KEYS = ("ui", "ui/resourceUri")


def is_app(uri: object) -> bool:
    """Whether a URI is of such a page."""
    return isinstance(uri, str) and uri.lower().startswith(SCHEME)


def find_app_page(listing: Mapping[str, Any]) -> str:
    """The URI of the page that a listed tool names; empty if there is none."""
    meta = listing.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    shown = meta.get("ui")
    uri = shown.get("resourceUri") if isinstance(shown, dict) else meta.get(_KEYS[1])
    return uri if isinstance(uri, str) and is_app(uri) else ""


def remove_app_page(said: Mapping[str, Any]) -> dict[str, Any]:
    """A listed tool, or a result, that names no page."""
    meta = said.get("_meta")
    if not isinstance(meta, dict) or not any(key in meta for key in _KEYS):
        return dict(said)
    kept = {key: value for key, value in meta.items() if key not in _KEYS}
    return {key: value for key, value in said.items() if key != "_meta"} | (
        {"_meta": kept} if kept else {}
    )


def remove_embedded_pages(result: dict[str, Any]) -> dict[str, Any]:
    """A call's result without embedded pages, and links to them."""
    found = remove_app_page(result)
    content = result.get("content")
    if isinstance(content, list):
        found["content"] = [part for part in content if not _is_page(part)]
    return found


def _is_page(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    inner = part.get("resource")
    return is_app(part.get("uri")) or (isinstance(inner, dict) and is_app(inner.get("uri")))
