"""The documentation page works without the internet, and the document says what really comes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.test import Client
from ninja import NinjaAPI, Schema

from mcpregistry.api.v1 import api
from tests.api.conftest import ROOT

EXTERNAL = re.compile(
    r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|url\(\s*["']?(?:https?:)?//""", re.I
)


def test_the_page_and_its_files_come_from_this_site_alone(db):
    page = Client().get(f"{ROOT}/docs").content.decode()
    assert not EXTERNAL.search(page)
    files = re.findall(r"""(?:src|href)="([^"]+)\"""", page)
    assert files
    for address in files:
        assert address.startswith("/static/ninja/")
        path = finders.find(address.removeprefix("/static/"))
        assert path, address
    assert not EXTERNAL.search(Path(finders.find("ninja/swagger-ui.css")).read_text())


@pytest.mark.exhaustive
@pytest.mark.web
def test_a_browser_shows_the_operations_and_asks_nobody_else(live_server, browser):
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{live_server.url}{ROOT}/docs")
    page.click("#operations-tag-servers button")
    page.wait_for_selector("#operations-servers-confirm_server")
    assert page.query_selector("#operations-agents-list_agents") is None, (
        "a room is drawn when it is opened"
    )
    own = (live_server.url, "data:", "blob:")
    assert [url for url in asked if not url.startswith(own)] == []
    page.close()


@pytest.mark.exhaustive
def test_openapi_document_is_made_once(db, monkeypatch):
    first = Client().get(f"{ROOT}/openapi.json")
    assert first.json()["paths"]
    monkeypatch.setattr(NinjaAPI, "get_openapi_schema", None)  # it must not be called again
    assert Client().get(f"{ROOT}/openapi.json").content == first.content


def test_every_operation_declares_its_refusals_and_who_may(db):
    for path, methods in api.get_openapi_schema(path_prefix="")["paths"].items():
        for operation in methods.values():
            assert {400, 401, 403, 422, 429, 500, 503} <= set(operation["responses"]), path
            assert (404 in operation["responses"]) or "{" not in path
            assert {name for scheme in operation["security"] for name in scheme} == {
                "Bearer",
                "Session",
            }


def test_every_operation_has_a_name_of_its_own(db):
    document = api.get_openapi_schema(path_prefix="")
    names = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert sorted(set(names)) == sorted(names)


def test_every_schema_of_the_document_has_a_name_of_its_own(db):
    """Of two classes with one name, the document would describe one and use it for both."""
    documented = set(api.get_openapi_schema(path_prefix="")["components"]["schemas"])
    names = Counter(schema.__name__ for schema in subclasses(Schema))
    assert sorted(name for name in documented if names[name] > 1) == []


def subclasses(schema: type[Schema]) -> Iterator[type[Schema]]:
    for each in schema.__subclasses__():
        yield each
        yield from subclasses(each)


def test_no_secret_field_is_ever_an_output():
    schemas = api.get_openapi_schema(path_prefix="")["components"]["schemas"]
    for name in ("ServerOut", "AgentOut", "TokenOut", "LaunchOut"):
        assert not {"env", "headers", "token", "hash", "sealed_env"} & set(
            schemas[name]["properties"]
        ), name
