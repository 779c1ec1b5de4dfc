"""What a list of tools keeps of a server's words, and when it leaves a tool out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

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


def shown(
    *, data: dict[str, Any] = FULL, server: ServerSpec = SERVER, endpoint: EndpointSpec = ENDPOINT
) -> list[dict[str, Any]]:
    snapshot = Snapshot(1, servers={1: server}, tools={10: ToolSpec(10, 1, data["name"], "h", data, False)})
    return [dict(tool) for tool in Catalogues([DownstreamTools()]).get(snapshot, endpoint, AGENT, 0.0).page(None, legacy=False)[0]]  # fmt: skip


def test_every_field_of_a_tool_is_listed_as_the_server_wrote_it_under_our_name():
    assert shown() == [FULL | {"name": "git__push"}]


def test_a_tool_without_a_schema_takes_no_arguments_and_is_listed():
    assert shown(data={"name": "now"}) == [{"name": "git__now", "inputSchema": {"type": "object"}}]


@pytest.mark.parametrize(("available", "hide", "listed"), [(True, True, 1), (False, True, 0), (False, False, 1)])
def test_tools_of_a_server_that_failed_are_left_out_where_the_endpoint_hides_them(
    available: bool, hide: bool, listed: int
):
    server, endpoint = replace(SERVER, available=available), replace(ENDPOINT, hide_unavailable=hide)
    assert len(shown(server=server, endpoint=endpoint)) == listed
