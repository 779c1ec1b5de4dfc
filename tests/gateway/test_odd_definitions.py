"""One server lists what no host could accept. Hosts get every healthy definition, and each odd one
as they can accept it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from mcp_types.methods import validate_server_result

from mcpregistry.calls.catalog import Catalogue, build_current_catalogue
from mcpregistry.domain.offer_kinds import KINDS
from mcpregistry.models import Agent, Endpoint, Server
from tests.fakes.odd_definitions import LISTS, ODD, SCHEMAS
from tests.fakes.offers import learn_and_approve
from tests.fakes.stage import (
    ACTOR,
    MODERN,
    Stage,
    envelope,
    folder,
    fresh,
    listed,
    outside,
    raw_host,
)
from tests.fakes.targets import SERVERS

pytestmark = pytest.mark.one_database
OLDER = "2025-11-25"
VERSIONS = {OLDER: True, MODERN: False}  # and whether the gateway calls it legacy


class Floor:
    """A healthy server beside an odd one, on one endpoint, for one agent."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.slug = fresh("odd")
        stage.endpoint(self.slug)
        self.healthy = stage.fake("echo", listed("echo", "pid"), slug=f"{self.slug}-good")
        listing = {"FAKE_LISTED": json.dumps(ODD["tool"])}
        command = [sys.executable, "-S", str(SERVERS / "echo.py")]
        self.odd: Server = stage.server(f"{self.slug}-odd", [], command=command, env=listing)
        self.token = stage.agent(self.slug, self.healthy, self.odd)
        self.agent = Agent.objects.get(slug=self.slug)
        self.endpoint = Endpoint.objects.get(slug=self.slug)

    def catalogue(self) -> Catalogue:
        found = build_current_catalogue(self.agent, self.endpoint, now=timezone.now())
        assert found is not None
        return found

    def runmcp(self) -> Any:
        return self._stage.runmcp(
            "--agent", self.slug, "--endpoint", self.slug, "--cwd", str(folder())
        )

    def good(self) -> set[str]:
        return {f"{self.slug}-good__echo", f"{self.slug}-good__pid"}


@pytest.fixture(scope="module")
def floor(stage: Stage) -> Floor:
    return Floor(stage)


@pytest.fixture(scope="module")
def corpus(stage: Stage) -> Floor:
    """The odd server lists all odd definitions that are known."""
    found = Floor(stage)
    learn_and_approve(found.odd, ODD, actor=ACTOR)
    return found


def check_lists(catalogue: Catalogue) -> None:
    """The SDK's models accept each list, whole, in both versions of the protocol."""
    complete = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "private"}
    for kind, what in KINDS.items():
        for version, legacy in VERSIONS.items():
            result = json.loads(catalogue.get_kind(kind).encode_page(None, legacy=legacy, extra={}))
            validate_server_result(what.list_method, version, result | ({} if legacy else complete))
            assert len(result[what.listed]) == len(catalogue.get_kind(kind).entries)


def test_lists_with_every_odd_definition_fit_the_models_of_the_sdk(corpus: Floor):
    catalogue = corpus.catalogue()
    check_lists(catalogue)
    for kind, items in ODD.items():
        own = [
            entry
            for entry in catalogue.get_kind(kind).entries.values()
            if entry.offer.server.slug == corpus.odd.slug
        ]
        assert {entry.offer.tool.name for entry in own} == {
            item[KINDS[kind].identity] for item in items
        }


@pytest.mark.exhaustive
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(lists=LISTS)
def test_arbitrary_definitions_cost_a_healthy_server_no_tool(
    floor: Floor, lists: dict[str, list[Any]]
):
    learn_and_approve(floor.odd, lists, actor=ACTOR)
    catalogue = floor.catalogue()
    check_lists(catalogue)
    assert floor.good() <= set(catalogue.entries)


def test_older_hosts_get_an_object_for_each_boolean_schema(corpus: Floor):
    shown: dict[bool, Any] = {}
    for legacy in (True, False):
        listings, _ = corpus.catalogue().list_page(None, legacy=legacy)
        shown[legacy] = {each["name"]: each for each in listings}[
            f"{corpus.odd.slug}__boolean_schema"
        ]
    assert shown[True]["inputSchema"]["properties"] == {"a": {}, "b": {}}
    assert shown[False]["inputSchema"]["properties"] == {"a": True, "b": {}}


@pytest.mark.exhaustive(but=("2026-07-28",))
@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_host_over_http_lists_all_tools_and_calls_those_with_odd_schemas(
    corpus: Floor, site: Any, mode: str
):
    await outside(site.wait_known, corpus.token)
    async with site.client(corpus.token, mode, corpus.slug) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert (
            corpus.good() | {f"{corpus.odd.slug}__{tool['name']}" for tool in ODD["tool"]} == names
        )
        for name, (_, arguments) in SCHEMAS.items():
            result = await client.call_tool(f"{corpus.odd.slug}__{name}", arguments)
            assert not result.is_error, name
            assert result.structured_content["arguments"] == arguments


@pytest.mark.exhaustive
@pytest.mark.e2e
@pytest.mark.parametrize("version", [OLDER, MODERN])
async def test_host_of_runmcp_lists_all_tools_and_calls_one(corpus: Floor, version: str):
    parameters = corpus.runmcp()
    async with raw_host(parameters, forked=True) as host:
        meta = {"_meta": envelope()} if version == MODERN else {}
        if version == OLDER:
            await host.handshake()
        answer = await host.ask(1, "tools/list", **meta)
        validate_server_result("tools/list", version, answer["result"])
        names = {tool["name"] for tool in answer["result"]["tools"]}
        assert (
            corpus.good() | {f"{corpus.odd.slug}__{tool['name']}" for tool in ODD["tool"]} == names
        )
        called = {"name": f"{corpus.odd.slug}__nested_id", "arguments": SCHEMAS["nested_id"][1]}
        answer = await host.ask(2, "tools/call", **called, **meta)
        assert answer["result"]["structuredContent"]["arguments"] == called["arguments"]
