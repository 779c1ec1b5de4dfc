"""Approved calls that a worker runs: woken by the approval, found when the message is lost, once
whatever happens."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.utils import timezone

from mcpregistry import tasks
from mcpregistry.domain.calls.binding import compute_binding
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import DEFAULT_TERMS, Terms
from mcpregistry.domain.policy.risk import Risk, RiskLevel
from mcpregistry.models import ApprovalRequest, Configuration, Invocation, Tool
from mcpregistry.services.approvals import held_calls, votes
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from mcpregistry.services.configuration.dispatch import wake_worker
from mcpregistry.services.tasks.host_tasks import TaskWish
from mcpregistry.services.upkeep.invariants import calls
from tests.calls.conftest import add_server, tool
from tests.fakes.journals import called
from tests.waiting import HANG_LIMIT, eventually

pytestmark = pytest.mark.e2e
HIGH = Risk(RiskLevel.HIGH, False, True, True)
ENDED = [
    InvocationState.SUCCEEDED,
    InvocationState.TOOL_ERROR,
    InvocationState.NOT_SENT,
    InvocationState.UNKNOWN,
]
AS_TASK = TaskWish(ttl_ms=600_000, poll_ms=1000)


@pytest.fixture
def journal(live_db: None) -> Path:
    """One file for all tests: the worker's server outlives them, since each test's looks the same
    to it."""
    path = settings.VAR_DIR / "approved.journal"
    path.write_text("")
    env = {"FAKE_JOURNAL": str(path)}
    add_server(
        "echo",
        tool("echo"),
        env=env,
        max_concurrency=8,
        connect_timeout=HANG_LIMIT,
        request_timeout=HANG_LIMIT,
    )
    Configuration.objects.update(default_outcome="ask")
    return path


@pytest.fixture
def bob(live_db: None) -> User:
    user = User.objects.create_user("bob")
    user.groups.add(Group.objects.get(name="approver"))
    return user


def sent(journal: Path) -> list[Any]:
    return [params["arguments"]["n"] for params in called(journal)]


def ask(
    number: int, *, task: TaskWish | None = AS_TASK, terms: Terms = DEFAULT_TERMS
) -> HeldCallTicket:
    """As a host's call leaves it: pending, and its caller polls a task (or has gone)."""
    tool_row = Tool.objects.select_related("server", "pinned").get()
    arguments = json.dumps({"n": number}, separators=(",", ":"))
    facts = {
        "agent": "ann",
        "endpoint": "default",
        "server": "echo",
        "revision": tool_row.server.revision,
        "tool": "echo",
        "definition": tool_row.pinned.hash,
        "arguments": arguments,
    }
    row = {
        "id": f"{number:032x}",
        "agent_slug": "ann",
        "endpoint_slug": "default",
        "server_slug": "echo",
        "server_revision": tool_row.server.revision,
        "tool_name": "echo",
        "exposed_name": "echo__echo",
        "definition_hash": tool_row.pinned.hash,
        "arguments": arguments,
        "outcome": "ask",
        "origin": "http",
        "binding": compute_binding(**facts, fingerprint=terms.fingerprint),
        "writer": "web:1",
        "received_at": timezone.now(),
    }
    return held_calls.ask(
        row=row, terms=terms, risk=HIGH, waiting_as="task", now=timezone.now(), task=task
    )


def approve(ticket: HeldCallTicket, user: User, *, seconds_ago: float = 0) -> None:
    now = timezone.now() - timedelta(seconds=seconds_ago)
    votes.vote(request_id=ticket.id, user=user, approve=True, via="web", now=now)


def ended(count: int) -> list[Invocation]:
    """The calls that have ended, once there are so many; asked often, so it counts before it
    reads."""
    rows = Invocation.objects.filter(state__in=ENDED)
    return list(rows) if rows.count() >= count else []


def broken(*, but: str = "") -> list[str]:
    found = calls.check_invariants(timezone.now(), strict=True)
    return [
        f"{each.rule} {each.examples}" for each in found if each.violations and each.rule != but
    ]


# The worker goes on with its chain, whose beginning went with the rows of the test before.
CUT = "Every audit chain is complete."


@pytest.mark.usefixtures("site_worker")
def test_an_approval_wakes_the_worker_which_runs_the_call(journal: Path, bob: User):
    ticket = ask(1)
    approve(ticket, bob)
    (call,) = eventually(lambda: ended(1))
    assert (call.state, sent(journal)) == (InvocationState.SUCCEEDED, [1])
    kept = json.loads(ApprovalRequest.objects.get().result)
    assert kept["structuredContent"]["arguments"] == {"n": 1}
    assert broken(but=CUT) == []


@pytest.mark.usefixtures("site_worker")
def test_a_lost_message_and_a_doubled_one_do_no_harm(
    journal: Path, bob: User, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(votes, "wake_worker", lambda *_: False)  # the broker was away
    ticket = ask(1)
    approve(ticket, bob, seconds_ago=5)
    for _ in range(5):
        wake_worker("run_ready")
    eventually(lambda: ended(1))
    wake_worker("run_ready")
    wake_worker("run_approved", ticket.call_id)
    approve(ask(2), bob)
    wake_worker("run_approved", f"{2:032x}")
    eventually(lambda: ended(2))
    assert sorted(sent(journal)) == [1, 2]
    assert broken(but=CUT) == []


@pytest.mark.usefixtures("site_worker")
def test_what_was_rejected_or_is_pending_is_never_run_whoever_is_woken(journal: Path, bob: User):
    pending = ask(1)
    rejected = ask(2)
    done = ask(3)
    votes.vote(request_id=rejected.id, user=bob, approve=False, via="web")
    for ticket in (pending, rejected):
        wake_worker("run_approved", ticket.call_id)
    approve(done, bob)
    eventually(lambda: ended(1))
    assert sent(journal) == [3]
    held_calls.cancel(request_id=pending.id, reason="Enough", actor="test")
    assert broken(but=CUT) == []


def test_the_tasks_of_this_file_are_what_the_clock_and_the_approval_send():
    assert {"run_approved", "run_ready", "reap"} <= set(dir(tasks))
