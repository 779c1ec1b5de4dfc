"""The snapshot: only what may serve is in it, read in a fixed number of queries."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.calls.catalog import build_current_catalogue
from mcpregistry.domain.policy.access import may_call, may_see
from mcpregistry.models import Agent, Definition, Endpoint, Grant, Server, Token, Tool, Workspace
from mcpregistry.services.configuration.snapshot import (
    Known,
    get_current_snapshot,
    load_snapshot,
    read_current_revision,
    set_followed_store,
)

pytestmark = pytest.mark.django_db
NOW = timezone.now()


def fill(count: int) -> None:
    for n in range(count):
        server = Server.objects.create(slug=f"s{n}", command=["x"], lifecycle="active")
        agent = Agent.objects.create(slug=f"a{n}")
        endpoint = Endpoint.objects.create(slug=f"e{n}")
        for name in ("x", "y"):
            tool = Tool.objects.create(
                server=server, name=name, first_seen_at=NOW, last_seen_at=NOW
            )
            definition = Definition.objects.create(
                tool=tool, hash=name, body=json.dumps({"name": name}), seen_at=NOW
            )
            tool.pinned = definition
            tool.latest = definition
            tool.save()
        Grant.objects.create(agent=agent, server=server)
        Grant.objects.create(endpoint=endpoint, tool=tool)
        Token.objects.create(agent=agent, name="t", hash=f"h{n}")
        Workspace.objects.create(directory=f"/{n}", endpoint=endpoint, agent=agent)


def queries() -> int:
    with CaptureQueriesContext(
        connection,
    ) as caught:
        load_snapshot()
    return len([q for q in caught if "SAVEPOINT" not in q["sql"]])


@pytest.mark.exhaustive
def test_the_number_of_queries_does_not_grow_with_the_rows():
    fill(1)
    few = queries()
    fill_more = [fill_from(n) for n in range(1, 6)]
    assert queries() == few <= 14
    assert len(fill_more) == 5


def fill_from(start: int) -> None:
    server = Server.objects.create(slug=f"m{start}", command=["x"], lifecycle="active")
    for n in range(10):
        tool = Tool.objects.create(server=server, name=f"t{n}", first_seen_at=NOW, last_seen_at=NOW)
        definition = Definition.objects.create(tool=tool, hash=f"{n}", body="{}", seen_at=NOW)
        tool.pinned = definition
        tool.latest = definition
        tool.save()
        agent = Agent.objects.create(slug=f"m{start}-{n}")
        Grant.objects.create(agent=agent, tool=tool)
        Token.objects.create(agent=agent, name="t", hash=f"m{start}-{n}")


def test_a_whole_site_is_in_it():
    fill(2)
    found = load_snapshot()
    assert found.revision == read_current_revision()
    assert (len(found.servers), len(found.tools), len(found.agents), len(found.endpoints)) == (
        2,
        4,
        2,
        2,
    )
    assert found.tokens["h0"].agent == "a0"
    assert [len(agent.grants) for agent in found.agents.values()] == [1, 1]
    assert [workspace.directory for workspace in found.workspaces] == ["/0", "/1"]


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("change", "part", "left"),
    [
        (lambda: Server.objects.update(lifecycle="draft"), "servers", 0),
        (lambda: Server.objects.update(lifecycle="disabled"), "tools", 0),
        (lambda: Tool.objects.filter(name="x").update(enabled=False), "tools", 1),
        (lambda: Tool.objects.filter(name="x").update(present=False), "tools", 1),
        (lambda: Tool.objects.filter(name="x").update(pinned=None), "tools", 1),
        (lambda: Tool.objects.filter(name="x").update(latest=None), "tools", 1),
        (lambda: Agent.objects.update(enabled=False), "agents", 0),
        (lambda: Agent.objects.update(enabled=False), "tokens", 0),
        (lambda: Agent.objects.update(enabled=False), "workspaces", 0),
        (lambda: Token.objects.update(revoked_at=NOW), "tokens", 0),
        (lambda: Endpoint.objects.update(enabled=False), "endpoints", 0),
        (lambda: Endpoint.objects.update(enabled=False), "workspaces", 0),
    ],
    ids=range(12),
)
def test_what_may_not_serve_is_left_out(change: Any, part: str, left: int):
    fill(1)
    change()
    assert len(getattr(load_snapshot(), part)) == left


def test_tokens_of_people_are_not_for_calls(django_user_model: Any):
    Token.objects.create(user=django_user_model.objects.create_user("u"), name="t", hash="h")
    assert load_snapshot().tokens == {}


@pytest.mark.exhaustive(one_in=5)
@pytest.mark.attack
@pytest.mark.parametrize(
    "value", ["\ud800", "a\x00b", 10**400, 12345678901234567890123, 1e308], ids=range(5)
)
def test_one_odd_definition_does_not_keep_the_site_from_loading(value: Any):
    from mcpregistry.services.definitions import decisions, observe

    server = Server.objects.create(slug="s", command=["x"], lifecycle="active")
    listed = [{"name": "odd", "inputSchema": {"default": value}}, {"name": "good"}]
    observe.observe(server=server, listed=listed)
    assert decisions.approve_waiting(server=server, actor="a") == 2
    tools = {tool.name: tool.data for tool in load_snapshot().tools.values()}
    assert tools["odd"]["inputSchema"]["default"] == value
    assert tools["good"] == {"name": "good", "inputSchema": {"type": "object"}}


def test_nothing_secret_is_in_a_snapshot():
    fill(1)
    server = Server.objects.get()
    server.env = {"TOKEN": "canary"}
    server.headers = {"Authorization": "canary"}
    server.save()
    assert "canary" not in repr(load_snapshot())
    assert "sealed" not in repr(load_snapshot())


@pytest.mark.parametrize("seen", ["approved", "waiting"])
def test_a_resource_that_is_switched_off_is_read_by_no_template(seen: str):
    server = Server.objects.create(slug="s", command=["x"], lifecycle="active")
    agent = Agent.objects.create(slug="a", capabilities=["mcp_integration"])
    endpoint = Endpoint.objects.create(slug="e")
    Grant.objects.create(agent=agent, server=server, kind="")
    for kind, key, name in (("template", "uriTemplate", "x://{n}"), ("resource", "uri", "x://1")):
        tool = Tool.offers.create(
            server=server, kind=kind, name=name, first_seen_at=NOW, last_seen_at=NOW
        )
        body = json.dumps({key: name, "name": "n"})
        tool.latest = Definition.objects.create(
            tool=tool, hash=f"{kind} {seen}", body=body, seen_at=NOW
        )
        tool.pinned = tool.latest if kind == "template" or seen == "approved" else None
        tool.save()

    def served() -> list[str | None]:
        found = build_current_catalogue(agent, endpoint, now=NOW)
        assert found is not None
        places = [
            (each[0].find(each[1]), each[2]) for each in map(found.find_reader, ("x://1", "x://2"))
        ]
        template = found.get_kind("template").entries["x://{n}"].offer.tool
        assert may_call(found.agent, found.endpoint, template, {"uri": "x://2"}, NOW.timestamp())
        assert (
            may_call(found.agent, found.endpoint, template, {"uri": "x://1"}, NOW.timestamp())
            is tool.enabled
        )
        return [entry.offer.tool.kind if entry else None for entry, _ in places]

    assert served() == ["resource" if seen == "approved" else "template", "template"]
    tool.enabled = False
    tool.save()
    assert served() == [None, "template"]


def _changed(chance: random.Random) -> None:
    """Something, by whatever way."""
    servers = list(Server.objects.all())
    tools = list(Tool.objects.all())
    server = chance.choice(servers)
    tool = chance.choice(tools)
    match chance.randrange(9):
        case 0:
            Server.objects.filter(pk=server.pk).update(
                lifecycle=chance.choice(["active", "disabled"])
            )
        case 1:
            Server.objects.filter(pk=server.pk).update(
                mcp_apps=not server.mcp_apps, revision=server.revision + 1
            )
        case 2:
            Tool.objects.filter(pk=tool.pk).update(
                enabled=not tool.enabled, call_energy=chance.random()
            )
        case 3:
            body = {
                "name": tool.name,
                "description": str(chance.random()),
                "_meta": {"ui": {"resourceUri": "ui://x"}},
            }
            new = Definition.objects.create(
                tool=tool, hash=str(chance.random()), body=json.dumps(body), seen_at=NOW
            )
            Tool.objects.filter(pk=tool.pk).update(pinned=new, latest=new)
        case 4:
            Tool.objects.filter(pk=tool.pk).update(pinned=tool.definitions.order_by("id").first())
        case 5:
            Grant.objects.create(agent=chance.choice(list(Agent.objects.all())), tool=tool)
        case 6:
            Grant.objects.filter(
                pk=chance.choice([0, *Grant.objects.values_list("pk", flat=True)])
            ).delete()
        case 7 if len(servers) > 2:
            Tool.objects.filter(server=server).update(pinned=None, latest=None)
            server.delete()
        case _:
            fill_from(chance.randrange(10**9))


@pytest.mark.exhaustive(on="postgresql")
def test_what_is_read_with_what_is_known_is_what_is_read_anew(request):
    changes = 20 if request.config.getoption("--gate") else 60
    chance = random.Random(7)
    known = {}
    fill(3)
    for _ in range(changes):
        _changed(chance)
        now = load_snapshot(known=known)
        assert now == load_snapshot()
        assert len(known) == len(now.tools) + len(now.others)


def test_a_change_reads_no_definition_that_is_known():
    fill(3)
    known: Known = {}
    load_snapshot(known=known)
    Tool.objects.filter(name="x").update(enabled=False)
    with CaptureQueriesContext(connection) as asked:
        load_snapshot(known=known)
    assert not [each for each in asked if '"body"' in each["sql"]]


def test_the_grants_of_a_tool_are_found_among_many():
    fill(3)
    now = load_snapshot()
    for agent in now.agents.values():
        some = replace(agent, grants=tuple(agent.grants))  # one after the other
        for tool in now.tools.values():
            server = now.servers[tool.server_id]
            endpoint = now.endpoints["e0"]
            for mine in (agent, some):
                able = replace(mine, capabilities=frozenset({"mcp_integration"}))
                granted = any(grant.server_id == tool.server_id for grant in agent.grants)
                assert (
                    may_see(able, endpoint, server, tool, 0.0)
                    == may_call(mine, endpoint, tool, {}, 0.0)
                    == granted
                )


@pytest.fixture
def unfollowed():
    yield
    set_followed_store(None)


def test_pages_take_what_the_process_has_while_nothing_has_changed(unfollowed):
    fill(1)
    assert get_current_snapshot().agents.keys() == {"a0"}
    kept = load_snapshot()
    set_followed_store(lambda: kept)
    assert get_current_snapshot() is kept
    Agent.objects.create(slug="new")
    assert get_current_snapshot().agents.keys() == {"a0", "new"}
    assert get_current_snapshot(lambda: ()).tools == {}
    kept = load_snapshot()
    assert get_current_snapshot(lambda: pytest.fail("needs no list of tools")) is kept
