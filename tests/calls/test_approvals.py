"""Held calls through a real engine: asked, decided by people, run exactly once, with what was approved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from mcpregistry.calls.call import CallOutcome
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import State
from mcpregistry.models import ApprovalRequest, Configuration, Server
from mcpregistry.services import approvals
from mcpregistry.services.roles import install_roles
from tests.calls.conftest import Site, add_server, told, tool

Make = Callable[..., Any]
NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}


def person(name: str, *groups: str) -> User:
    install_roles()
    user = User.objects.create_user(name, first_name=name.title())
    user.groups.set([Group.objects.get_or_create(name=each)[0] for each in groups or ("approver",)])
    return user


@pytest.fixture
def asking(live_db: None, journal: Path) -> Server:
    """A server whose calls are all asked about."""
    server = add_server("echo", tool("echo", NUMBER), tool("pid"), env={"FAKE_JOURNAL": str(journal)})
    Configuration.objects.update(default_outcome="ask")
    return server


@pytest.fixture
def bob(live_db: None) -> User:
    return person("bob")


async def held(count: int = 1) -> list[ApprovalRequest]:
    """The open requests, once there are so many."""
    async with asyncio.timeout(15):
        while True:
            rows = await db_call(lambda: list(ApprovalRequest.objects.waiting().select_related("call", "group")))
            if len(rows) >= count:
                return rows
            await asyncio.sleep(0.01)


async def vote(user: User, approve: bool = True, **facts: Any) -> ApprovalRequest:
    (request,) = await held()
    return await db_call(approvals.vote, request_id=request.pk, user=user, approve=approve, via="web", **facts)


async def only() -> tuple[ApprovalRequest, list[str]]:
    request = await db_call(lambda: ApprovalRequest.objects.select_related("call").get())
    return request, await db_call(told, request.call_id)


async def until(state: State) -> ApprovalRequest:
    async with asyncio.timeout(15):
        while True:
            request, _ = await only()
            if request.call.state == state:
                return request
            await asyncio.sleep(0.01)


def calling(here: Site, arguments: dict[str, Any] | None = None) -> asyncio.Task[CallOutcome]:
    return asyncio.ensure_future(here.call("echo__echo", arguments or {"n": 1}))


async def test_an_approved_call_runs_and_its_caller_gets_the_answer(site: Make, asking: Server, bob: User):
    here: Site = await site()
    call = calling(here)
    await held()
    assert here.sent() == []
    await vote(bob)
    outcome = await call
    assert outcome.state == State.SUCCEEDED
    assert [sent["arguments"] for sent in here.sent()] == [{"n": 1}]
    request, kinds = await only()
    assert kinds == ["call.pending", "approval.vote", "call.approved", "call.dispatched", "call.succeeded"]
    assert (request.call.outcome, request.call.fence, request.join_key) == ("ask", 1, None)
    assert request.delivered_at is not None


async def test_a_rejection_is_told_with_name_and_reason(site: Make, asking: Server, bob: User):
    here: Site = await site()
    call = calling(here)
    await held()
    await vote(bob, False, reason="Not on a Friday.")
    outcome = await call
    assert (outcome.state, outcome.error_code) == (State.REJECTED, "REJECTED")
    assert outcome.message == "REFUSED by Bob: Not on a Friday. The call was not made. Do not retry it unchanged."
    assert here.sent() == []
    assert (await only())[1] == ["call.pending", "approval.vote", "call.rejected"]
