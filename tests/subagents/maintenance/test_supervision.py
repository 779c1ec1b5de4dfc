"""The sub-agent works only while it is switched on, and while the cycles of whoever supervises the
work go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.errors import NotFound
from mcpregistry.models import AuditEntry, Configuration, Server
from subagents.domain.maintenance import Kind, State
from subagents.effort import agents, cycle
from subagents.maintenance import queue, supervision
from subagents.maintenance.tools import status
from subagents.models import (
    EffortAgent,
    ExpertTool,
    LanguageModel,
    MaintenanceMessage,
    MaintenanceRequest,
    Provider,
)
from subagents.services import experts
from tests.subagents.maintenance.conftest import ask, ended, now
from tests.subagents.maintenance.test_manager import begun, children, mute
from tests.waiting import until

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OUT = 'the hosted agent "expert.guard", does not run'


def guard(**fields: Any) -> EffortAgent:
    """A hosted agent whose cycles a worker drives."""
    model = LanguageModel.objects.create(
        provider=Provider.objects.create(slug="p", kind="scripted"), name="m"
    )
    expert = experts.save_expert(
        expert=ExpertTool(name="guard", description="Guards.", arguments=TEXT),
        targets=[model],
        actor="test",
    )
    row = agents.save_effort_agent(row=EffortAgent(expert=expert, **fields), actor="test")
    asleep(True)
    return row


def asleep(on: bool) -> None:
    """Its worker gives it back, or takes it again; nothing renews it here, so it is taken for
    long."""
    EffortAgent.objects.update(lease_until=None)
    if on:
        assert cycle.take(EffortAgent.objects.get().pk, worker="w")
        EffortAgent.objects.update(lease_until=read_database_now() + timedelta(hours=1))


def switched(on: bool) -> None:
    assert supervision.switch(on=on, actor="user:ann")


@pytest.mark.exhaustive(but=("switched off",))
@pytest.mark.parametrize(
    ("fields", "supervisor", "steer", "says"),
    [
        (None, "", switched, supervision.OFF),
        ({"supervises": True}, "", asleep, OUT),
        ({}, "expert.guard", asleep, OUT),
    ],
    ids=["switched off", "supervisor of the site", "supervisor of the request"],
)
async def test_what_is_queued_stays_so_and_what_runs_halts_and_goes_on_where_it_was(
    manager: Any,
    fields: dict[str, Any] | None,
    supervisor: str,
    steer: Callable[[bool], None],
    says: str,
) -> None:
    if fields is not None:
        await db_call(guard, **fields)
    await db_call(mute)
    here = await manager()
    running = await db_call(ask, Kind.TEST, server="mute", supervisor=supervisor)
    await begun(here, running)
    await db_call(steer, False)
    waiting = await db_call(ask, Kind.SEARCH, query="git", supervisor=supervisor)
    halted = await until(lambda: _given_back(running))
    assert (halted.state, halted.substate, halted.step) == (State.IN_PROGRESS, "", 1)
    assert not children("mute.py"), "with what it has started"
    assert says in (await db_call(status, halted))["message"]
    told = await db_call(
        lambda: [
            each.data["message"] for each in MaintenanceMessage.objects.filter(request=running)
        ]
    )
    assert says in told[-1]
    here.look()
    await here._looking
    assert await db_call(lambda: queue.list_due_requests(read_database_now(), 9)) == []
    assert (await now(waiting)).state == State.QUEUED
    assert (await now(running)).energy_total == halted.energy_total
    await db_call(Server.objects.update, connect_timeout=0.3)
    await db_call(steer, True)
    assert (await ended(here, waiting)).state == State.COMPLETED
    assert (await ended(here, running)).state == State.COMPLETED


async def _given_back(request: MaintenanceRequest) -> MaintenanceRequest | None:
    found = await now(request)
    return found if found.lease_until is None else None


@pytest.mark.one_database
@pytest.mark.django_db
def test_what_is_off_may_still_be_cancelled_and_each_switching_stands_in_the_log() -> None:
    request = ask(Kind.SEARCH, query="git")
    switched(False)
    assert not supervision.switch(on=False, actor="user:ann"), "it is off already"
    MaintenanceRequest.objects.update(
        lease_until=read_database_now() - timedelta(seconds=1), worker="dead"
    )
    queue.cancel(request_id=request.pk, actor="user:ann")
    assert queue.list_due_requests(read_database_now(), 9) == [request.pk], (
        "whose worker has died is ended all the same"
    )
    entry = AuditEntry.objects.filter(kind="configuration.changed").latest("id")
    assert (json.loads(entry.body)["sub_agent"], Configuration.load().sub_agent_enabled) == (
        False,
        False,
    )
    with pytest.raises(NotFound, match="No hosted agent"):
        ask(Kind.SEARCH, query="git", supervisor="nobody")
