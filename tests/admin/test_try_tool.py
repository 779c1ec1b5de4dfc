"""Trying a tool from its page: the ordinary pipeline, once for each form, and the person is the one
who asked."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connections
from django.test import AsyncClient
from django.urls import reverse

from mcpregistry.admin.result_parts import parts_of
from mcpregistry.calls.engine import Engine, set_current_engine
from mcpregistry.db import db_call
from mcpregistry.domain.errors import Conflict
from mcpregistry.models import ApprovalRequest, Configuration, Endpoint, Invocation, Tool
from mcpregistry.services.access import grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.records import idempotency
from mcpregistry.services.servers import lifecycle
from tests.api.conftest import new_agent, new_server, new_user
from tests.fakes.targets import SERVERS

pytestmark = pytest.mark.one_database

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "depth": {"type": "integer", "default": 2},
        "more": {"type": "object"},
    },
    "required": ["path"],
}
KEY = "0123456789abcdef" * 2


def set_up() -> str:
    listed = [{"name": "echo", "inputSchema": SCHEMA}]
    server = new_server(
        "echo",
        command=[sys.executable, "-S", str(SERVERS / "echo.py")],
        env={"FAKE_LISTED": json.dumps(listed)},
    )
    lifecycle.confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())
    observe.observe(server=server, listed=listed)
    decisions.approve_waiting(server=server, actor="test")
    Endpoint.objects.create(slug="default")
    Configuration.objects.update(default_outcome="allow")
    grants.grant_access(agent=new_agent("robot"), actor="test", server=server)
    new_agent("idle")
    return reverse("admin:mcpregistry_tool_try", args=[Tool.objects.get(name="echo").pk])


def key_of(html: str) -> str:
    found = re.search(r'name="key" value="([0-9a-f]{32})"', html)
    return found[1] if found else ""


def refused(**_: Any) -> None:
    raise Conflict("The first has not ended.", remedy="Send this request again in a moment.")


def locked(**_: Any) -> None:
    raise OperationalError("database is locked")


class Page:
    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.client = AsyncClient()
        self.engine = engine

    async def as_(self, role: str) -> Page:
        user = await db_call(new_user, role)
        user.is_staff = True
        await db_call(user.save)
        await db_call(self.client.force_login, user)
        self.name = user.get_username()
        return self

    async def where_a_person_is_asked(self) -> None:
        await db_call(Configuration.objects.update, default_outcome="ask")
        # the next call comes sooner than word of the change
        await db_call(self.engine.live.refresh)

    async def call(self, **said: str) -> str:
        form = {
            "agent": "robot",
            "endpoint": "default",
            "key": KEY,
            "a0": "README.md",
            "a1": "2",
        } | said
        answer = await self.client.post(self.url, form)
        assert answer.status_code == 200
        return answer.content.decode()


@pytest.fixture
async def page(live_db: None) -> AsyncIterator[Page]:
    url = await db_call(set_up)
    engine = Engine("web")
    await engine.start()
    set_current_engine(engine)
    try:
        yield Page(url, engine)
    finally:
        set_current_engine(None)
        await engine.stop()
        await sync_to_async(connections.close_all)()


async def test_a_form_makes_one_call_however_often_it_is_sent(page: Page) -> None:
    await page.as_("operator")
    form = (await page.client.get(page.url)).content.decode()
    assert re.search(r'name="key" value="[0-9a-f]{32}"', form)
    for _ in range(2):
        html = await page.call(a2='{"x": [1]}')
        assert "Result for the host" in html
        assert "succeeded" in html
    call = await db_call(Invocation.objects.get)
    assert json.loads(call.arguments) == {"path": "README.md", "depth": 2, "more": {"x": [1]}}
    assert (call.requester, call.host_name, call.agent_slug) == (
        page.name,
        f"user:{page.name}",
        "robot",
    )
    assert reverse("admin:mcpregistry_invocation_change", args=[call.pk]) in html
    assert key_of(html) not in ("", KEY)
    other = await page.call(a0="other")
    assert "so nothing was sent" in other
    assert key_of(other) not in ("", KEY)


async def test_wrong_arguments_and_missing_grants_are_told_and_send_nothing(page: Page) -> None:
    await page.as_("operator")
    assert "The tool requires this argument." in await page.call(a0="")
    assert "Enter a number." in await page.call(a1="two")
    assert "Use a JSON object" in await page.call(raw="[]")
    assert await db_call(Invocation.objects.count) == 0
    refused = await page.call(agent="idle", key="a" * 32)
    assert "Unknown tool" in refused or "NOT_FOUND" in refused
    assert "ARGUMENTS_INVALID" in await page.call(raw='{"path": 5}', key="b" * 32)


async def test_a_held_call_says_so_and_runs_once_it_is_approved(page: Page) -> None:
    await page.where_a_person_is_asked()
    await page.as_("operator")
    html = await page.call()
    held = await db_call(ApprovalRequest.objects.get)
    assert "Nothing has been sent yet." in html
    assert reverse("approvals:detail", args=[held.pk]) in html
    await page.call()  # the identical call joins
    assert await db_call(ApprovalRequest.objects.count) == 1


async def test_who_may_not_call_tools_does_not_try_them(page: Page) -> None:
    await page.as_("viewer")
    assert (await page.client.get(page.url)).status_code == 403
    assert (await page.client.post(page.url, {"agent": "robot"})).status_code == 403
    assert await db_call(Invocation.objects.count) == 0


async def test_who_does_not_see_tools_does_not_try_them(page: Page) -> None:
    await page.as_("viewer")
    user = await User.objects.aget(username=page.name)
    await db_call(user.groups.clear)
    await db_call(user.user_permissions.add, await Permission.objects.aget(codename="call_tool"))
    assert (await page.client.get(page.url)).status_code == 403
    await db_call(user.user_permissions.add, await Permission.objects.aget(codename="view_tool"))
    assert (await page.client.get(page.url)).status_code == 200


async def test_a_refusal_keeps_the_key_so_that_repeating_it_makes_no_second_call(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    await page.as_("operator")
    with monkeypatch.context() as under_way:
        under_way.setattr(idempotency, "claim", refused)
        html = await page.call()
    assert "Send this request again in a moment." in html
    assert key_of(html) == KEY
    assert key_of(await page.call(a0="")) == KEY


@pytest.mark.exhaustive
async def test_a_database_that_is_locked_after_the_call_loses_no_result(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    await page.as_("operator")
    with monkeypatch.context() as after:
        after.setattr(idempotency, "keep", locked)
        assert "Result for the host" in await page.call()
    assert "Result for the host" in await page.call()  # of its record
    assert await db_call(Invocation.objects.count) == 1


async def test_why_is_asked_with_what_is_recorded_and_without_secrets(page: Page) -> None:
    await page.as_("operator")
    link = re.compile(r'href="[^"]*/why/\?([^"]*)"')
    html = await page.call(
        raw='{"path": "README.md", "api_token": "s3cr3t", "more": {"password": "s3cr3t", "x": 1}}'
    )
    (asked,) = link.findall(html)
    assert "s3cr3t" not in asked
    assert json.loads(parse_qs(unescape(asked))["arguments"][0]) == {
        "path": "README.md",
        "more": {"x": 1},
    }
    (asked,) = link.findall(await page.call(a0="yes" * 700, key="c" * 32))
    assert "yesyes" not in asked


async def test_line_breaks_are_those_that_were_typed(page: Page) -> None:
    await page.as_("operator")
    await page.call(a0="one\r\ntwo")
    assert json.loads((await db_call(Invocation.objects.get)).arguments)["path"] == "one\ntwo"


@pytest.mark.exhaustive
async def test_whoever_may_confirm_is_not_told_otherwise(page: Page) -> None:
    await page.where_a_person_is_asked()
    await page.as_("operator")
    assert "you cannot approve it" in await page.call()
    await db_call(ApprovalRequest.objects.update, requester_may_confirm=True)
    html = await page.call(key="d" * 32)
    assert "you cannot approve it" not in html
    assert "confirm it yourself" in html


def test_pictures_are_shown_only_where_they_are_pictures() -> None:
    kinds = [
        {"type": "image", "mimeType": "image/png", "data": "iVBORw0K"},
        {"type": "image", "mimeType": "image/svg+xml", "data": "iVBORw0K"},
        {"type": "image", "mimeType": "image/png", "data": '" onerror='},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "x"}},
        "odd",
    ]
    assert [bool(part.picture) for part in parts_of({"content": kinds})] == [
        True,
        False,
        False,
        False,
        False,
    ]
    assert (
        parts_of({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]})[
            0
        ].about
        == "user"
    )
