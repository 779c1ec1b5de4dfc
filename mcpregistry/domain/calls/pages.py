"""Pages that a server wants a person to open before it serves a call (URL elicitation, MCP
2025-11-25, error -32042)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpregistry.domain.calls.forwarding import attribute_question, can_ask_host, is_web_url
from mcpregistry.domain.errors import InputNeeded, ToolRefused

URL_ELICITATION_REQUIRED = -32042
MOST_PAGES = 10
_MOST_ADDRESSES = 3  # in a text
_ASK = "elicitation/create"


def explain_needed_page(
    error: ToolRefused, server: str, *, allowed: bool, capabilities: Mapping[str, Any]
) -> ToolRefused:
    """What a caller is told of this error. A host that can open pages gets the server's data,
    others the addresses as text.

    ``allowed``: whether the operator lets this server ask people. Only web addresses are passed on.
    """
    pages = list_pages(error.data, server) if allowed else []
    if not pages:
        return ToolRefused(error.message, rpc_code=0)
    addresses = " and ".join(str(page["url"]) for page in pages[:_MOST_ADDRESSES])
    remedy = f"The server {server} asks you to open {addresses} in a browser. If you trust it, open the address, then make the call again."
    needed = InputNeeded(error.message, remedy=remedy)
    if all(can_ask_host(capabilities, _ASK, page) for page in pages):
        needed.rpc_code = URL_ELICITATION_REQUIRED
        needed.data = {"elicitations": pages}
    return needed


def list_pages(data: object, server: str) -> list[dict[str, Any]]:
    """The valid elicitations in the data of such an error, with the server's name in front of each
    message."""
    found = data.get("elicitations") if isinstance(data, Mapping) else None
    pages = [each for each in found if _is_page(each)] if isinstance(found, list) else []
    return [_attribute_page(page, server) for page in pages[:MOST_PAGES]]


def list_elicitation_ids(data: object) -> list[str]:
    """The ids of all elicitations in the data of such an error."""
    found = data.get("elicitations") if isinstance(data, Mapping) else None
    listed = (
        [each.get("elicitationId") for each in found if isinstance(each, dict)]
        if isinstance(found, list)
        else []
    )
    return [each for each in listed if isinstance(each, str)]


def _is_page(page: object) -> bool:
    return (
        isinstance(page, dict)
        and page.get("mode", "url") == "url"
        and isinstance(page.get("elicitationId"), str)
        and is_web_url(page)
    )


def _attribute_page(page: Mapping[str, Any], server: str) -> dict[str, Any]:
    message = page.get("message")
    params = {**page, "mode": "url", "message": message if isinstance(message, str) else ""}
    asked: dict[str, Any] = attribute_question({"method": _ASK, "params": params}, server)["params"]
    return asked
