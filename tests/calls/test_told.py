"""From a host's call to a button in Slack and back: held, told, decided there, run once, told
again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User

from mcpregistry.calls.call import CallHost
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Configuration, Delivery, SlackIdentity, Tool
from tests.calls.conftest import add_server, tool
from tests.fakes.receiver import Receiver, listening
from tests.fakes.slack import TEAM, Slack, slack
from tests.services.telling import deliver, slack_room, webhook
from tests.waiting import until

PATIENT = CallHost(name="patient", transport="http")


@pytest.fixture
def asking(live_db: None, journal: Path) -> None:
    add_server("slow", tool("count"), env={"FAKE_JOURNAL": str(journal)})
    Tool.objects.update(read_only=True, destructive=False, open_world=False)
    Configuration.objects.update(default_outcome="ask")
    ann = User.objects.create(username="ann-at-slack", password="!")
    ann.groups.add(Group.objects.get(name="approver"))
    SlackIdentity.objects.create(team=TEAM, member="U0ANN", user=ann)


@pytest.fixture
def room(asking: None) -> Iterator[Slack]:
    with slack() as fake:
        fake.address = f"/hooks/slack/{slack_room(fake.url).uid}/"
        yield fake


async def told(fake: Slack) -> str:
    """Time stamp of the question, once somebody has emptied the outbox."""
    await until(lambda: db_call(Delivery.objects.filter(event="asked").exists))
    await asyncio.to_thread(deliver)
    (stamp,) = fake.messages
    return stamp


async def test_a_held_call_is_approved_in_slack_and_runs_once(site, room):
    here = await site()
    with listening(Receiver()) as receiver:
        await db_call(webhook, receiver.url)
        call = asyncio.create_task(here.call("slow__count", {"steps": 1}, host=PATIENT))
        stamp = await told(room)
        answer = await asyncio.to_thread(room.press, room.address, stamp, "approve")
        outcome = await call
        await asyncio.to_thread(deliver)
        kinds = [json.loads(got.body)["type"] for got in receiver.requests]
    assert (answer.status_code, room.whispers) == (200, [])
    assert (outcome.state, len(here.sent())) == (InvocationState.SUCCEEDED, 1)
    assert kinds == ["approval.asked", "approval.approved"]
    assert json.dumps(room.messages[stamp]).count("ann-at-slack") == 1


async def test_a_call_rejected_in_slack_never_runs_and_the_reason_reaches_the_agent(site, room):
    here = await site()
    call = asyncio.create_task(here.call("slow__count", {"steps": 1}, host=PATIENT))
    stamp = await told(room)
    await asyncio.to_thread(room.press, room.address, stamp, "deny")
    await asyncio.to_thread(room.submit, room.address, reason="the disk is full")
    outcome = await call
    assert (outcome.state, here.sent()) == (InvocationState.REJECTED, [])
    assert "the disk is full" in outcome.message
