"""Calls that tests of servers make are calls: decided, recorded from their intent to one end, in
the name of a person."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcpregistry.models import Invocation, PolicyRule, ServerTest, SiteProcess
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers.checks import queue_test
from mcpregistry.services.upkeep import processes, reaping
from mcpregistry.worker_shares import Shares
from tests import forkserver
from tests.calls.conftest import broken, told
from tests.services.rows import confirmed
from tests.waiting import HANG_LIMIT, eventually


@pytest.fixture
def shares(live_db: None) -> Iterator[Shares]:
    made = Shares()
    yield made
    made.close()
    assert broken() == []


def ordered(fake: str = "echo", tool: str = "echo", **arguments: Any) -> ServerTest:
    """A queued test that ann has asked for, with a call of an approved tool that the rules
    allow."""
    server = confirmed(fake)
    observe.observe(server=server, listed=[{"name": tool, "annotations": {"readOnlyHint": True}}])
    decisions.approve(definition=server.tools.get().latest, actor="test")
    PolicyRule.objects.create(name="reading runs", outcome="allow", server=server)
    ann = User.objects.create_user("ann")
    return queue_test(
        server=server, actor="user:ann", user=ann, call_tool=tool, call_arguments=arguments
    )


def finished(shares: Shares, test: ServerTest) -> ServerTest:
    shares.look_for_tests()
    eventually(lambda: ServerTest.objects.filter(pk=test.pk, finished_at__isnull=False).exists())
    return ServerTest.objects.get(pk=test.pk)


def test_call_of_a_test_is_recorded_with_its_requester(shares: Shares) -> None:
    test = ordered(text="hello")
    assert finished(shares, test).verdict == "passed"
    call = Invocation.objects.get()
    assert (call.origin, call.state, call.tool_name) == ("test", "succeeded", "echo")
    assert (call.agent_slug, call.endpoint_slug, call.requester) == ("(tests)", "(tests)", "ann")
    assert (call.arguments, call.request_id) == ('{"text":"hello"}', f"test-{test.pk}")
    assert "hello" in call.result
    assert told(call.pk) == ["call.dispatched", "call.succeeded"]


def test_rule_that_changed_while_a_test_waited_denies_its_call(shares: Shares) -> None:
    test = ordered()
    PolicyRule.objects.update(outcome="deny", name="nothing runs")
    done = finished(shares, test)
    assert (done.verdict, done.error_code, done.tool_count) == ("failed", "DENIED", 3)
    assert "nothing runs" in done.error
    call = Invocation.objects.get()
    assert (call.state, call.outcome, call.dispatched_at) == ("denied", "deny", None)
    assert told(call.pk) == ["call.denied"]
    done.server.refresh_from_db()
    assert done.server.consecutive_failures == 0


def test_call_of_a_stopped_test_has_an_end(live_db: None) -> None:
    shares = Shares()
    test = ordered("slow", "count", steps=100_000, pause=0.1)
    shares.look_for_tests()
    eventually(lambda: Invocation.objects.filter(state="dispatched").exists())
    eventually(lambda: ServerTest.objects.filter(pk=test.pk, timings__list__isnull=False).exists())
    shares.close()
    call = Invocation.objects.get()
    assert call.state in ("unknown", "not_sent"), (
        "not sent: it was stopped between the record and the first byte"
    )
    assert told(call.pk) == ["call.dispatched", f"call.{call.state}"]
    assert ServerTest.objects.get(pk=test.pk).error_code == "INTERRUPTED"


def test_call_of_a_killed_test_ends_once(live_db: None, site_env: dict[str, str]) -> None:
    """The person at the command line vouches for the call, so that no rule has to allow it."""
    confirmed()
    words = ["manage.py", "mcptest", "echo", "--call", "echo"]
    child = forkserver.popen(
        words, env=site_env | {"SLIPSNISSE_FAILPOINT": "after_send:crash"}, stdout=subprocess.PIPE
    )
    assert child.wait(HANG_LIMIT) != 0
    call = Invocation.objects.get()
    assert (call.state, call.origin, call.outcome) == ("dispatched", "test", "allow")
    assert "takes responsibility for it" in call.reason
    assert SiteProcess.objects.filter(pk=processes.extract_writer_base(call.writer)).exists(), (
        "others see that it is dead"
    )
    later = call.lease_until + timedelta(seconds=1)
    assert [reaping.reap_calls(later), reaping.reap_calls(later)] == [1, 0]
    call.refresh_from_db()
    assert call.state == "unknown"
    assert told(call.pk) == ["call.dispatched", "call.unknown"]
