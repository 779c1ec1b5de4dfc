"""Each invariant notices its own violation, and nothing else does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.models import Credential, Invocation, Server, ServerTest
from mcpregistry.models.guards import drop_guards, install_guards
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.records import audit
from mcpregistry.services.upkeep import reaping
from mcpregistry.services.upkeep.invariants.calls import check_invariants
from mcpregistry.services.upkeep.reaping import reap_calls
from tests.services.rows import confirmed, dispatched, ended, record_event
from tests.services.test_connections import event

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def broken(*, strict: bool = False) -> set[str]:
    return {
        finding.rule
        for finding in check_invariants(timezone.now(), strict=strict)
        if finding.violations
    }


def call_without_audit(**changes) -> None:
    ended("c1")
    Invocation.objects.create(**(Invocation.objects.values().get(pk="c1") | {"id": "c2"} | changes))


def test_a_site_at_work_and_at_rest_breaks_nothing():
    server = confirmed(env={"TOKEN": "x"})
    observe.observe(server=server, listed=[{"name": "echo"}])
    decisions.approve_waiting(server=server, actor="test")
    ended("done")
    dispatched("out", lease=MINUTE)
    assert broken() == set()
    assert broken(strict=True) == {"No call is open."}
    Invocation.objects.filter(pk="out").update(lease_until=timezone.now())
    reap_calls(timezone.now())
    assert broken(strict=True) == set()


@pytest.mark.exhaustive
def test_what_became_due_after_the_site_was_stopped_is_not_late():
    dispatched("out", lease=-20 * MINUTE)
    assert broken() == {"No lease is overdue."}
    reaping.note_clock_look(timezone.now() - 30 * MINUTE)
    assert broken() == set()
    reaping.note_clock_look(timezone.now())
    assert broken() == {"No lease is overdue."}


def test_an_answer_that_comes_after_the_reaper_is_no_second_end():
    dispatched()
    reap_calls(timezone.now())
    audit.record_entry(kind="call.succeeded", actor="local", subject="call:c1")
    assert broken(strict=True) == set()


def test_a_guard_that_is_missing_is_named():
    drop_guards()
    (finding,) = [found for found in check_invariants(timezone.now()) if found.violations]
    install_guards()
    assert finding.rule == "The triggers of the database are in place."
    assert finding.violations > len(finding.examples) == 5
    assert check_invariants(timezone.now())[0].violations == 0


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.exhaustive(on="postgresql")
@pytest.mark.parametrize(
    ("rule", "violate"),
    [
        ("Every sent call has its audit entry.", lambda: call_without_audit()),
        (
            "No call was sent twice.",
            lambda: (
                ended("c1"),
                audit.record_entry(kind="call.dispatched", actor="a", subject="call:c1"),
            ),
        ),
        (
            "No call ended twice.",
            lambda: (
                ended("c1"),
                audit.record_entry(kind="call.succeeded", actor="a", subject="call:c1"),
            ),
        ),
        (
            "Denied, rejected and undecided calls were never sent.",
            lambda: ended("c1", state="cancelled"),
        ),
        (
            "Denied, rejected and undecided calls were never sent.",
            lambda: ended("c1", outcome="deny"),
        ),
        (
            "A call has ended if and only if the audit log contains its outcome.",
            lambda: (
                dispatched("c1", lease=MINUTE),
                audit.record_entry(kind="call.unknown", actor="a", subject="call:c1"),
            ),
        ),
        (
            "A call has ended if and only if the audit log contains its outcome.",
            lambda: dispatched("c1", state="unknown", lease_until=None, finished_at=timezone.now()),
        ),
        (
            "An ended call has an end time and no lease.",
            lambda: ended("c1", lease_until=timezone.now() + MINUTE),
        ),
        ("An ended call has an end time and no lease.", lambda: ended("c1", finished_at=None)),
        ("Every succeeded call has an answer.", lambda: ended("c1", result="", result_bytes=0)),
        ("Every call in progress has a lease.", lambda: dispatched("c1", lease_until=None)),
        ("No lease is overdue.", lambda: dispatched("c1", lease=-MINUTE)),
        (
            "The launch of every active server is confirmed.",
            lambda: (confirmed(), Server.objects.update(command=["evil"])),
        ),
        (
            "Secrets are only stored encrypted.",
            lambda: Credential.objects.create(name="x", sealed_value="plain text"),
        ),
        (
            "No test waits for a stopped worker.",
            lambda: ServerTest.objects.create(
                server=confirmed(),
                verdict="running",
                requested_at=timezone.now(),
                started_at=timezone.now() - 60 * MINUTE,
            ),
        ),
    ],
)
def test_each_rule_notices_its_own_violation(rule, violate):
    violate()
    assert rule in broken()


def test_an_unapproved_definition_must_not_be_served():
    server = confirmed()
    observe.observe(server=server, listed=[{"name": "echo"}])
    tool = server.tools.get()
    tool.pinned = tool.latest
    tool.save()
    assert broken() == {"Only approved definitions of the same tool are offered."}


def test_a_connection_of_a_dead_process_is_noticed():
    server = confirmed()
    record_event(event(server), "web@box:1")
    assert broken() == set()
    server.connections.update(seen_at=timezone.now() - 5 * MINUTE)
    assert broken() == {"No connection of a stopped process is listed."}


@pytest.mark.exhaustive
def test_many_calls_are_judged_in_as_many_queries_as_few():
    counts = []
    for start, end in ((0, 5), (5, 40)):
        for number in range(start, end):
            ended(f"c{number}")
        with CaptureQueriesContext(connection) as asked:
            assert broken() == set()
        counts.append(len(asked))
    assert counts[0] == counts[1]
