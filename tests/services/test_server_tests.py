"""A test is claimed once, and whatever happened is in its row; only a server that listed its tools
works."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.template.loader import render_to_string
from django.utils import timezone

from mcpregistry.domain.errors import AuthFailed, Conflict, ConnectionFailed, TimedOut
from mcpregistry.downstream.pool.events import TestReport
from mcpregistry.models import Server, ServerTest, Tool
from mcpregistry.services.servers import checks, lifecycle, sandbox, trials
from mcpregistry.services.servers.checks import queue_test, request_test
from mcpregistry.services.servers.trials import (
    LOST_AFTER,
    claim_tests,
    give_up_lost,
    give_up_of,
    record_check,
    record_progress,
    record_verdict,
    resend_waiting,
    run_test,
)
from mcpregistry.templatetags.slipsnisse import steps
from tests.services.rows import confirmed
from tests.services.test_connections import FOUND

pytestmark = pytest.mark.django_db
TIMINGS = {"connect": 512.34, "list": 3.21, "total": 600.0}
PASSED = TestReport(True, None, FOUND, None, "ready\x00\n", TIMINGS)
FAILED = TestReport(
    False, AuthFailed("It refused our token.", remedy="Renew it."), None, None, "", {"total": 5.0}
)
CALL_FAILED = TestReport(False, TimedOut("Too slow."), FOUND, None, "", TIMINGS)
TOOL_FAILED = TestReport(True, None, FOUND, {"isError": True, "content": []}, "", TIMINGS)


def queued(server: Server, **changes) -> ServerTest:
    return queue_test(
        server=server, actor="test", **({"call_tool": "", "call_arguments": {}} | changes)
    )


def test_a_passed_test_keeps_its_figures_and_quarantines_what_it_saw():
    server = confirmed()
    test = run_test(test_id=queued(server).pk, probe=lambda *_: PASSED)
    test.refresh_from_db()
    assert (test.verdict, test.protocol_era, test.tool_count, test.error_code) == (
        "passed",
        "modern",
        1,
        "",
    )
    assert test.timings == {"connect": 512.3, "list": 3.2, "total": 600.0}
    assert test.started_at <= test.finished_at
    assert test.stderr_tail == "ready␀\n"
    assert Tool.objects.get(server=server).status == "quarantined"
    assert Server.objects.get(pk=server.pk).last_ok_at


def test_a_failed_test_names_code_and_remedy_and_counts_against_the_server():
    server = confirmed()
    test = run_test(test_id=queued(server).pk, probe=lambda *_: FAILED)
    test.refresh_from_db()
    assert (test.verdict, test.error_code, test.error) == (
        "failed",
        "AUTH_FAILED",
        "It refused our token. Renew it.",
    )
    assert (test.tool_count, Tool.objects.count()) == (None, 0)
    assert Server.objects.get(pk=server.pk).consecutive_failures == 1


@pytest.mark.parametrize(
    ("report", "code"), [(CALL_FAILED, "TIMEOUT"), (TOOL_FAILED, "TOOL_ERROR")]
)
def test_a_failed_call_fails_the_test_but_the_server_works(report, code):
    server = confirmed()
    asked = []
    row = queued(server, call_tool="echo", call_arguments={"b": 1, "a": [2]})

    def probe(server_id, call, _in_sandbox):
        asked.append((server_id, call))
        return report

    test = run_test(test_id=row.pk, probe=probe)
    assert asked == [(server.pk, ("echo", b'{"a":[2],"b":1}'))]
    assert (test.verdict, test.error_code, test.tool_count) == ("failed", code, 1)
    assert Server.objects.get(pk=server.pk).consecutive_failures == 0


def test_a_test_in_the_sandbox_says_nothing_of_the_servers_health_and_leads_to_it_once_it_has_passed():
    server = confirmed()
    forced = []

    def probe(report):
        return lambda _server, _call, in_sandbox: forced.append(in_sandbox) or report

    run_test(
        test_id=request_test(server=server, actor="test", in_sandbox=True).pk, probe=probe(FAILED)
    )
    assert Server.objects.get(pk=server.pk).consecutive_failures == 0
    with pytest.raises(Conflict, match="No test in the sandbox"):
        lifecycle.enforce_sandbox(server=Server.objects.get(pk=server.pk), actor="test")
    run_test(
        test_id=request_test(server=server, actor="test", in_sandbox=True).pk, probe=probe(PASSED)
    )
    enforced = lifecycle.enforce_sandbox(server=Server.objects.get(pk=server.pk), actor="test")
    assert (enforced.sandbox, enforced.lifecycle, enforced.launch_confirmed) == (
        "enforce",
        "active",
        True,
    )
    assert not sandbox.has_passed_sandbox_test(enforced), "it holds for the revision that was tried"
    assert forced == [True, True]


def test_a_message_delivered_twice_runs_the_test_once():
    server = confirmed()
    runs = []
    row = queued(server)

    def probe(*_):
        runs.append(1)
        assert run_test(test_id=row.pk, probe=probe) is None
        return PASSED

    assert run_test(test_id=row.pk, probe=probe)
    assert run_test(test_id=row.pk, probe=probe) is None
    assert run_test(test_id=0, probe=probe) is None
    assert runs == [1]


def test_a_result_that_comes_after_the_test_was_given_up_changes_nothing():
    row = queued(confirmed())

    def probe(*_):
        ServerTest.objects.filter(pk=row.pk).update(started_at=timezone.now() - LOST_AFTER * 2)
        assert give_up_lost(timezone.now()) == 1
        return PASSED

    run_test(test_id=row.pk, probe=probe)
    row.refresh_from_db()
    assert (row.verdict, row.error_code) == ("failed", "WORKER_LOST")
    assert not Tool.objects.exists()


def test_progress_is_kept_only_while_the_test_runs():
    test = queued(confirmed(), call_tool="echo")
    claim_tests(1)
    record_progress(test.pk, {"connect": 12.34}, "downloading\x00")
    test.refresh_from_db()
    assert test.stderr_tail == "downloading␀"
    shown = steps(test)
    assert [step.state for step in shown] == ["done", "running", "waiting"]
    assert shown[0].milliseconds == 12.3
    page = render_to_string("admin/mcpregistry/test_steps.html", {"test": test})
    assert "Call echo" in page
    record_verdict(test=test, report=PASSED)
    record_progress(test.pk, {}, "late")
    test.refresh_from_db()
    assert test.timings == {"connect": 512.3, "list": 3.2, "total": 600.0}
    assert test.stderr_tail == "ready␀\n"


def test_tests_of_a_dead_worker_end_at_once():
    dead = queued(confirmed("dead"))
    alive = queued(confirmed("alive"))
    assert claim_tests(1, worker="worker@here:47") == [dead.pk]
    assert claim_tests(1, worker="worker@here:48") == [alive.pk]
    assert give_up_of("worker@here:47", timezone.now()) == 1
    assert dict(ServerTest.objects.values_list("pk", "verdict")) == {
        dead.pk: "failed",
        alive.pk: "running",
    }


def test_a_running_test_of_a_living_worker_is_not_given_up():
    row = queued(confirmed())
    ServerTest.objects.filter(pk=row.pk).update(verdict="running", started_at=timezone.now())
    assert give_up_lost(timezone.now()) == 0


def test_tests_whose_message_was_lost_are_sent_again(monkeypatch):
    sent = []
    monkeypatch.setattr(checks, "wake_worker", lambda *words: not sent.append(words))
    old = queued(confirmed())
    new = queued(confirmed("slow"))
    ServerTest.objects.filter(pk=old.pk).update(requested_at=timezone.now() - timedelta(seconds=31))
    assert resend_waiting(timezone.now()) == 1
    assert sent == [("test_server", old.pk)]
    assert new.verdict == "queued"


def test_a_check_records_health_but_makes_no_test():
    server = confirmed()
    assert record_check(server_id=server.pk, report=PASSED)
    assert not record_check(server_id=server.pk, report=FAILED)
    server.refresh_from_db()
    assert (server.consecutive_failures, server.last_error_code) == (1, "AUTH_FAILED")
    assert not ServerTest.objects.exists()


def test_what_a_check_showed_of_a_server_that_was_disabled_meanwhile_is_not_kept():
    server = confirmed()
    Server.objects.filter(pk=server.pk).update(lifecycle="disabled")
    assert not record_check(server_id=server.pk, report=PASSED)
    server.refresh_from_db()
    assert server.last_ok_at is None


def test_queued_tests_are_claimed_once_the_oldest_first():
    rows = [queued(confirmed(slug)) for slug in ("a", "b", "c")]
    assert claim_tests(2) == [row.pk for row in rows[:2]]
    assert claim_tests(2) == [rows[2].pk]
    assert claim_tests(2) == []
    assert {test.verdict for test in ServerTest.objects.all()} == {"running"}


@pytest.mark.both_databases
@pytest.mark.parametrize(("fails_at", "claimed"), [(1, 0), (2, 1)])
def test_tests_stay_queued_if_the_database_fails_while_they_are_claimed(
    monkeypatch, fails_at, claimed
):
    """Those that were claimed before are worked on: nobody else would."""
    server = confirmed()
    user = User.objects.create(username="bob")
    waiting = [
        queued(server, user=user, call_tool="echo", call_arguments={"n": n}).pk for n in range(3)
    ]
    asked = iter(range(1, 10))
    claim = trials._claim

    def claim_until_it_fails(test_id: int, *, worker: str) -> bool:
        if next(asked) == fails_at:
            raise OperationalError("gone")
        return claim(test_id, worker=worker)

    monkeypatch.setattr(trials, "_claim", claim_until_it_fails)
    if claimed:
        assert claim_tests(3) == waiting[:claimed]
    else:
        with pytest.raises(OperationalError):
            claim_tests(3)
    running = ServerTest.objects.filter(verdict="running").values_list("pk", flat=True)
    assert [*running] == waiting[:claimed]
    assert claim_tests(3) == waiting[claimed:]


@pytest.mark.parametrize("mode", ["enforce", "off"])
def test_failed_start_names_paths_that_the_sandbox_hides(tmp_path: Path, mode: str):
    script = tmp_path / "server.py"
    script.write_text("")
    server = confirmed(command=["python3", str(script)], sandbox=mode)
    error = ConnectionFailed("The server exited.", remedy="Check the server's log.")
    report = TestReport(False, error, None, None, "", {})
    test = run_test(test_id=queued(server).pk, probe=lambda *_: report)
    test.refresh_from_db()
    server.refresh_from_db()
    for told in (test.error, server.last_error):
        assert told.startswith("The server exited.")
        assert (str(script) in told) == (mode == "enforce")
