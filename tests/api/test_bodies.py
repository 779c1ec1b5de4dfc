"""Bodies that are too large, or say one thing twice: refused before anything reads them, with what
to do."""

from __future__ import annotations

import json

import pytest
from django.conf import settings

from mcpregistry.db import db_call
from mcpregistry.gateway.http import mcp_app
from mcpregistry.models import Invocation, Server
from tests.api.conftest import ROOT
from tests.api.test_calls import Site, site  # noqa: F401 - the fixture

pytestmark = [pytest.mark.attack, pytest.mark.one_database]


def test_both_doors_bear_the_same():
    assert settings.DATA_UPLOAD_MAX_MEMORY_SIZE == mcp_app.MAX_BODY == 4 * 1024 * 1024


async def test_a_call_above_the_limit_is_413_with_a_remedy_and_one_below_runs(site: Site):  # noqa: F811
    status, told = await site.call("echo__echo", {"params": {"text": "x" * mcp_app.MAX_BODY}})
    assert (status, told["code"]) == (413, "TOO_LARGE")
    assert "4,194,304 bytes" in told["message"]
    assert "Send less" in told["remedy"]
    status, _ = await site.call("echo__echo", {"params": {"text": "x" * 2_700_000}})
    sent = await db_call(lambda: Invocation.objects.exclude(dispatched_at=None).get().arguments)
    # the echo says it twice, which is beyond what a server may
    assert (status, len(sent) > 2_700_000) == (200, True)


def test_a_plain_view_says_the_same(db, caller):
    response = caller("operator").post(
        "/servers", {"slug": "made", "command": ["x" * mcp_app.MAX_BODY]}
    )
    assert (response.status_code, response.json()["code"]) == (413, "TOO_LARGE")
    assert not Server.objects.exists()


async def raw(site: Site, body: str) -> tuple[int, dict[str, str]]:  # noqa: F811
    headers = {"Authorization": f"Bearer {site.tokens['robot']}"}
    url = f"{ROOT}/tools/echo__echo/call"
    response = await site.client.post(url, body, content_type="application/json", headers=headers)
    return response.status_code, response.json()


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    "body",
    [
        '{"params": {"timezone": "UTC", "timezone": "Asia/Tokyo"}}',
        '{"params": {"deep": [{"timezone": 1, "timezone": 1}]}}',
        '{"params": {}, "timezone": 1, "timezone": 2}',
        '{"params": {"timezone": "UTC", "\\u0074imezone": "Asia/Tokyo"}}',
    ],
)
async def test_a_key_that_stands_twice_is_refused_by_name(site, body):  # noqa: F811
    status, told = await raw(site, body)
    assert (status, told["code"]) == (400, "BAD_REQUEST")
    assert "'timezone' appears twice" in told["message"]
    assert not await db_call(Invocation.objects.exists)


async def test_hidden_characters_of_such_a_key_are_shown_and_its_value_is_not(site):  # noqa: F811
    body = json.dumps({"params": {}})[:-2] + '"a\\u202eb": "hunter2", "a\\u202eb": "hunter2"}}'
    status, told = await raw(site, body)
    assert (status, "⟦U+202E⟧" in told["message"]) == (400, True)
    assert "hunter2" not in json.dumps(told)


def test_parameter_that_is_given_twice_is_refused_by_name(db, caller):
    response = caller("viewer").get("/permits?agent=ann&agent=bob")
    assert response.status_code == 400
    assert response.json()["code"] == "BAD_REQUEST"
    assert response.json()["message"] == "The parameter 'agent' was sent 2 times."


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/usage?day=today", "Remove it, or use one of these parameters: "),
        ("/status?day=today", "Remove it: this operation has no query parameters."),
    ],
)
def test_unknown_query_parameter_is_refused_by_name(db, caller, path, remedy):
    told = caller("viewer").get(path)
    assert (told.status_code, told.json()["code"]) == (400, "BAD_REQUEST")
    assert told.json()["message"] == "This operation has no query parameter 'day'."
    assert told.json()["remedy"].startswith(remedy)


def test_unknown_query_parameter_is_not_mentioned_before_authentication(db, client):
    assert client.get("/api/v1/usage?day=today").status_code == 401
