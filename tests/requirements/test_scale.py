"""A site with very many servers is listed from its rows, in a few queries, and nothing is started
for it."""

from __future__ import annotations

import pytest
from django.utils import timezone

from mcpregistry.calls.catalog import Catalogues, DownstreamTools
from mcpregistry.domain.definitions.definition import hash_definition
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.models import Agent, Definition, Endpoint, Grant, Server, Tool
from mcpregistry.services.configuration.snapshot import load_snapshot
from tests.processes import below

pytestmark = pytest.mark.django_db
MANY = 1_000


def fill() -> None:
    """``MANY`` active servers with one approved tool each, all granted to one agent."""
    now = timezone.now()
    listed = {"name": "say", "description": "Says it.", "inputSchema": {"type": "object"}}
    Server.objects.bulk_create(
        Server(slug=f"s{number:04}", command=["no-such-program"], lifecycle="active")
        for number in range(MANY)
    )
    Tool.objects.bulk_create(
        Tool(server=server, name="say", first_seen_at=now, last_seen_at=now)
        for server in Server.objects.all()
    )
    body = encode_lossy_json(listed)
    found = hash_definition(listed)
    Definition.objects.bulk_create(
        Definition(tool=tool, hash=found, body=body, seen_at=now, decided_at=now, approved=True)
        for tool in Tool.objects.all()
    )
    approved = list(Definition.objects.select_related("tool"))
    for definition in approved:
        definition.tool.pinned = definition
        definition.tool.latest = definition
    Tool.objects.bulk_update([definition.tool for definition in approved], ["pinned", "latest"])
    Endpoint.objects.create(slug="default")
    ann = Agent.objects.create(slug="ann")
    Grant.objects.bulk_create(Grant(agent=ann, server=server) for server in Server.objects.all())


@pytest.mark.exhaustive
def test_a_thousand_servers_are_listed_in_a_few_queries_and_none_is_started(
    django_assert_max_num_queries,
):
    fill()
    children = below()
    with django_assert_max_num_queries(14):  # one for each kind of row, whatever their number
        now = load_snapshot()
    catalogue = Catalogues([DownstreamTools()]).get(
        now, now.endpoints["default"], now.agents["ann"], 0.0
    )
    listed = []
    cursor = None
    while cursor or not listed:
        page, cursor = catalogue.list_page(cursor, legacy=False)
        listed += page
    assert [tool["name"] for tool in listed] == [f"s{number:04}__say" for number in range(MANY)]
    assert below() <= children
