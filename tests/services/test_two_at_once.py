"""Two who change one row at the same moment: neither fails, and neither change is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connections
from django.utils import timezone

from mcpregistry.models import Agent, Configuration, LoginAttempts, Server, Tool
from mcpregistry.services.access import scopes
from mcpregistry.services.access.logins import LoginAttempt
from subagents.models import ExpertTool
from subagents.services.experts import grant_awaited
from tests.waiting import HANG_LIMIT

ROUNDS = 12


def at_once(*sides: Callable[[], object]) -> None:
    """Let each side run in a thread of its own, all from the same moment; raises what one of them
    raised."""
    start = Barrier(len(sides))

    def go(side: Callable[[], object]) -> None:
        try:
            start.wait(HANG_LIMIT)
            side()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(sides)) as threads:
        list(threads.map(go, sides))


@pytest.mark.django_db(transaction=True)
def test_a_log_in_that_ends_beside_one_that_begins_takes_nothing_away_from_it() -> None:
    attempt = LoginAttempt("ann", "192.0.2.1")

    def enter() -> None:
        for _ in range(ROUNDS):
            assert attempt.begin() is None
            attempt.record_success()

    at_once(enter, enter)
    counted = dict(LoginAttempts.objects.values_list("key", "count"))
    assert counted.pop(attempt._own, 0) <= 1
    assert {*counted.values()} == {0}, "the network and the account count what is under way alone"


@pytest.mark.django_db(transaction=True)
def test_variables_that_two_files_let_go_somewhere_both_go_there() -> None:
    def grant(name: str) -> Callable[[], None]:
        return lambda: (
            [
                scopes.grant_variables([f"${{{name}_{n}}}"], "server:db", "command:import")
                for n in range(ROUNDS)
            ]
            and None
        )

    at_once(grant("A"), grant("B"))
    assert len(Configuration.load().variable_scope) == 2 * ROUNDS


@pytest.mark.django_db(transaction=True)
def test_two_servers_that_bring_awaited_tools_at_once_are_both_granted() -> None:
    now = timezone.now()
    servers = [Server.objects.create(slug=slug, command=["x"]) for slug in ("git", "time")]
    for server in servers:
        Tool.objects.bulk_create(
            Tool(server=server, name=f"t{n}", first_seen_at=now, last_seen_at=now)
            for n in range(ROUNDS)
        )
    awaited = [f"{server.slug}::t{n}" for server in servers for n in range(ROUNDS)]
    expert = ExpertTool.objects.create(
        name="clerk",
        agent=Agent.objects.create(slug="clerk"),
        awaited_tools=[*awaited, "git::never"],
    )

    def bring(server: Server) -> Callable[[], None]:
        return lambda: [grant_awaited(server, [f"t{n}", "gone"]) for n in range(ROUNDS)] and None

    at_once(*map(bring, servers))
    expert.refresh_from_db()
    assert (expert.awaited_tools, expert.agent.grants.count()) == (["git::never"], 2 * ROUNDS)
