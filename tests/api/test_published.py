"""The site as a registry: what hosts read of it, and who sees what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from mcpregistry.calls.engine import Engine, set_current_engine
from mcpregistry.models import Agent, Endpoint, RegistryEntry, RegistrySource
from mcpregistry.services.access import tokens
from mcpregistry.services.access.agents import save_endpoint
from mcpregistry.services.registry import sources, sync
from tests.calls.conftest import add_server, tool

PATH = "/registry/v0.1/servers"


@pytest.fixture(autouse=True)
def _named(settings: Any) -> None:
    settings.SITE_URL = "https://tools.example.com"


@pytest.fixture
def site(db: None) -> Iterator[None]:
    """Agent "ann" with a server's tool on two endpoints, "eve" with none; a third endpoint is
    switched off."""
    add_server("echo", tool("echo"))
    for slug in ("lab", "off"):
        save_endpoint(
            endpoint=Endpoint(slug=slug, name=slug.title(), enabled=slug != "off"), actor="user:ann"
        )
    Agent.objects.create(slug="eve")
    engine = Engine("web")
    engine.live.refresh()
    set_current_engine(engine)
    yield
    set_current_engine(None)


def read(path: str = PATH, *, agent: str = "", status: int = 200, **query: str) -> Any:
    headers = {}
    if agent:
        _, text = tokens.issue_token(
            name="t", actor="user:ann", agent=Agent.objects.get(slug=agent)
        )
        headers["Authorization"] = f"Bearer {text}"
    answer = Client().get(path, query, headers=headers)
    assert answer.status_code == status, answer.content
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    return answer.json()


def names(answer: Any) -> list[str]:
    return [each["server"]["name"] for each in answer["servers"]]


def test_an_agent_reads_the_endpoints_that_show_it_anything(site: None) -> None:
    found = read(agent="ann")
    assert names(found) == ["com.example.tools/default", "com.example.tools/lab"]
    assert found["metadata"] == {"count": 2}
    assert names(read(agent="eve")) == []
    assert found["servers"][1]["server"]["remotes"][0]["url"] == "https://tools.example.com/mcp/lab"
    assert found["servers"][1]["_meta"]["com.example.tools/servers"] == [
        {"name": "echo", "title": "echo", "tools": 1}
    ]
    assert names(read(agent="ann", search="Echo")) == names(found), (
        "also by the servers that it gets there"
    )


def test_pages_searches_and_changes(site: None) -> None:
    first = read(agent="ann", limit="1")
    assert (names(first), first["metadata"]) == (
        ["com.example.tools/default"],
        {"count": 1, "nextCursor": "default"},
    )
    assert names(read(agent="ann", limit="1", cursor="default")) == ["com.example.tools/lab"]
    assert names(read(agent="ann", search="LAB")) == ["com.example.tools/lab"]
    assert names(read(agent="ann", search="lab", version="latest", include_deleted="true")) == [
        "com.example.tools/lab"
    ]
    assert read("/registry/v0/servers", agent="ann") == read(agent="ann")
    before = read(agent="ann")["servers"][1]
    assert names(read(agent="ann", updated_since="2099-01-01T00:00:00Z")) == []
    lab = Endpoint.objects.get(slug="lab")
    lab.name = "Laboratory"
    save_endpoint(endpoint=lab, actor="user:ann")
    after = read(agent="ann", version="latest")["servers"][1]
    assert before["server"]["version"] != after["server"]["version"], (
        "what stands under a version never changes"
    )


@pytest.mark.parametrize("name", ["com.example.tools%2Flab", "com.example.tools/lab"])
def test_one_is_read_by_its_name_encoded_or_bare(site: None, name: str) -> None:
    [only] = read(f"{PATH}/{name}/versions", agent="ann")["servers"]
    for version in ("latest", only["server"]["version"]):
        assert read(f"{PATH}/{name}/versions/{version}", agent="ann") == only
    read(f"{PATH}/{name}/versions/0.0.1", agent="ann", status=404)
    read(f"{PATH}/{name}/versions", agent="eve", status=404)


@pytest.mark.attack
def test_who_is_unknown_reads_nothing_unless_the_site_is_public(site: None, settings: Any) -> None:
    refused = read(status=401)
    assert (refused["status"], refused["title"]) == (401, "UNAUTHORIZED")
    assert Client().get(PATH, headers={"Authorization": "Bearer wrong"}).status_code == 401
    settings.REGISTRY_PUBLIC = True
    assert names(read()) == ["com.example.tools/default", "com.example.tools/lab"]
    assert "echo" not in str(read()), "nobody unknown learns which servers there are"
    assert names(read(search="echo")) == []
    assert Client().get(PATH, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_what_cannot_be_asked_is_refused_in_words(site: None) -> None:
    for query, status in [
        ({"limit": "101"}, 422),
        ({"limit": "-1"}, 422),
        ({"limit": "x"}, 422),
        ({"updated_since": "yesterday"}, 400),
        ({"updated_since": "2026-13-01T00:00:00Z"}, 400),
    ]:
        assert read(agent="ann", status=status, **query)["detail"]
    assert Client().post(PATH).status_code == 405
    assert Client().options(PATH).status_code == 204


@pytest.mark.one_database
@pytest.mark.django_db(transaction=True)
def test_our_own_reader_of_registries_takes_it_whole(live_server: Any, settings: Any) -> None:
    settings.REGISTRY_PUBLIC = True
    for slug in ("lab", "default"):
        save_endpoint(endpoint=Endpoint(slug=slug), actor="user:ann")
    row = RegistrySource(
        slug="ours",
        base_url=f"{live_server.url}/registry",
        allowed_networks=["127.0.0.0/8", "::1/128"],
    )
    after = sync.sync_source(source_id=sources.save_source(source=row, actor="user:ann").pk)
    assert (after.error, after.skipped) == ("", 0)
    found = RegistryEntry.objects.filter_offered().values_list("name", "kinds")
    assert sorted(found) == [
        ("com.example.tools/default", "remote"),
        ("com.example.tools/lab", "remote"),
    ]
