"""Trials that repeat by the clock and on a new version, and who hears that a server behaves
otherwise."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from mcpregistry.models import Channel, Delivery, Server, ServerEvent
from mcpregistry.services.notifications import outbox
from mcpregistry.services.servers import lifecycle
from subagents import tasks
from subagents.domain.maintenance import Kind, Priority, State
from subagents.maintenance import queue, repeated_trials, trials
from subagents.models import MaintenanceRequest, Proposal, TrialReport
from tests.subagents.maintenance.test_trials import newcomer
from tests.subagents.test_api import person

pytestmark = pytest.mark.django_db


def end_all() -> None:
    for row in MaintenanceRequest.objects.open():
        queue.end(row, State.COMPLETED, result={})


def test_only_servers_that_people_have_chosen_are_tried_by_the_clock() -> None:
    server = newcomer()
    assert repeated_trials.ask_due(timezone.now()) == [], "off unless somebody says how often"
    server.trial_hours = 24
    lifecycle.save_server(server=server, actor="test")
    assert person("viewer").get("/servers/new").json()["trial_hours"] == 24
    tasks.try_due()
    asked = MaintenanceRequest.objects.get()
    assert (asked.kind, asked.params, asked.requested_by, asked.priority) == (
        Kind.TRY,
        {"server": "new"},
        "clock",
        Priority.LOW,
    )
    assert settings.TICKS["subagents.tasks.try_due"] == 60
    now = timezone.now()
    assert repeated_trials.ask_due(now + timedelta(days=9)) == [], "one at a time"
    end_all()
    assert repeated_trials.ask_due(now + timedelta(hours=23)) == []
    assert repeated_trials.ask_due(now + timedelta(hours=25)) == ["new"]
    end_all()
    lifecycle.disable_server(server=Server.objects.get(), actor="test")
    assert repeated_trials.ask_due(now + timedelta(days=9)) == []


def test_another_version_is_tried_soon_but_not_again_and_again() -> None:
    server = newcomer(trial_hours=24)
    now = timezone.now()
    repeated_trials.ask_due(now)
    end_all()
    TrialReport.objects.create(server=server, verdict="ok", version="1", created_at=now)
    for version, due in (("1", []), ("", []), ("2", ["new"])):
        Server.objects.update(server_info={"name": "new", "version": version})
        assert repeated_trials.ask_due(now + timedelta(hours=2)) == due
    end_all()
    assert repeated_trials.ask_due(now + timedelta(minutes=30)) == [], (
        "also if it calls itself otherwise each time"
    )


def start(**facts: Any) -> dict[str, Any]:
    usual = {
        "era": "legacy",
        "network": "closed",
        "ok": True,
        "code": "",
        "error": "",
        "server": {"version": "1"},
    }
    return usual | {"tools": 1, "left_out": 0, "connect_ms": 90.0, "list_ms": 2.0} | facts


def tool(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "hash": name,
        "reads": True,
        "destroys": False,
        "closed_world": True,
        "tokens": 5,
        "severity": 0,
        "found": [],
        "schema": "",
        "call": {"outcome": "ok", "ms": 1.0},
    }


def reported(actor: str, *names: str) -> TrialReport:
    """What the last step writes of a trial in which the server told of these tools."""
    request = queue.ask(kind=Kind.TRY, params={"server": "new"}, actor=actor)
    request.notes = {
        "starts": [start()],
        "tools": [tool(name) for name in names],
        "opened": [],
        "revision": Server.objects.get().revision,
    }
    trials.keep_report(request, None)
    queue.end(request, State.COMPLETED, result=request.result)
    return TrialReport.objects.get(request=request)


def test_another_behaviour_is_told_by_the_houses_notifications_and_on_the_servers_page() -> None:
    newcomer()
    outbox.save_channel(
        channel=Channel(name="mail", kind="email", addresses=["ops@example.org"], events=["trial"]),
        actor="test",
    )
    reported("clock", "look")
    same = reported("clock", "look")
    assert (same.differences, Delivery.objects.count()) == ([], 0)
    reported("clock", "look", "more")
    told = Delivery.objects.get().facts
    assert (told["type"], told["data"]["server"], told["data"]["reason"]) == (
        "server.trial",
        "new",
        "New tools: more.",
    )
    assert ServerEvent.objects.get(kind="trial").message.endswith("New tools: more.")


def test_the_clock_does_not_propose_again_what_waits_or_was_declined() -> None:
    newcomer()
    first = reported("clock", "look")
    assert first.proposed["fields"] == {"sandbox": "enforce", "sandbox_network": "none"}
    reported("clock", "look")
    assert Proposal.objects.count() == 1
    reported("user:ann", "look")
    assert Proposal.objects.count() == 2, "people get what they ask for"
    reported("clock", "look", "more")
    assert Proposal.objects.count() == 3, "something else is proposed"
