"""How tools of ours are listed, offered and answered, beside those of servers: without grants and
rules, see ``Offer.own``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcpregistry.calls.catalog import ToolOffer
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.snapshot_specs import ServerSpec, ToolSpec
from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts


def server(number: int, slug: str, title: str, seconds: float = 10.0) -> ServerSpec:
    """What stands in the place of a server; ``number`` is below 0, ``seconds`` the longest that a
    call takes."""
    return ServerSpec(
        id=number,
        slug=slug,
        title=title,
        revision=0,
        transport="none",
        connect_mode="none",
        request_timeout=seconds,
        max_message_bytes=0,
        available=True,
    )


def listing(
    name: str,
    description: str,
    required: tuple[str, ...] | None = None,
    *,
    reads: bool = False,
    title: str = "",
    **properties: Any,
) -> dict[str, Any]:
    """A tool as hosts and models see it; all properties are required where ``required`` is left
    out."""
    needed = list(properties) if required is None else list(required)
    schema = {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }
    hints = {"readOnlyHint": reads, "destructiveHint": False, "openWorldHint": False}
    titled = {"name": name, "title": title} if title else {"name": name}
    return {**titled, "description": description, "inputSchema": schema, "annotations": hints}


def offer(
    kind: str,
    place: ServerSpec,
    number: int,
    listed: Mapping[str, Any],
    *,
    idempotent: bool = False,
) -> ToolOffer:
    """The tool as a source offers it; ``number`` is below 0 and no other tool's."""
    tool = ToolSpec(
        id=number,
        server_id=place.id,
        name=listed["name"],
        definition_hash=hash_parts(encode_lossy_json(listed)),
        data=listed,
        idempotent=idempotent,
    )
    return ToolOffer(kind, place, tool, own=True)


def make_result(facts: dict[str, Any]) -> dict[str, Any]:
    """The result of a call, as text and as structure."""
    return {
        "content": [{"type": "text", "text": json.dumps(facts, ensure_ascii=False)}],
        "structuredContent": facts,
    }


def make_refusal(error: SlipsnisseError) -> dict[str, Any]:
    """The result of a call that is refused, with the remedy."""
    return make_result({"error": error.code, "message": error.message, "remedy": error.remedy}) | {
        "isError": True
    }
