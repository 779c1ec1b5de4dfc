"""Payloads go first, then calls; the audit log and whatever is still open stay."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from mcpregistry.models import Agent, AuditEntry, Configuration, Invocation, ServerEvent, ServerTest
from mcpregistry.services.access import agents, grants, tokens
from mcpregistry.services.servers.notes import EVENTS_KEPT
from mcpregistry.services.upkeep import retention
from tests.services.rows import confirmed, dispatched, ended

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _keep():
    Configuration.objects.filter(pk=1).update(keep_payloads_days=30, keep_calls_days=365)


def at(days: int) -> dict[str, object]:
    return {"received_at": timezone.now() - timedelta(days=days)}


def test_payloads_are_erased_before_the_records_are_deleted():
    for days in (1, 31, 366):
        ended(f"c{days}", **at(days))
    found = retention.prune(timezone.now())
    assert (found["payloads"], found["calls"]) == (1, 1)
    kept = {
        call.id: (call.arguments, call.result, call.result_bytes)
        for call in Invocation.objects.all()
    }
    assert kept == {"c1": ('{"text":"hello"}', "{}", 2), "c31": ("", "", 2)}


def test_the_audit_log_keeps_everything():
    ended("old", **at(400))
    before = AuditEntry.objects.count()
    retention.prune(timezone.now())
    assert not Invocation.objects.exists()
    assert AuditEntry.objects.count() == before + 1
    assert (
        AuditEntry.objects.latest("id").kind == "calls.forgotten"
    )  # by which a call taken by hand is told from this one


def test_an_open_call_is_kept_however_old():
    dispatched("open", **at(400))
    retention.prune(timezone.now())
    assert Invocation.objects.get().arguments


def test_expired_grants_and_tokens_are_left_for_people():
    agent = agents.save_agent(agent=Agent(slug="a"), actor="test")
    tokens.issue_token(name="t", actor="test", agent=agent)
    agent.tokens.update(expires_at=timezone.now() - timedelta(days=999))
    grants.grant_access(agent=agent, server=confirmed(), actor="test")
    agent.grants.update(expires_at=timezone.now() - timedelta(days=999))
    retention.prune(timezone.now())
    assert (agent.tokens.count(), agent.grants.count()) == (1, 1)


def test_a_run_is_bounded_and_the_next_one_goes_on(monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 2)
    monkeypatch.setattr(retention, "MAX_BATCHES", 2)
    for number in range(7):
        ended(f"c{number}", **at(400))
    assert [retention.prune(timezone.now())["calls"] for _ in range(3)] == [4, 3, 0]


def test_old_tests_and_surplus_events_go():
    server = confirmed()
    for days in (1, 400):
        when = timezone.now() - timedelta(days=days)
        ServerTest.objects.create(
            server=server, requested_at=when, finished_at=when, verdict="passed"
        )
    now = timezone.now()
    ServerEvent.objects.bulk_create(
        ServerEvent(server=server, at=now, kind="x") for _ in range(EVENTS_KEPT + 5)
    )
    found = retention.prune(now)
    assert (found["tests"], found["events"]) == (1, 5)
    assert server.events.count() == EVENTS_KEPT
