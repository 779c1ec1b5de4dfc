"""What REST says of servers' calls is what the record says, though it is read of hours and of sums,
and not of the calls."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from mcpregistry.domain.lifecycle import FAILED, InvocationState
from mcpregistry.models import Invocation, Server
from mcpregistry.queries import server_figures
from mcpregistry.services.records import call_hours, usage_sums
from tests.services.test_call_hours import History

REFUSED = {
    InvocationState.DENIED,
    InvocationState.REJECTED,
    InvocationState.EXPIRED,
    InvocationState.CANCELLED,
    InvocationState.VOID,
}


def numbers(calls: list[Invocation]) -> tuple[int, int, int]:
    states = [InvocationState(call.state) for call in calls]
    return (
        states.count(InvocationState.SUCCEEDED),
        sum(s in FAILED for s in states),
        sum(s in REFUSED for s in states),
    )


@pytest.mark.django_db
@pytest.mark.both_databases
def test_figures_of_servers_and_tools_are_those_of_the_record() -> None:
    Server.objects.create(slug="git", command=["x"], lifecycle="active")
    Server.objects.create(slug="never", command=["x"], lifecycle="active")
    history = History(random.Random(3))
    for _ in range(3):
        history.come(40)
        history.end_late()
        history.now += timedelta(hours=9)
    assert said_as_recorded(history), "of hours that nobody has counted nothing is said"
    call_hours.count_due(history.now)
    assert not said_as_recorded(history)
    usage_sums.refresh_sums(history.now)
    before = history.made
    history.come(40)
    new = [f"call-{number + 1}" for number in range(before, history.made)]
    # in the hour that is not over
    Invocation.objects.filter(pk__in=new).update(received_at=history.now)
    assert not said_as_recorded(history)
    assert Invocation.objects.open().filter(server_slug="git").exists()


def said_as_recorded(history: History) -> list[str]:
    """What differs."""
    calls = list(Invocation.objects.filter(server_slug="git").order_by("received_at"))
    used = [
        call.received_at
        for call in calls
        if call.state == InvocationState.SUCCEEDED or call.state in FAILED
    ]
    found = server_figures.compute_server_figures(["git", "never"], now=history.now).get(
        "git", server_figures.ServerFigures()
    )
    wrong = [] if numbers(calls) == (found.succeeded, found.failed, found.refused) else ["git"]
    wrong += [] if found.last == max(used) else ["last"]
    tools = server_figures.compute_tool_figures("git", now=history.now)
    for tool in {call.tool_name for call in calls}:
        of_tool = [c for c in calls if c.tool_name == tool]
        each = tools.get(tool, server_figures.ServerFigures())
        took = [
            c.duration_ms
            for c in of_tool
            if c.outcome != "ask"
            and c.duration_ms is not None
            and (c.state == InvocationState.SUCCEEDED or c.state in FAILED)
        ]
        right = numbers(of_tool) == (each.succeeded, each.failed, each.refused)
        right = (
            right
            and each.last == of_tool[-1].received_at
            and each.mean == pytest.approx(sum(took) / len(took))
        )
        wrong += [] if right else [tool]
    return wrong


@pytest.mark.django_db
@pytest.mark.both_databases
def test_no_more_is_asked_about_more_servers(django_assert_num_queries) -> None:
    history = History(random.Random(4))
    for slug in ("git", *(f"s{number}" for number in range(20))):
        Server.objects.create(slug=slug, command=["x"], lifecycle="active")
    history.come(20)
    Invocation.objects.filter(pk__in=["call-1", "call-2", "call-3"]).update(server_slug="s1")
    with django_assert_num_queries(asked := 4):
        server_figures.compute_server_figures(["git", "s1"], now=history.now)
    with django_assert_num_queries(asked):
        server_figures.compute_server_figures(
            [f"s{number}" for number in range(20)] + ["git"], now=history.now
        )
