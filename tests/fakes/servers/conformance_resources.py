"""The resources that the official conformance suite reads, as it describes them in its
scenarios."""

from __future__ import annotations

import json
import re
from typing import Any

from mcp import MCPError
from mcp import types as t

from tests.fakes.servers.conformance_prompts import PIXEL

RESOURCES: list[dict[str, Any]] = [
    {
        "uri": "test://static-text",
        "name": "Static text",
        "description": "A text.",
        "mimeType": "text/plain",
    },
    {
        "uri": "test://static-binary",
        "name": "Static image",
        "description": "An image.",
        "mimeType": "image/png",
    },
    {
        "uri": "test://watched-resource",
        "name": "Watched",
        "description": "It changes.",
        "mimeType": "text/plain",
    },
]
TEMPLATES = [
    {"uriTemplate": "test://template/{id}/data", "name": "Data", "mimeType": "application/json"}
]
_HINTS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


async def list_resources(ctx: Any, params: Any) -> Any:
    return {"resources": RESOURCES, **_HINTS}


async def list_templates(ctx: Any, params: Any) -> Any:
    return {"resourceTemplates": TEMPLATES, **_HINTS}


async def read_resource(ctx: Any, params: t.ReadResourceRequestParams) -> Any:
    return {"contents": [{"uri": str(params.uri), **_content(str(params.uri))}], **_HINTS}


def _content(uri: str) -> dict[str, Any]:
    if uri == "test://static-binary":
        return {"mimeType": "image/png", "blob": PIXEL}
    if made := re.fullmatch("test://template/([^/]+)/data", uri):
        data = {"id": made[1], "templateTest": True, "data": f"Data for ID: {made[1]}"}
        return {"mimeType": "application/json", "text": json.dumps(data)}
    if uri in {resource["uri"] for resource in RESOURCES}:
        return {
            "mimeType": "text/plain",
            "text": "This is the content of the static text resource.",
        }
    raise MCPError(t.INVALID_PARAMS, "Resource not found", {"uri": uri})
