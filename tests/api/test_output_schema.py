"""A result that breaks the tool's approved output schema reaches its caller, and is remarked
wherever the call is told of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from mcpregistry.db import db_call
from mcpregistry.models import AuditEntry, Invocation, Server
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import lifecycle
from tests.api.conftest import ROOT, new_user
from tests.api.test_calls import NARROW, TOOLS, site  # noqa: F401 - a fixture
from tests.api.test_metrics import scrape
from tests.waiting import until

pytestmark = pytest.mark.one_database
PROMISE = {"type": "object", "properties": {"name": {"type": "integer"}}}


def promise() -> None:
    """The tool "echo", which answers with its name as a text, is approved with another output
    schema."""
    server = Server.objects.get(slug="echo")
    listed: list[dict[str, Any]] = [
        {"name": name, "inputSchema": {"type": "object"}} for name in TOOLS
    ] + [NARROW]
    listed[0]["outputSchema"] = PROMISE
    server.env = {"FAKE_LISTED": json.dumps(listed)}
    lifecycle.save_server(server=server, actor="test")
    lifecycle.confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())
    observe.observe(server=server, listed=listed)
    decisions.approve_waiting(server=server, actor="test")


async def test_it_stands_in_the_answer_the_record_its_page_the_log_and_the_figures(
    live_db,
    site,  # noqa: F811 -- it is the fixture
    settings,
):
    settings.METRICS_LOCAL = True
    await db_call(promise)

    async def warned() -> Any:
        _, answer = await site.call("echo__echo")
        return answer if answer.get("mcp", {}).get("warning") else None

    answer = await until(warned)  # the process has to hear of what was approved
    warning = answer["mcp"]["warning"]
    assert (
        warning
        == "The result does not match the tool's approved output schema at /properties/name/type."
    )
    assert (answer["success"], answer["error"], answer["result"]["name"]) == (True, None, "echo")
    record = await db_call(Invocation.objects.get, pk=answer["mcp"]["invocation_id"])
    assert (record.state, record.error_code, record.warning) == ("succeeded", "", warning)
    await db_call(_told_everywhere, record, warning)


def _told_everywhere(record: Invocation, warning: str) -> None:
    entry = AuditEntry.objects.get(subject=f"call:{record.pk}", kind="call.succeeded")
    assert json.loads(entry.body)["warning"] == warning
    client = Client()
    person = new_user("approver")
    person.is_staff = True
    person.save()
    client.force_login(person)
    page = client.get(
        reverse("admin:mcpregistry_invocation_change", args=[record.pk])
    ).content.decode()
    assert "The call was sent anyway." in page
    assert "/properties/name/type" in page
    assert client.get(f"{ROOT}/invocations/{record.pk}").json()["warning"] == warning
    assert scrape()["slipsnisse_call_warnings", (("server", "echo"),)] == 1


async def test_a_result_that_keeps_its_promise_has_no_warning(site):  # noqa: F811
    _, answer = await site.call("echo__echo")
    assert answer["mcp"]["warning"] == ""
    assert await db_call(Invocation.objects.exclude(warning="").count) == 0
