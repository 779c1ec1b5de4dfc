"""What the whole way from a server's list to a host's list keeps of a tool: all of it."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.calls.catalog import Catalogues, DownstreamTools
from mcpregistry.models import Agent, Endpoint
from mcpregistry.services.access import grants
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.definitions import decisions, observe
from tests.services.rows import confirmed

pytestmark = pytest.mark.django_db
FULL: dict[str, Any] = {
    "name": "push",
    "title": "Push",
    "description": "Sends commits.",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"ref": {"type": ["string", "null"], "x-vendor": 1, "default": None}},
        "required": ["ref"],
        "$defs": {"a": {"const": 1.5}},
    },
    "outputSchema": {"type": "object", "properties": {"sha": {"type": "string"}}},
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "title": "Push!"},
}


def shown(listed: dict[str, Any]) -> list[dict[str, Any]]:
    """What a host is told of the only tool of a server, once it is approved and granted."""
    server = confirmed("echo")
    observe.observe(server=server, listed=[listed])
    decisions.approve_waiting(server=server, actor="test")
    grants.grant_access(agent=Agent.objects.create(slug="ann"), server=server, actor="test")
    Endpoint.objects.create(slug="default")
    now = load_snapshot()
    catalogue = Catalogues([DownstreamTools()]).get(
        now, now.endpoints["default"], now.agents["ann"], 0.0
    )
    return [dict(listing) for listing in catalogue.list_page(None, legacy=False)[0]]


def test_every_field_of_a_tool_is_listed_as_the_server_wrote_it_under_our_name():
    assert shown(FULL) == [FULL | {"name": "echo__push"}]


def test_a_tool_without_a_schema_takes_no_arguments_and_is_listed():
    assert shown({"name": "now"}) == [{"name": "echo__now", "inputSchema": {"type": "object"}}]
