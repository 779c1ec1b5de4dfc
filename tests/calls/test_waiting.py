"""The wait strategy through a real engine: what is said while a call is held, and when the host is
let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcpregistry.calls.approvals import caller_waiting
from mcpregistry.calls.call import CallHost, HostReply, Prompt
from mcpregistry.db import db_call
from mcpregistry.domain.calls import hosts
from mcpregistry.domain.calls.hosts import HostLimits
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.text.durations import format_exact_duration
from mcpregistry.models import ApprovalRequest, Configuration, PolicyRule, Server
from mcpregistry.services.approvals import votes
from tests.calls.conftest import Site, add_server, tool
from tests.calls.test_approvals import Make, held, person, vote
from tests.waiting import until

HASTY = CallHost(name="hasty", transport="http")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that waits so little that it is held for a fifth of a second."""
    monkeypatch.setitem(hosts.TABLE, "hasty", HostLimits(0.25, False, True, "made for tests"))


@pytest.fixture
def asking(live_db: None, journal: Path) -> Server:
    server = add_server("slow", tool("count"), env={"FAKE_JOURNAL": str(journal)})
    Configuration.objects.update(default_outcome="ask")
    return server


@pytest.fixture
def bob(live_db: None) -> User:
    return person("bob")


@dataclass
class Ear:
    """A host's progress, as the engine reports it."""

    heard: list[tuple[float, str]] = field(default_factory=list)

    def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append((progress, message or ""))

    async def until(self, count: int) -> None:
        await until(lambda: len(self.heard) >= count)


async def test_an_approved_call_that_runs_longer_than_its_host_waits_is_fetched_by_the_same_call(
    site: Make, asking: Server, bob: User, tmp_path: Path
) -> None:
    here: Site = await site()
    gate = tmp_path / "gate"
    arguments = {"steps": 1, "until": str(gate)}
    first = await here.call("slow__count", arguments, host=HASTY)
    assert first.state is InvocationState.PENDING
    await vote(bob)
    second = await here.call("slow__count", arguments, host=HASTY)
    assert second.ticket is not None
    # on its way, and its host is let go in time
    assert second.ticket.state in (InvocationState.READY, InvocationState.DISPATCHED)
    gate.touch()
    third = await here.call(
        "slow__count", arguments, host=CallHost(name="patient", transport="http")
    )
    assert third.result is not None
    assert third.result["content"][0]["text"] == "1 steps"
    assert len(here.sent()) == 1


async def test_progress_is_told_again_and_again_with_the_time_that_is_left(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_waiting, "TELL_EVERY", 0.05)
    here = await site()
    ear = Ear()
    host = CallHost(name="claude-code", transport="http", progress=True)
    calling = asyncio.ensure_future(
        here.call("slow__count", {"steps": 2}, host=host, on_progress=ear)
    )
    await ear.until(4)
    await vote(bob)
    assert (await calling).state is InvocationState.SUCCEEDED
    said = [message for _, message in ear.heard if message.startswith("Waiting")]
    assert all(message.startswith("Waiting for an approver: 1") for message in said)
    assert all(" left. http" in message for message in said)
    assert ear.heard[-1][1] == "step 2"  # the server's own progress follows


async def test_no_hold_outlives_the_time_to_decide(site: Make, asking: Server) -> None:
    await db_call(PolicyRule.objects.create, name="brief", outcome="ask", decide_seconds=1)
    here: Site = await site()
    ear = Ear()
    host = CallHost(name="claude-code", transport="http", progress=True)
    outcome = await here.call("slow__count", {}, host=host, on_progress=ear)
    assert (outcome.state, outcome.error_code) == (InvocationState.EXPIRED, "EXPIRED")
    assert "was not approved in time" in outcome.message
    assert here.sent() == []


async def test_a_question_that_breaks_the_host_leads_to_the_next_rung(
    site: Make, asking: Server, bob: User
) -> None:
    """What a host says that it can do is not always so; gateway.host_questions turns its fault into
    no answer."""
    await db_call(PolicyRule.objects.create, name="own", outcome="ask", requester_may_confirm=True)
    here = await site()
    asked = []

    async def ask(prompt: Prompt) -> HostReply:
        asked.append(prompt)
        return HostReply(prompt.request, "cancel", confirmed=False, seconds=0.0)

    host = CallHost(name="codex-mcp-client", transport="http", elicit=frozenset({"form"}), ask=ask)
    calling = asyncio.ensure_future(here.call("slow__count", {"steps": 1}, host=host))
    (request,) = await held()
    await until(lambda: db_call(ApprovalRequest.objects.filter(waiting_as="hold").exists))
    await vote(bob)
    assert (await calling).state is InvocationState.SUCCEEDED
    assert [prompt.request for prompt in asked] == [request.pk]


async def test_a_confirmation_is_one_voice_where_two_must_agree(
    site: Make, asking: Server, bob: User
) -> None:
    rule: Callable[..., Any] = PolicyRule.objects.create
    await db_call(rule, name="two", outcome="ask", requester_may_confirm=True, quorum=2)
    here: Site = await site()

    async def ask(prompt: Prompt) -> HostReply:
        return HostReply(prompt.request, "accept", confirmed=True, seconds=3.0)

    host = CallHost(name="x", transport="http", elicit=frozenset({"form"}), ask=ask)
    calling = asyncio.ensure_future(here.call("slow__count", {"steps": 1}, host=host))
    await until(lambda: db_call(ApprovalRequest.objects.filter(votes__via="host").exists))
    assert here.sent() == []
    await vote(bob)
    assert (await calling).state is InvocationState.SUCCEEDED


async def test_a_decision_made_in_the_moment_in_which_time_is_up_is_told(
    site: Make, asking: Server, bob: User
) -> None:
    """Between the last look and the word "pending" somebody rejects: the caller hears that."""
    here: Site = await site()
    away = here.engine.approvals.requests.detach_caller

    async def slowly(ticket: Any) -> Any:
        await db_call(
            votes.vote, request_id=ticket.id, user=bob, approve=False, reason="no", via="web"
        )
        return await away(ticket)

    here.engine.approvals.requests.detach_caller = slowly
    outcome = await here.call("slow__count", {}, host=HASTY)
    assert outcome.state is InvocationState.REJECTED
    assert "REJECTED by Bob: no" in outcome.message


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min 0 s"),
        (250, "4 min 10 s"),
        (3600, "1 h 0 min"),
        (7500, "2 h 5 min"),
        (86_400, "1 day 0 h"),
        (3 * 86_400 + 4 * 3600, "3 days 4 h"),
    ],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert format_exact_duration(seconds) == words
