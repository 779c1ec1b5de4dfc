"""The downstream side of a synchronous process: every trouble is a report, nothing is left
behind."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from mcpregistry.services.servers import checks, lifecycle, trials
from mcpregistry.services.servers.prober import Prober
from tests.fault.database import failing
from tests.processes import with_words
from tests.services.rows import confirmed, draft
from tests.waiting import HANG_LIMIT, eventually

# The most seconds that a server may have: no test ends because its server took too long.
PATIENT = {"connect_timeout": 600, "request_timeout": 86_400}


@pytest.fixture
def prober():
    made = Prober()
    yield made
    made.close()


def test_many_threads_test_at_the_same_time(live_db, prober):
    servers = [confirmed(slug) for slug in ("echo", "slow", "legacy", "crash")]

    def test(server):
        try:
            return prober.test(server.pk)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(test, servers))
    assert [report.error for report in reports] == [None] * 4
    assert all(report.listed for report in reports)


def test_a_call_with_its_exact_bytes_is_part_of_the_report(live_db, prober):
    report = prober.test(confirmed().pk, ("echo", b'{"b":1,"a":2}'))
    assert report.result["structuredContent"]["arguments"] == {"a": 2, "b": 1}
    assert report.timings["call"] > 0


def test_steps_of_a_running_test_are_told_before_it_ends(live_db, prober, monkeypatch):
    monkeypatch.setattr("mcpregistry.services.servers.prober._LOOK_EVERY", 0.05)
    server = confirmed("slow", **PATIENT)
    test = checks.queue_test(server=server, actor="test", call_tool="", call_arguments={})
    trials.claim_tests(1)
    told = threading.Event()

    def tell(steps, stderr):
        trials.record_progress(test.pk, steps, stderr)
        if "list" in steps:
            told.set()

    call = ("count", b'{"steps":100000,"pause":0.1}')
    running = asyncio.run_coroutine_threadsafe(
        prober.probe(server.pk, call, tell=tell), prober._loop.loop
    )
    assert told.wait(HANG_LIMIT)
    test.refresh_from_db()
    assert (test.verdict, set(test.timings)) == ("running", {"connect", "list"})
    prober.interrupt()
    assert running.result(HANG_LIMIT).error.code == "INTERRUPTED"


def test_what_may_not_run_is_refused_in_the_report(live_db, prober):
    report = prober.test(draft().pk)
    assert (report.ok, report.error.code, report.listed) == (False, "CONFLICT", False)


def test_an_unexpected_failure_tells_nothing_of_itself(live_db, prober, monkeypatch):
    def explode(server_id):
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr("mcpregistry.services.servers.prober.build_target", explode)
    report = prober.test(1)
    assert "hunter2" not in str(report.error)
    assert report.error.remedy


def test_a_server_that_never_answers_is_given_up(live_db, prober, monkeypatch):
    monkeypatch.setattr("mcpregistry.services.servers.prober._compute_timeout", lambda target: 0.3)
    report = prober.test(confirmed("mute").pk)
    assert report.error.code == "TIMEOUT"


def test_closing_leaves_neither_threads_nor_processes(live_db):
    before = {thread.name for thread in threading.enumerate()}
    prober = Prober()
    assert prober.test(confirmed().pk).ok
    prober.close()
    left = {thread.name for thread in threading.enumerate()} - before
    assert not [name for name in left if name.startswith("mcp")]
    assert not with_words("echo.py")


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    "call", [None, ("count", b'{"steps":100000,"pause":0.1}')], ids=["connecting", "calling"]
)
def test_an_interrupted_test_ends_at_once_with_its_processes_and_no_other_begins(
    live_db, prober, call, monkeypatch
):
    monkeypatch.setattr("mcpregistry.domain.servers.health.CALL_SECONDS", 86_400)
    name = "slow" if call else "mute"
    server = confirmed(name, **PATIENT)

    def test():
        try:
            return prober.test(server.pk, call)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as thread:
        report = thread.submit(test)
        eventually(lambda: with_words(f"{name}.py"))
        prober.interrupt()
        assert report.result(HANG_LIMIT).error.code == "INTERRUPTED"
    assert not with_words(f"{name}.py")
    assert prober.test(server.pk).error.code == "INTERRUPTED"


def test_a_test_is_cut_when_its_server_is_disabled(live_db, prober):
    server = confirmed("mute", **PATIENT)

    def check() -> bool:
        try:
            return trials.record_check(server_id=server.pk, report=prober.test(server.pk))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as thread:
        worked = thread.submit(check)
        eventually(lambda: with_words("mute.py"))
        lifecycle.disable_server(server=server, actor="test")
        assert not worked.result(HANG_LIMIT)
    assert not with_words("mute.py")
    server.refresh_from_db()
    assert (server.consecutive_failures, server.last_error) == (0, ""), (
        "it is not the server's fault"
    )


def test_a_look_that_fails_is_not_told_as_a_server_that_was_disabled(live_db, prober, monkeypatch):
    def fails(server_id: int) -> bool:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr("mcpregistry.services.servers.prober._is_active", fails)
    report = prober.test(confirmed("mute", **PATIENT).pk)
    assert "because of an internal error" in str(report.error)
    assert "hunter2" not in str(report.error)
    assert not with_words("mute.py")


@pytest.mark.fault
def test_a_database_that_is_away_is_not_blamed_on_the_server(live_db, prober):
    server = confirmed("echo")
    with failing("targets.build_target"):
        assert not trials.record_check(server_id=server.pk, report=prober.test(server.pk))
    server.refresh_from_db()
    assert (server.consecutive_failures, server.last_error) == (0, "")
