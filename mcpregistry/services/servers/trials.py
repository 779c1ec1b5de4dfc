"""Tests and checks as a worker runs them: one fresh connection, and what it showed goes into
records.

The connection itself is a ``Probe``, so that this file is plain database code in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from django.db.models import QuerySet
from django.utils import timezone

from mcpregistry.domain.errors import Interrupted
from mcpregistry.domain.text.canonical import clean_text, encode_canonical_json
from mcpregistry.models import Server, ServerTest
from mcpregistry.services.servers.checks import (
    QUEUED,
    RUNNING,
    claim_each,
    describe_left_out,
    mark_failed,
    record_discovery,
    send_test,
)
from mcpregistry.services.servers.sandbox import list_hidden_from, list_unreadable_for

if TYPE_CHECKING:
    from mcpregistry.downstream.pool.events import TestReport

# Server id, a tool with its arguments as JSON bytes, and whether in the sandbox in any case; never
# raises.
Probe = Callable[[int, "tuple[str, bytes] | None", bool], "TestReport"]

RESEND_AFTER = timedelta(seconds=30)
LOST_AFTER = timedelta(minutes=15)  # longer than any test may take
_STDERR_KEPT = 64 * 1024


def run_test(*, test_id: int, probe: Probe, process: str = "") -> ServerTest | None:
    """Claim a queued test and run it. None: somebody else has it, or it is gone."""
    now = timezone.now()
    queued = ServerTest.objects.filter(pk=test_id, verdict=QUEUED)
    if not queued.update(verdict=RUNNING, started_at=now, error=""):
        return None
    test = ServerTest.objects.select_related("server").get(pk=test_id)
    call = (
        (test.call_tool, encode_canonical_json(test.call_arguments).encode())
        if test.call_tool
        else None
    )
    return record_test_result(
        test=test, report=probe(test.server_id, call, test.in_sandbox), process=process
    )


def claim_tests(limit: int, *, worker: str = "") -> list[int]:
    """Claim queued tests, the oldest first: of many callers, each test goes to exactly one.

    If the database fails in the middle, the caller gets what was claimed before, and the rest stays
    queued.
    """
    found = (
        ServerTest.objects.filter(verdict=QUEUED)
        .order_by("requested_at", "pk")
        .values_list("pk", flat=True)
    )
    return claim_each(found[:limit], partial(_claim, worker=worker))


def _claim(test_id: int, *, worker: str) -> bool:
    queued = ServerTest.objects.filter(pk=test_id, verdict=QUEUED)
    return bool(queued.update(verdict=RUNNING, started_at=timezone.now(), error="", worker=worker))


def record_check(*, server_id: int, report: TestReport, process: str = "") -> bool:
    """Keep what a check showed: the server's health and definitions follow. Returns whether it
    works.

    A server that was disabled or deleted meanwhile is left alone.
    """
    server = Server.objects.active().filter(pk=server_id).first()
    try:
        return server is not None and learn_from(server=server, report=report, process=process)
    finally:
        Server.objects.filter(pk=server_id).update(check_until=None)


def record_progress(test_id: int, steps: Mapping[str, float], stderr: str) -> None:
    """Keep how far a running test is: the steps that are done, in milliseconds, and what its server
    has written."""
    running = ServerTest.objects.filter(pk=test_id, verdict=RUNNING)
    running.update(timings=_round_durations(steps), stderr_tail=clean_text(stderr, _STDERR_KEPT))


def record_test_result(*, test: ServerTest, report: TestReport, process: str = "") -> ServerTest:
    """Keep what a claimed test showed of the server, and its verdict.

    The verdict comes last, so whoever waits for it sees the tools. What the test showed is scanned
    outside of any transaction; it is true even if the test was given up in the meantime.
    """
    running = ServerTest.objects.filter(pk=test.pk, verdict=RUNNING)
    # what it does where it does not run says nothing of how it is
    if not test.in_sandbox and running.exists():
        learn_from(server=test.server, report=report, process=process)
    return record_verdict(test=test, report=report)


def record_verdict(*, test: ServerTest, report: TestReport) -> ServerTest:
    """Keep the verdict of a claimed test alone; what it showed of the server was taken in before
    (``learn_from``)."""
    code, error = _describe_verdict(report, test.server, in_sandbox=test.in_sandbox)
    test.verdict = ServerTest.Verdict.FAILED if code else ServerTest.Verdict.PASSED
    test.finished_at = timezone.now()
    test.server_revision = test.server.revision
    test.protocol_era = report.discovery.era if report.discovery else ""
    test.tool_count = len(report.discovery.tools) if report.discovery and report.listed else None
    test.timings = _round_durations(report.timings)
    test.error_code = code
    test.error = clean_text(error)
    test.stderr_tail = clean_text(report.stderr, _STDERR_KEPT)
    test.left_out = (
        describe_left_out(report.discovery) if report.discovery and report.listed else ""
    )
    running = ServerTest.objects.filter(pk=test.pk, verdict=RUNNING)
    # the reaper may have given it up
    running.update(**{name: getattr(test, name) for name in _RESULT})
    return test


_RESULT = (
    "verdict",
    "finished_at",
    "server_revision",
    "protocol_era",
    "tool_count",
    "left_out",
    "timings",
    "error_code",
    "error",
    "stderr_tail",
)


def resend_waiting(now: datetime) -> int:
    """Send tests again whose message was lost or could not be sent. Returns how many went out."""
    waiting = ServerTest.objects.filter(
        verdict=QUEUED, requested_at__lt=now - RESEND_AFTER
    ).order_by("requested_at")
    return sum(send_test(test) for test in waiting[:100])


def give_up_lost(now: datetime) -> int:
    """End tests whose worker must have died. Returns how many."""
    return _give_up(ServerTest.objects.filter(started_at__lt=now - LOST_AFTER), now)


def give_up_of(worker: str, now: datetime) -> int:
    """End the tests of a worker that is known to have died. Returns how many."""
    return _give_up(ServerTest.objects.filter(worker=worker), now)


def _give_up(tests: QuerySet[ServerTest], now: datetime) -> int:
    return tests.filter(verdict=RUNNING).update(
        verdict=ServerTest.Verdict.FAILED,
        finished_at=now,
        error_code="WORKER_LOST",
        error="The worker stopped during this test. Test the server again.",
    )


def _round_durations(steps: Mapping[str, float]) -> dict[str, float]:
    return {step: round(milliseconds, 1) for step, milliseconds in steps.items()}


def _describe_verdict(
    report: TestReport, server: Server, *, in_sandbox: bool = False
) -> tuple[str, str]:
    """Error code and text with remedy; empty when the test passed."""
    if report.error is not None:
        hidden = _explain_hidden_paths(server, in_sandbox) if report.discovery is None else ""
        return report.error.code, f"{report.error}{hidden}"
    if report.result is not None and report.result.get("isError"):
        return "TOOL_ERROR", "The tool answered with an error. Try other arguments."
    return "", ""


def _explain_hidden_paths(server: Server, in_sandbox: bool) -> str:
    """Why a server may not have started in its sandbox; empty if nothing in its command is
    hidden."""
    hidden = list_unreadable_for(server) if in_sandbox else list_hidden_from(server)
    if not hidden:
        return ""
    return (
        f" In its sandbox, the server cannot read these paths in its command: {', '.join(hidden)}. "
        "If the server needs these paths, edit the server, and add the paths to the field “May read”."
    )


def learn_from(*, server: Server, report: TestReport, process: str = "") -> bool:
    """Take in what a test or check showed of the server, outside of any transaction. Returns
    whether the server works.

    A server that listed its tools works, also when a test's own call then failed.
    """
    if report.discovery is not None and report.listed:
        record_discovery(server=server, discovery=report.discovery, process=process)
        return True
    # says nothing of the server; who runs next looks at once
    if isinstance(report.error, Interrupted):
        Server.objects.filter(pk=server.pk).update(next_check_at=timezone.now())
        return False
    code, error = _describe_verdict(report, server)
    mark_failed(server_id=server.pk, code=code, message=error)
    return False
