"""What a list of tools keeps of a server's words: all of them."""

from __future__ import annotations

from typing import Any

from mcpregistry.calls.catalog import Catalogues, DownstreamTools
from mcpregistry.domain.snapshot import AgentSpec, EndpointSpec, GrantSpec, ServerSpec, Snapshot, ToolSpec

SERVER = ServerSpec(1, "git", "Git", 1, "stdio", "lazy", 30.0, 1024, True)
ENDPOINT = EndpointSpec("default", "Default", "", "double", "none", False, True, ())
AGENT = AgentSpec(1, "ann", frozenset({"mcp_integration"}), None, (GrantSpec(1, None, {}, None),))
FULL: dict[str, Any] = {
    "name": "push",
    "title": "Push",
    "description": "Sends commits.",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"ref": {"type": ["string", "null"], "x-vendor": 1, "default": None}},
        "required": ["ref"],
        "$defs": {"a": {"const": 1.0}},
    },
    "outputSchema": {"type": "object", "properties": {"sha": {"type": "string"}}},
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "title": "Push!"},
}


def shown(data: dict[str, Any]) -> list[dict[str, Any]]:
    tool = ToolSpec(10, 1, data["name"], "h", data, False)
    catalogue = Catalogues([DownstreamTools()]).get(Snapshot(1, {1: SERVER}, {10: tool}), ENDPOINT, AGENT, 0.0)
    return [dict(listing) for listing in catalogue.page(None, legacy=False)[0]]


def test_every_field_of_a_tool_is_listed_as_the_server_wrote_it_under_our_name():
    assert shown(FULL) == [FULL | {"name": "git__push"}]


def test_a_tool_without_a_schema_takes_no_arguments_and_is_listed():
    assert shown({"name": "now"}) == [{"name": "git__now", "inputSchema": {"type": "object"}}]
