"""The parts of a file that belong to no server, as they are kept from one import to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcpregistry.domain.formats.document import Document
from mcpregistry.domain.formats.keys import make_slug


def rename_tool_servers(tool: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """An expert tool goes on using the servers of its own file, under the names that they got."""
    used = tool.get("internal_tools", {})
    return {
        **tool,
        "internal_tools": {renamed.get(make_slug(key), key): names for key, names in used.items()},
    }


def merge_kept_data(before: Mapping[str, Any], document: Document, family: str) -> dict[str, Any]:
    """What files of this family have said so far, this one last."""
    return {
        "expert_tools": _merge_by_name(
            "name", before.get("expert_tools", []), document.expert_tools
        ),
        "inputs": _merge_by_name("id", before.get("inputs", []), document.inputs),
        "providers": {**before.get("providers", {}), **document.providers},
        "model_providers": {**before.get("model_providers", {}), **document.model_providers},
        "defaults": {**before.get("defaults", {}), **document.defaults},
        "flags": {**before.get("flags", {}), **document.flags},
        "parked": document.get_parked(family).to_json(),
    }


def _merge_by_name(
    key: str, old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Objects of both, a new one in place of an old one of the same name."""
    return list({item[key]: item for item in (*old, *new)}.values())
