"""Whole way: a request in this process, a real broker, a real worker, real servers."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from mcpregistry import tasks
from mcpregistry.gateway.stdio import own_worker
from mcpregistry.models import PolicyRule, ServerTest, Tool
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers.checks import queue_test, request_refresh, request_test
from tests.services.rows import confirmed
from tests.waiting import HANG_LIMIT, eventually

pytestmark = pytest.mark.e2e
TIME_SERVER = [str(Path(sys.executable).parent / "mcp-server-time")]


def finished(test: ServerTest) -> ServerTest:
    ended = ServerTest.objects.filter(pk=test.pk, finished_at__isnull=False)
    return eventually(ended.first, 2 * HANG_LIMIT)  # the worker's first test imports much


@pytest.mark.one_database
@pytest.mark.usefixtures("live_db", "site_worker")
def test_a_real_server_is_tested_approved_and_tested_again_with_a_call():
    server = confirmed("time", command=TIME_SERVER, connect_timeout=HANG_LIMIT)
    first = finished(request_test(server=server, actor="user:ann"))
    assert (first.verdict, first.tool_count, first.error) == ("passed", 2, "")
    assert {"connect", "list", "total"} <= set(first.timings)
    assert {tool.status for tool in Tool.objects.filter(server=server)} == {"quarantined"}
    assert decisions.approve_waiting(server=server, actor="user:ann") == 2
    tool = Tool.objects.get(server=server, name="get_current_time")
    assert tool.pinned.data["annotations"]["readOnlyHint"] is True
    arguments = {"timezone": "Europe/Vienna"}
    PolicyRule.objects.create(name="reading runs", outcome="allow", server=server)
    second = finished(
        request_test(server=server, actor="a", call_tool=tool.name, call_arguments=arguments)
    )
    assert (second.verdict, second.error) == ("passed", "")
    assert second.timings["call"] > 0


@pytest.mark.exhaustive
@pytest.mark.one_database
@pytest.mark.usefixtures("site_worker")
def test_a_worker_says_which_variables_it_does_not_pass_on(monkeypatch):
    """``runmcp --config`` refuses a file whose keys it sees and the site's worker does not."""
    monkeypatch.setattr(own_worker, "_PING_SECONDS", 5.0)  # a starved worker answers late
    # none where it is later still
    unseen = eventually(lambda: own_worker.list_unseen_variables(["HOME", "OAI_KEY"]))
    assert unseen == ["HOME", "OAI_KEY"]
    assert own_worker.list_unseen_variables([]) == []


@pytest.mark.one_database
@pytest.mark.usefixtures("live_db", "site_worker")
def test_failures_are_told_with_code_and_log():
    crash = confirmed("crash", env={"FAKE_CRASH": "start"})
    absent = confirmed("absent", command=["/no/such/program"])
    for server, words in ((crash, "cannot find my configuration"), (absent, "/no/such/program")):
        test = finished(request_test(server=server, actor="test"))
        assert (test.verdict, test.error_code) == ("failed", "CONNECTION_FAILED")
        assert words in test.stderr_tail + test.error


@pytest.mark.one_database
@pytest.mark.usefixtures("live_db", "site_worker")
def test_a_refresh_reads_anew_what_the_server_offers():
    server = confirmed("echo")
    observe.observe(server=server, listed=[{"name": "of_before", "inputSchema": {}}])
    assert request_refresh(server=server, actor="user:ann")
    offered = eventually(
        lambda: {*server.tools.filter(present=True).values_list("name", flat=True)} - {"of_before"}
    )
    assert "echo" in offered
    assert not server.tools.get(name="of_before").present


@pytest.mark.usefixtures("live_db", "site_worker")
def test_a_test_whose_message_never_went_out_is_sent_by_the_reaper():
    test = queue_test(server=confirmed(), actor="test", call_tool="", call_arguments={})
    ServerTest.objects.filter(pk=test.pk).update(requested_at=timezone.now() - timedelta(minutes=1))
    tasks.reap()
    assert finished(test).verdict == "passed"


@pytest.mark.usefixtures("live_db", "site_worker")
def test_the_tick_checks_what_is_due():
    servers = [confirmed("echo"), confirmed("slow")]
    tasks.check_due_servers()
    for server in servers:
        eventually(
            lambda server=server: (
                type(server).objects.filter(pk=server.pk, last_ok_at__isnull=False).exists()
            )
        )
        server.refresh_from_db()
        assert server.next_check_at > timezone.now()
        assert server.tools.exists()
    assert not ServerTest.objects.exists()
