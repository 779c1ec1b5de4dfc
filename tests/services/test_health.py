"""Requests are rows first, checks are claimed once, failures lead to quiet and then to
'unavailable'."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from threading import Barrier

import celery
import pytest
from celery import Celery
from django.conf import settings
from django.db import connections
from django.db.models import F
from django.utils import timezone

from mcpregistry.domain.errors import ArgumentsInvalid, Conflict, Denied
from mcpregistry.domain.servers.health import (
    FIRST_CHECK_DELAY,
    MAX_CHECK_DELAY,
    SOON_CHECK_DELAY,
    compute_check_delay,
)
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.downstream.pool.events import TestReport
from mcpregistry.models import AuditEntry, Configuration, PolicyRule, Server, ServerTest
from mcpregistry.models.server import ConnectMode
from mcpregistry.services.configuration import dispatch
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import checks
from mcpregistry.services.servers.checks import (
    claim_due,
    free_checks,
    mark_failed,
    mark_ok,
    queue_test,
    request_reconnect,
    request_refresh,
    request_test,
)
from mcpregistry.services.servers.trials import record_check
from tests.services.rows import confirmed, draft
from tests.services.test_connections import FOUND

SECRET = "canary-7f3a91"


@pytest.fixture
def sent(monkeypatch) -> list[tuple[object, ...]]:
    """Messages that would have gone to the broker."""
    messages: list[tuple[object, ...]] = []
    monkeypatch.setattr(checks, "wake_worker", lambda *words: not messages.append(words))
    return messages


@pytest.fixture
def no_broker() -> Iterator[None]:
    """A site whose broker does not answer."""
    site = celery.current_app._get_current_object()
    with Celery(
        "nowhere", broker="redis+socket:///tmp/slipsnisse-no-such.sock", set_as_current=False
    ) as nowhere:
        # as the site gives up: soon
        nowhere.conf.broker_transport_options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
        nowhere.set_current()
        yield
        site.set_current()


def test_a_message_goes_out_only_once_the_row_is_committed_and_holds_ids_alone(live_db, sent):
    server = confirmed(env={"TOKEN": SECRET})
    test = request_test(server=server, actor="user:ann")
    assert sent == [("test_server", test.pk)]
    assert (test.verdict, test.server_revision) == ("queued", server.revision)
    assert AuditEntry.objects.filter(kind="server.test_requested", actor="user:ann").exists()


@pytest.mark.django_db
def test_nothing_goes_out_when_the_transaction_around_it_does_not_commit(sent):
    request_test(server=confirmed(), actor="test")
    assert sent == []


def test_asking_twice_waits_for_the_same_test(live_db, sent):
    server = confirmed()
    assert request_test(server=server, actor="a") == request_test(server=server, actor="b")
    assert len(sent) == 1


@pytest.mark.django_db
@pytest.mark.parametrize("ask", [request_test, request_refresh, request_reconnect])
def test_a_draft_is_never_started(ask, sent):
    with pytest.raises(Conflict, match="is not confirmed"):
        ask(server=draft(), actor="test")
    assert (ServerTest.objects.count(), sent) == (0, [])


@pytest.mark.django_db
def test_a_test_calls_only_approved_tools_that_only_read(sent):
    server = confirmed()
    listed = [
        {"name": "look", "annotations": {"readOnlyHint": True}},
        {"name": "touch", "annotations": {"readOnlyHint": False}},
        {"name": "new", "annotations": {"readOnlyHint": True}},
    ]
    observe.observe(server=server, listed=listed)
    for tool in server.tools.exclude(name="new"):
        decisions.approve(definition=tool.latest, actor="test")
    with pytest.raises(Denied, match="no rule matches"):
        request_test(server=server, actor="test", call_tool="look")
    PolicyRule.objects.create(name="reading runs", outcome="allow", server=server)
    assert request_test(server=server, actor="test", call_tool="look").call_tool == "look"
    PolicyRule.objects.create(
        name="no secrets", outcome="deny", priority=200, condition='args.path == "/secret"'
    )
    for path, refused in (("/secret", True), ("/plain", False)):
        with pytest.raises(Denied, match="no secrets") if refused else nullcontext():
            request_test(
                server=server, actor="test", call_tool="look", call_arguments={"path": path}
            )
    server.tools.filter(name="look").update(enabled=False)
    with pytest.raises(Denied, match="agents cannot call this tool now"):
        request_test(server=server, actor="test", call_tool="look")
    for name in ("touch", "new", "absent"):
        with pytest.raises(Denied, match="mcptest echo --call"):
            request_test(server=server, actor="test", call_tool=name)
    assert (
        queue_test(server=server, actor="shell:ann", call_tool="touch", call_arguments={}).call_tool
        == "touch"
    )


@pytest.mark.django_db
@pytest.mark.parametrize("odd", ["\x00", "\ud800", float("nan")])
def test_arguments_that_a_database_cannot_hold_are_refused(odd):
    with pytest.raises(ArgumentsInvalid):
        queue_test(server=confirmed(), actor="test", call_tool="echo", call_arguments={"text": odd})


def test_without_a_broker_the_test_stays_queued_and_says_so(live_db, no_broker):
    test = request_test(server=confirmed(), actor="test")
    assert test.error == dispatch.NO_BROKER
    test.refresh_from_db()
    assert (test.verdict, test.error) == ("queued", dispatch.NO_BROKER)


def test_without_a_broker_a_refresh_is_due_at_the_next_tick(live_db, no_broker):
    server = confirmed()
    Server.objects.filter(pk=server.pk).update(next_check_at=timezone.now() + timedelta(hours=1))
    assert request_refresh(server=server, actor="test") is False
    assert claim_due(9, answering=False) == [server.pk]


@pytest.mark.django_db
def test_reconnecting_raises_the_revision_that_every_process_watches():
    server = confirmed()
    before = server.revision
    seen = Configuration.load().revision
    assert request_reconnect(server=server, actor="test").revision == before + 1
    assert Configuration.load().revision > seen
    assert Server.objects.get(pk=server.pk).launch_confirmed


@pytest.mark.django_db
def test_due_servers_are_the_active_ones_whose_time_has_come():
    due, later, off, idle = (confirmed(slug) for slug in ("due", "later", "off", "idle"))
    draft("new")
    now = timezone.now()
    Server.objects.filter(pk=later.pk).update(next_check_at=now + timedelta(minutes=1))
    Server.objects.filter(pk=off.pk).update(lifecycle="disabled")
    Server.objects.filter(pk=idle.pk).update(next_check_at=None)
    assert claim_due(9, answering=True) == []
    assert claim_due(9, answering=False) == [due.pk]
    assert claim_due(9, answering=False) == []


@pytest.mark.django_db
def test_a_server_that_a_dead_worker_checked_is_due_at_once(sent):
    mine = confirmed("mine")
    others = confirmed("others")
    assert claim_due(1, answering=False, worker="worker@here:47") == [mine.pk]
    assert claim_due(1, answering=False, worker="worker@here:48") == [others.pk]
    assert free_checks("worker@here:47") == 1
    assert claim_due(9, answering=False) == [mine.pk]
    assert free_checks("worker@here:47") == 0


@pytest.mark.django_db
def test_a_server_that_is_being_checked_is_claimed_by_nobody_else_until_its_longest_time_is_over(
    sent,
):
    server = confirmed(connect_timeout=600)
    assert claim_due(9, answering=False) == [server.pk]
    assert request_refresh(server=server, actor="test"), "it is due, but a check of it runs"
    assert claim_due(9, answering=False) == []
    Server.objects.update(check_until=F("check_until") - timedelta(seconds=600))
    assert claim_due(9, answering=False) == []
    Server.objects.update(check_until=timezone.now() - timedelta(seconds=1))  # its worker has died
    assert claim_due(9, answering=False) == [server.pk]
    record_check(
        server_id=server.pk,
        report=TestReport(ok=True, error=None, discovery=FOUND, result=None, stderr="", timings={}),
    )
    Server.objects.update(next_check_at=timezone.now())
    assert claim_due(9, answering=True) == [server.pk]


@pytest.mark.django_db
def test_servers_that_fail_take_no_place_of_those_that_answer():
    works, fails, new = (confirmed(slug) for slug in ("works", "fails", "new"))
    Server.objects.filter(pk__in=[works.pk, fails.pk]).update(last_ok_at=timezone.now())
    Server.objects.filter(pk=fails.pk).update(consecutive_failures=1)
    assert claim_due(9, answering=True) == [works.pk]
    assert claim_due(9, answering=False) == [fails.pk, new.pk]


@pytest.mark.exhaustive
def test_many_workers_never_claim_the_same_check(live_db):
    servers = {confirmed(f"server-{n}").pk for n in range(12)}
    start = Barrier(6)

    def claim(_: int) -> list[int]:
        start.wait()
        try:
            return claim_due(12, answering=False)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as threads:
        claims = [key for claimed in threads.map(claim, range(6)) for key in claimed]
    assert sorted(claims) == sorted(servers)


@pytest.mark.django_db
def test_three_failures_in_a_row_make_a_server_unavailable_until_the_first_success():
    server = confirmed()
    for failures in (1, 2, 3, 4):
        mark_failed(server_id=server.pk, code="TIMEOUT", message="It did not\x00 answer.")
        server.refresh_from_db()
        assert server.consecutive_failures == failures
        assert (server.unavailable_since is not None) == (failures >= 3)
    assert (server.last_error_code, server.last_error) == ("TIMEOUT", "It did not␀ answer.")
    mark_ok(server_id=server.pk, discovery=FOUND)
    server.refresh_from_db()
    assert (server.unavailable_since, server.consecutive_failures) == (None, 0)
    assert list(server.events.order_by("id").values_list("kind", flat=True)) == [
        "unavailable",
        "available",
    ]


@pytest.mark.django_db
def test_health_alone_neither_bumps_the_configuration_nor_the_history():
    server = confirmed()
    mark_ok(server_id=server.pk, discovery=FOUND)
    revision = Configuration.load().revision
    history = server.history.count()
    mark_failed(server_id=server.pk, code="TIMEOUT", message="slow")
    mark_ok(server_id=server.pk, discovery=FOUND)
    assert (Configuration.load().revision, server.history.count()) == (revision, history)


@pytest.mark.django_db
def test_a_server_connected_by_hand_is_checked_once_after_confirming_and_then_left_alone():
    server = confirmed(connect_mode=ConnectMode.MANUAL)
    assert claim_due(9, answering=False) == [server.pk]
    mark_ok(server_id=server.pk, discovery=FOUND)
    assert Server.objects.get(pk=server.pk).next_check_at is None


def test_failing_servers_are_looked_at_less_and_less_but_at_least_every_quarter_of_an_hour():
    delays = [compute_check_delay(300, failures, chance=1.0) for failures in range(1, 10)]
    assert delays[:3] == [SOON_CHECK_DELAY, SOON_CHECK_DELAY, FIRST_CHECK_DELAY], (
        "soon known, then less and less"
    )
    assert delays == sorted(delays)
    assert delays[-1] == MAX_CHECK_DELAY == 900
    assert compute_check_delay(300, 0, chance=0.0) < compute_check_delay(300, 0, chance=0.9) < 300


@pytest.mark.django_db
def test_an_unchanged_server_writes_no_history_of_its_tools():
    server = confirmed()
    observe.observe(server=server, listed=FOUND.tools)
    tool = server.tools.get()
    before = tool.history.count(), Configuration.load().revision
    observe.observe(server=server, listed=FOUND.tools)
    assert (tool.history.count(), Configuration.load().revision) == before
    assert server.tools.get().last_seen_at > tool.last_seen_at


def test_processes_that_look_at_a_server_at_once_agree_on_its_tools(live_db):
    server = confirmed()
    start = Barrier(4)
    listed = [{"name": f"tool-{n}", "description": encode_canonical_json(n)} for n in range(20)]

    def look(_: int) -> int:
        start.wait()
        try:
            return len(observe.observe(server=server, listed=listed).added)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(look, range(4))) == [0, 0, 0, 20]
