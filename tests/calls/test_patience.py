"""How long a call is held for whom: what is set for agent and endpoint, and what a host has shown
that it bears."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcpregistry.calls import stages
from mcpregistry.calls.approvals import host_patience
from mcpregistry.calls.approvals.host_patience import FORGOTTEN, REMEMBERED, HostPatience
from mcpregistry.calls.call import Call, CallHost, CallRequest
from mcpregistry.calls.catalog import Catalogue
from mcpregistry.db import db_call
from mcpregistry.domain.calls import hosts, wait_strategy
from mcpregistry.domain.calls.wait_strategy import WaitStep
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec
from mcpregistry.models import Agent, Configuration, Endpoint, Invocation, Server
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from tests.calls.conftest import Site, add_server, tool
from tests.calls.test_approvals import Make, held
from tests.waiting import HANG_LIMIT, until

AGENT = AgentSpec(1, "ann", frozenset(), None, ())
ENDPOINT = EndpointSpec("default", "", "", "double", "none", False, True, ())
STRANGER = CallHost(name="stranger", transport="http")


def a_call(
    host: CallHost = STRANGER,
    *,
    agent: AgentSpec = AGENT,
    endpoint: EndpointSpec = ENDPOINT,
    started: float = 0,
) -> Call:
    request = CallRequest(Catalogue(endpoint, agent, {}, None), "x", {}, "http", host=host)
    return Call("0", request, stages.NO_ENTRY, "", "", stages.UNDECIDED, datetime.now(UTC), started)


def test_the_smallest_of_what_is_set_and_what_the_host_bears_counts() -> None:
    patient = HostPatience()
    assert patient.compute_hold_seconds(a_call(), WaitStep.HOLD) == 50
    assert (
        patient.compute_hold_seconds(a_call(agent=replace(AGENT, hold_seconds=20)), WaitStep.HOLD)
        == 20
    )
    both = a_call(agent=replace(AGENT, hold_seconds=20), endpoint=replace(ENDPOINT, hold_seconds=7))
    assert patient.compute_hold_seconds(both, WaitStep.HOLD) == 7
    assert (
        patient.compute_hold_seconds(
            a_call(endpoint=replace(ENDPOINT, hold_seconds=900)), WaitStep.HOLD
        )
        == 50
    )
    assert (
        patient.compute_hold_seconds(
            a_call(agent=replace(AGENT, hold_seconds=0)), WaitStep.PROGRESS
        )
        == 0
    )


def test_a_stranger_that_left_is_answered_sooner_from_then_on() -> None:
    patient = HostPatience()
    patient.record_departure(a_call(), now=20)
    assert patient.compute_hold_seconds(a_call(started=30), WaitStep.HOLD) == 16
    assert patient.compute_hold_seconds(a_call(started=30), WaitStep.PROGRESS) == 16
    patient.record_departure(
        a_call(started=30), now=60
    )  # once it has borne more; that does not lengthen it
    assert patient.compute_hold_seconds(a_call(started=90), WaitStep.HOLD) == 16
    patient.record_departure(a_call(started=90), now=95)
    assert patient.compute_hold_seconds(a_call(started=99), WaitStep.HOLD) == 4
    assert (
        patient.compute_hold_seconds(
            a_call(started=99, agent=replace(AGENT, slug="bob")), WaitStep.HOLD
        )
        == 50
    )
    assert (
        patient.compute_hold_seconds(
            a_call(started=99, host=replace(STRANGER, name="other")), WaitStep.HOLD
        )
        == 50
    )
    assert patient.compute_hold_seconds(a_call(started=96 + FORGOTTEN), WaitStep.HOLD) == 50


@pytest.mark.parametrize(
    ("host", "after"),
    [
        (CallHost(name="claude-code", progress=True), 20),  # measured: a person stopped it
        (STRANGER, 0.9),  # nobody gives up so soon
        (CallHost(transport="rest", hold=30.0), 20),  # it says itself how long it waits
    ],
)
def test_what_shows_no_limit(host: CallHost, after: float) -> None:
    patient = HostPatience()
    before = patient.compute_hold_seconds(a_call(host), WaitStep.PROGRESS)
    patient.record_departure(a_call(host), now=after)
    assert patient.compute_hold_seconds(a_call(host, started=after), WaitStep.PROGRESS) == before


def test_only_so_many_are_remembered() -> None:
    patient = HostPatience()
    for number in range(REMEMBERED + 5):
        patient.record_departure(a_call(replace(STRANGER, name=f"host {number}")), now=20)
    assert len(patient._left) == REMEMBERED
    assert (
        patient.compute_hold_seconds(
            a_call(replace(STRANGER, name="host 0"), started=21), WaitStep.HOLD
        )
        == 50
    )


@pytest.fixture
def asking(live_db: None, journal: Path) -> Server:
    server = add_server("slow", tool("count"), env={"FAKE_JOURNAL": str(journal)})
    Configuration.objects.update(default_outcome="ask")
    return server


@pytest.fixture
def _patient_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger bears so much that no test that passes has waited for it."""
    monkeypatch.setattr(hosts, "UNKNOWN", replace(hosts.UNKNOWN, silent=10_000))
    monkeypatch.setattr(wait_strategy, "SHORT", 10_000)


@pytest.mark.usefixtures("_patient_strangers")
@pytest.mark.parametrize("whose", [Agent, Endpoint])
async def test_a_hold_that_is_set_for_an_agent_or_an_endpoint_ends_in_pending(
    site: Make, asking: Server, whose: type[Agent] | type[Endpoint]
) -> None:
    await db_call(lambda: whose.objects.update(hold_seconds=0))
    here: Site = await site()
    outcome = await here.call("slow__count", {}, host=STRANGER)
    assert outcome.state is InvocationState.PENDING
    assert outcome.ticket is not None
    await here.engine.approvals.requests.cancel(outcome.ticket, "enough")


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.usefixtures("_patient_strangers")
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "while it was recorded"])
async def test_a_caller_that_gave_up_once_is_told_pending_in_time(
    site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    monkeypatch.setattr(host_patience, "_NOT_A_LIMIT", 0.0)
    answered = threading.Event()
    ask = held_calls.ask

    def asked_slowly(**facts: Any) -> HeldCallTicket:
        ticket = ask(**facts)
        answered.wait(HANG_LIMIT)
        return ticket

    monkeypatch.setattr(held_calls, "ask", asked_slowly)
    if recorded:
        answered.set()
    here: Site = await site()
    calling = asyncio.ensure_future(here.call("slow__count", {"steps": 1}, host=STRANGER))
    await held()
    calling.cancel()
    answered.set()
    await asyncio.gather(calling, return_exceptions=True)
    outcome = await here.call("slow__count", {"steps": 2}, host=STRANGER)
    assert outcome.state is InvocationState.PENDING
    assert outcome.ticket is not None
    await here.engine.approvals.requests.cancel(outcome.ticket, "enough")
    await until(
        lambda: db_call(
            lambda: Invocation.objects.filter(state=InvocationState.CANCELLED).count() == 2
        )
    )
